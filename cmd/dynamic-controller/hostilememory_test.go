package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// The flags extend TestMemoryLimit_HostileInstances. The measurement that the limits are designed for takes a few
// minutes, most of which the API server needs to create the instances. "make test-long" includes it:
//
//	go test -C cmd/dynamic-controller -run TestMemoryLimit_HostileInstances -hostile-for 2m -hostile-types all
var (
	hostileFor = flag.Duration("hostile-for", 10*time.Second,
		"how long TestMemoryLimit_HostileInstances attacks the platform")
	hostileNames = flag.String("hostile-types", "decoded,rendered",
		"the hostile types of TestMemoryLimit_HostileInstances, separated by commas, or all")
)

// hostileType is a type whose Blueprint is valid, and whose instances would take as much memory as the limits allow.
type hostileType struct {
	forEach []string          // the list expressions of a collection
	values  map[string]string // expressions in the data of a child
	status  map[string]any    // spec.type.status
	spec    map[string]any    // the spec of each instance
	count   int               // the number of instances; 0 means 20
}

// repeatedJSON returns a list of equal items as JSON. Small maps take the most memory for their size.
func repeatedJSON(item string, bytes int) string {
	return "[" + strings.TrimSuffix(strings.Repeat(item+",", bytes/(len(item)+1)), ",") + "]"
}

func decodedJSON(item string, bytes int) (list []any) {
	if err := json.Unmarshal([]byte(repeatedJSON(item, bytes)), &list); err != nil {
		panic(err)
	}
	return list
}

func hostileTypes() map[string]hostileType {
	nine := func(expression string) []string { return slices.Repeat([]string{expression}, 9) }
	many := func(expression string) map[string]string {
		values := map[string]string{}
		for i := range 70 {
			values[fmt.Sprint("k", i)] = expression
		}
		return values
	}
	list := func(item string, times int) string {
		return "[[" + strings.TrimSuffix(strings.Repeat(item+",", times), ",") + "]]"
	}
	size := func(of string) map[string]string { return map[string]string{"size": "string(" + of + ".size())"} }
	port := `{"name":"n","port":80,"text":"` + strings.Repeat("x", 100) + `"}`
	empty := map[string]any{"text": repeatedJSON("{}", 60_000)}
	one := map[string]any{"text": repeatedJSON(`{"a":1}`, 60_000)}
	long := map[string]any{"text": strings.Repeat("x", 60_000)}
	return map[string]hostileType{
		"decoded":     {forEach: nine(list("json.unmarshal(self.spec.text)", 4)), spec: empty},
		"decodedmaps": {forEach: nine(list("json.unmarshal(self.spec.text)", 4)), spec: one},
		"joined":      {forEach: nine("[lists.range(60).map(i, self.spec.text).join()]"), spec: long},
		"added":       {forEach: nine("[json.unmarshal(self.spec.text) + json.unmarshal(self.spec.text)]"), spec: empty},
		"ranges":      {forEach: nine("[lists.range(9000).map(i, [i])]"), spec: long},
		"maps":        {forEach: nine("[lists.range(2000).map(i, {'a': i, string(i): {'b': {}}})]"), spec: long},
		"merged": {forEach: nine("[json.unmarshal(self.spec.text).map(i, i.deepMerge({'b': {'c': 1}}))]"),
			spec: map[string]any{"text": repeatedJSON(`{"a":{}}`, 20_000)}},
		"encoded":   {forEach: nine("[base64.encode(bytes(self.spec.text + self.spec.text))]"), spec: long},
		"marshaled": {forEach: nine("[json.marshal(json.unmarshal(self.spec.text))]"), spec: empty},
		"nested": {forEach: []string{"json.unmarshal(self.spec.text)", "json.unmarshal(self.spec.text)"},
			spec: map[string]any{"text": repeatedJSON(repeatedJSON(`{"a":1}`, 2_000), 60_000)}},
		"rendered": {values: many("json.unmarshal(self.spec.text)"), spec: one},
		"copied":   {values: many("self.spec.items"), spec: map[string]any{"items": decodedJSON(`{"a":1}`, 40_000)}},
		"reported": {status: map[string]any{
			"a": "${json.marshal([1, 2, 3, 4].map(i, json.unmarshal(self.spec.text))).size()}",
			"b": "${[1, 2, 3, 4].map(i, json.unmarshal(self.spec.text))}",
		}, spec: empty},
		"large": {values: size("self.spec.text"), spec: map[string]any{"text": strings.Repeat("x", 1_400_000)}},
		// The API server needs seconds for each of these instances.
		"largelist": {values: size("self.spec.items"), count: 2, spec: map[string]any{"items": decodedJSON(port, 1_400_000)}},
		"largemaps": {values: size("self.spec.items"), count: 2,
			spec: map[string]any{"items": decodedJSON(`{"a":1}`, 700_000)}},
	}
}

