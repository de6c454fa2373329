//go:build long

package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// heavyBytes is the size of a heavy Blueprint in JSON.
const heavyBytes = 123 << 10

// heavyBlueprint returns a valid Blueprint of size heavyBytes with either the maximum number of expressions or a large
// schema.
func heavyBlueprint(a *api, number int, ofExpressions bool) string {
	a.Helper()
	const perResource = 8 // in addition to those in the name and in includeWhen
	properties, expressions := 10_000, 100*perResource
	if !ofExpressions {
		expressions = perResource
	}
	fields := map[string]any{}
	field := func(i int) string { return fmt.Sprint("p", i) }
	for i := range expressions {
		fields[field(i)] = map[string]any{"type": "string"}
	}
	var resources []any
	for i := range expressions / perResource {
		data := map[string]any{}
		for j := range perResource {
			n := i*perResource + j
			data[fmt.Sprint("k", j)] = fmt.Sprintf("${self.spec.%s.replace('a', 'b') + string(%d)}", field(n), n)
		}
		resources = append(resources, map[string]any{
			"id": fmt.Sprint("r", i), "includeWhen": []any{"has(self.spec.wanted)"},
			"template": map[string]any{
				"apiVersion": "v1", "kind": "ConfigMap", "data": data,
				"metadata": map[string]any{"name": fmt.Sprintf("${self.metadata.name}-%d", i)},
			},
		})
	}
	fields["wanted"] = map[string]any{"type": "boolean"}
	kind := fmt.Sprint("Heavy", number)
	b := map[string]any{
		"apiVersion": "platform.example.com/v1alpha1", "kind": "Blueprint",
		"metadata": map[string]any{"name": strings.ToLower(kind) + ".GROUP"},
		"spec": map[string]any{
			"type": map[string]any{"group": "GROUP", "version": "v1", "kind": kind, "schema": map[string]any{
				"type": "object", "properties": map[string]any{"spec": map[string]any{"type": "object", "properties": fields}},
			}},
			"resources": resources,
		},
	}
	var data []byte
	for i := expressions; len(data) < heavyBytes && i < properties; i++ {
		fields[field(i)] = map[string]any{"type": "string"}
		if i%100 != 0 {
			continue
		}
		var err error
		if data, err = json.Marshal(b); err != nil {
			a.Fatal(err)
		}
	}
	a.Logf("%s: %d KiB, %d properties, %d resources", kind, len(data)>>10, len(fields), len(resources))
	return string(data)
}

// decided checks that a Blueprint is served or exceeds the memory budget.
func decided(obj *unstructured.Unstructured) error {
	served := all(is("Accepted", "True"), is("Serving", "True"))(obj)
	if served == nil {
		return nil
	}
	if is("Accepted", "False", "BudgetExceeded", "--max-blueprint-memory")(obj) == nil {
		return nil
	}
	return served
}

// A replica with the memory limit of the example manifests starts and serves Blueprints even if some of them are heavy.
func TestMemoryLimit_HeavyBlueprints(t *testing.T) {
	a := newAPI(t)
	limit := newMemoryLimit(t, shippedLimit)
	const count = 5
	run := func() *process {
		return startCommand(t, limit.command(replicaArgs(t, a.cluster.Kubeconfig(), "--leader-elect=false")...))
	}
	p := run()
	p.waitReady()
	limit.logPeak("alone")
	p.loggedOnce(line{Msg: "Memory limit set"}) // read from the cgroup or set by the test
	for i := range count {
		a.apply(heavyBlueprint(a, i, i%2 == 0))
	}
	wait := func() {
		for i := range count {
			a.waitBlueprint(fmt.Sprint("heavy", i), p.whileRunning(decided))
		}
	}
	wait()
	served := 0
	for i := range count {
		if is("Accepted", "True")(a.waitBlueprint(fmt.Sprint("heavy", i))) == nil {
			served++
		}
	}
	t.Logf("%d of %d heavy Blueprints are served; the others exceed the budget", served, count)
	if served == 0 {
		t.Error("none of the heavy Blueprints is served")
	}
	limit.logPeak("first")
	p.kill()
	p = run()
	p.waitReady()
	wait()
	limit.logPeak("after a restart")
	a.apply(websites)
	a.waitBlueprint("websites", p.whileRunning(is("Serving", "True")))
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", p.whileRunning(is("Ready", "True")))
	limit.logPeak("serving")
}