// blueprint returns the Blueprint of a hostile type.
func (h hostileType) blueprint(a *api, name string) string {
	a.Helper()
	object := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	spec := map[string]any{"type": "object", "properties": map[string]any{
		"text": map[string]any{"type": "string"}, "items": map[string]any{"type": "array", "items": object},
	}}
	data := map[string]any{"text": "x"}
	for key, expression := range h.values {
		data[key] = "${" + expression + "}"
	}
	child := map[string]any{
		"id": "child", "template": map[string]any{
			"apiVersion": "GROUP/v1", "kind": "Bag", "metadata": map[string]any{"name": "${self.metadata.name}"}, "spec": data,
		},
	}
	if len(h.forEach) > 0 {
		var forEach []any
		suffix := ""
		for i, list := range h.forEach {
			forEach = append(forEach, map[string]any{fmt.Sprint("v", i): "${" + list + "}"})
			suffix += fmt.Sprintf("-${size(v%d)}", i)
		}
		child["forEach"] = forEach
		child["template"].(map[string]any)["metadata"] = map[string]any{"name": "${self.metadata.name}" + suffix}
	}
	kind := strings.ToUpper(name[:1]) + name[1:]
	b := map[string]any{
		"apiVersion": "platform.example.com/v1alpha1", "kind": "Blueprint",
		"metadata": map[string]any{"name": strings.ToLower(kind) + "s.GROUP"},
		"spec": map[string]any{
			"type": map[string]any{"group": "GROUP", "version": "v1", "kind": kind, "schema": map[string]any{
				"type": "object", "properties": map[string]any{"spec": spec},
			}},
			"resources": []any{child},
		},
	}
	if h.status != nil {
		b["spec"].(map[string]any)["type"].(map[string]any)["status"] = h.status
	}
	text, err := json.Marshal(b)
	if err != nil {
		a.Fatal(err)
	}
	return string(text)
}

func (h hostileType) instance(a *api, kind, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": a.group + "/v1", "kind": strings.ToUpper(kind[:1]) + kind[1:],
		"metadata": map[string]any{"name": name}, "spec": h.spec,
	}}
}

// bags is a type whose objects can have any content.
const bags = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: bags.GROUP}
spec:
  group: GROUP
  scope: Namespaced
  names: {plural: bags, singular: bag, kind: Bag, listKind: BagList}
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema: {type: object, properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// anonymous returns the memory of the cgroup's processes in bytes, without files.
func (m *memoryLimit) anonymous() int64 {
	m.Helper()
	data, err := os.ReadFile(filepath.Join(m.cgroup, "memory.stat"))
	if err != nil {
		m.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) == 2 && (fields[0] == "anon" || fields[0] == "rss") { // in version 2 or 1
			n, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				m.Fatal(err)
			}
			return n
		}
	}
	m.Fatalf("memory.stat of %s does not contain the anonymous memory", m.cgroup)
	return 0
}

// createHostile serves the hostile types and returns their instances.
func (a *api) createHostile(p *process) (all []*unstructured.Unstructured) {
	a.Helper()
	const defaultCount = 20
	a.apply(bags)
	for name, h := range hostileTypes() {
		if *hostileNames != "all" && !slices.Contains(strings.Split(*hostileNames, ","), name) {
			continue
		}
		a.apply(h.blueprint(a, name))
		a.waitBlueprint(name+"s", p.whileRunning(is("Serving", "True")))
		for i := range cmp.Or(h.count, defaultCount) {
			instance := h.instance(a, name, fmt.Sprint(name, i))
			eventually(a.T, func() error {
				_, err := a.client(instance).Create(a.Context(), instance, metav1.CreateOptions{})
				return err
			})
			all = append(all, instance)
		}
	}
	return all
}

// keepTouching changes the objects in turn until ctx is cancelled.
func (a *api) keepTouching(ctx context.Context, objects []*unstructured.Unstructured) {
	const interval = 10 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		<-ticker.C
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"touched":"%d"}}}`, n)
		object := objects[n%len(objects)]
		_, _ = a.client(object).Patch(ctx, object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
	}
}

// Blueprints and instances that respect every single limit cannot exhaust a replica's memory together, not even after a
// restart. Instances of another type become ready all the while.
func TestMemoryLimit_HostileInstances(t *testing.T) {
	const maxAnonymous, maxReady = 240 << 20, 20 * time.Second // the latter while other packages keep a small machine busy
	a := newAPI(t)
	limit := newMemoryLimit(t, shippedLimit)
	if limit.cgroup == "" {
		t.Fatal("this test cannot create a cgroup, which it needs to limit and measure the memory")
	}
	run := func() *process {
		p := startCommand(t, limit.command(replicaArgs(t, a.cluster.Kubeconfig(), "--leader-elect=false")...))
		p.waitReady()
		return p
	}
	p := run()
	a.apply(websites)
	a.waitBlueprint("websites", p.whileRunning(is("Serving", "True")))
	hostile := a.createHostile(p)
	ctx, stop := context.WithCancel(t.Context())
	var touching sync.WaitGroup
	touching.Go(func() { a.keepTouching(ctx, hostile) })
	defer touching.Wait()
	defer stop()
	var peak int64
	var slowest time.Duration
	restarted, began := false, time.Now()
	for n := 0; time.Since(began) < *hostileFor; n++ {
		if !restarted && time.Since(began) > *hostileFor/2 {
			restarted = true
			p.kill()
			p = run()
		}
		name, created := fmt.Sprint("ordinary", n), time.Now()
		a.apply(strings.ReplaceAll(flowers, "name: flowers", "name: "+name))
		a.wait("GROUP/v1", "Website", name, p.whileRunning(func(obj *unstructured.Unstructured) error {
			peak = max(peak, limit.anonymous())
			return is("Ready", "True")(obj)
		}))
		took := time.Since(created)
		slowest = max(slowest, took)
		a.delete("GROUP/v1", "Website", name) // after a restart, each type has its share of the time for all of its instances
	}
	t.Logf("%d MiB of anonymous memory at most; %s until an ordinary instance is ready at most", peak>>20, slowest)
	limit.logPeak("total")
	if peak > maxAnonymous {
		t.Errorf("the hostile instances increased the anonymous memory to %d MiB", peak>>20)
	}
	if slowest > maxReady {
		t.Errorf("an ordinary instance was ready after %s", slowest)
	}
	for _, instance := range hostile {
		if now, err := a.client(instance).Get(t.Context(), instance.GetName(), metav1.GetOptions{}); err == nil {
			for _, c := range conditions(now) {
				t.Logf("%s: %s: %.200s", now.GetName(), c.Reason, c.Message)
			}
		}
	}
}
