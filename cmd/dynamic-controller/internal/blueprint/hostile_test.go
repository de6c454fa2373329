package blueprint_test

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

func config(id, rest string) blueprint.Resource {
	template := object(`{apiVersion: v1, kind: ConfigMap, metadata: {name: "` + id + `"}}`).Object
	template["data"] = map[string]any{"k": rest}
	return blueprint.Resource{ID: id, Template: template}
}

// wide returns a value with many small parts. deep returns a deeply nested value.
func wide(n int) any {
	list := make([]any, n)
	for i := range list {
		list[i] = fmt.Sprintf("item %d", i)
	}
	return list
}

func deep(n int) any {
	var v any = "end"
	for range n {
		v = map[string]any{"in": v}
	}
	return v
}

// hostileCase changes a Blueprint so that it would need excessive memory or time.
type hostileCase struct {
	change func(*blueprint.Blueprint)
	want   string // a problem with the Blueprint or its instance, or empty
}

// hostileProblems compiles the Blueprint and renders an instance that contains a long text. It returns the problems
// with both.
func hostileProblems(t *testing.T, b *blueprint.Blueprint) string {
	t.Helper()
	compiled, err := blueprint.Compile(b, blueprint.Options{})
	if err != nil {
		return err.Error()
	}
	self := object(flowers)
	self.Object["spec"].(map[string]any)["text"] = strings.Repeat("x", 10_000)
	s, err := compiled.Instance(self).Step(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s.Problems.Error()
}

func hostileSpecs() map[string]hostileCase {
	text := strings.Repeat("x", 60)
	return map[string]hostileCase{
		"many environments": {func(b *blueprint.Blueprint) {
			for i := range 100 {
				r := config(fmt.Sprint("a", i), fmt.Sprintf("${x%d}", i))
				r.Template["metadata"] = map[string]any{"name": fmt.Sprintf("a%d-${x%[1]d}", i)}
				r.ForEach = []map[string]string{{fmt.Sprint("x", i): "${self.spec.tags}"}}
				r.ReadyWhen = []string{"each.data.k == 'x'"}
				b.Spec.Resources = append(b.Spec.Resources, r)
			}
		}, ""},
		"many objects with large names": {func(b *blueprint.Blueprint) {
			for i := range 100 {
				r := config(fmt.Sprint("a", i), "")
				r.Template["metadata"] = map[string]any{"name": fmt.Sprintf("a%d-${x}", i)}
				r.ForEach = []map[string]string{{"x": "${lists.range(1000)}"}}
				if i >= 50 {
					r.IncludeWhen = []string{"false"}
				}
				b.Spec.Resources = append(b.Spec.Resources, r)
			}
		}, "the collections have more than 5000 objects in total"},
		"a costly expression for each object": {func(b *blueprint.Blueprint) {
			first := config("a", "")
			first.Template["metadata"] = map[string]any{"name": "a-${x}"}
			first.ForEach = []map[string]string{{"x": "${lists.range(1000)}"}}
			second := config("b", "${lists.range(x).map(y, lists.range(x)).size()}")
			second.Template["metadata"] = map[string]any{"name": "b-${x}"}
			second.ForEach = first.ForEach
			b.Spec.Resources = []blueprint.Resource{first, second}
		}, "the total cost of the instance's expressions exceeds"},
		"a large template": {func(b *blueprint.Blueprint) {
			b.Spec.Resources = []blueprint.Resource{config("a", "")}
			b.Spec.Resources[0].Template["data"] = wide(100_000)
		}, "spec.resources[0].template: has more than 131072 bytes"},
		"a deep template": {func(b *blueprint.Blueprint) {
			b.Spec.Resources = []blueprint.Resource{config("a", "")}
			b.Spec.Resources[0].Template["data"] = deep(500)
		}, "spec.resources[0].template: has more than 64 levels"},
		"a large schema": {func(b *blueprint.Blueprint) {
			b.Spec.Type.Schema["description"] = strings.Repeat("x", 300_000)
		}, "spec.type.schema: has more than 262144 bytes"},
		"a deep schema": {func(b *blueprint.Blueprint) {
			b.Spec.Type.Schema["properties"] = deep(500)
		}, "spec.type.schema: has more than 64 levels"},
		"a schema with many rules": {func(b *blueprint.Blueprint) {
			rules := make([]any, 5000)
			for i := range rules {
				rules[i] = map[string]any{"rule": "self.size > 1"}
			}
			b.Spec.Type.Schema["properties"].(map[string]any)["spec"].(map[string]any)["x-kubernetes-validations"] = rules
		}, "spec.type.schema: has more than 100 rules"},
		"a schema with many properties": {func(b *blueprint.Blueprint) {
			properties := map[string]any{}
			for i := range 7000 {
				properties[fmt.Sprint("p", i)] = map[string]any{"type": "integer"}
			}
			b.Spec.Type.Schema["properties"] = map[string]any{"spec": map[string]any{"type": "object", "properties": properties}}
			b.Spec.Resources = []blueprint.Resource{config("a", "${self.spec.nope}")}
		}, "unknown field \"nope\""},
		"many resources": {func(b *blueprint.Blueprint) {
			for i := range 2000 {
				b.Spec.Resources = append(b.Spec.Resources, config(fmt.Sprint("a", i), text))
			}
		}, "spec.resources: has more than 100 items"},
		"too many expressions": {func(b *blueprint.Blueprint) {
			b.Spec.Resources = []blueprint.Resource{config("a", strings.Repeat("${1}", 10_000))}
		}, "spec: has 10000 expressions; the maximum is 1000"},
		"expressions whose total size is too large": {func(b *blueprint.Blueprint) {
			b.Spec.Resources = []blueprint.Resource{config("a", strings.Repeat("${'"+strings.Repeat("x", 1000)+"'}", 100))}
		}, "spec: has 100200 bytes of expressions; the maximum is 65536"},
		"a thousand invalid expressions": {func(b *blueprint.Blueprint) {
			b.Spec.Resources = []blueprint.Resource{config("a", strings.Repeat("${nope.nope.nope}", 1000))}
		}, "and 190 more"},
		"many conditions": {func(b *blueprint.Blueprint) {
			b.Spec.Resources = []blueprint.Resource{config("a", "")}
			b.Spec.Resources[0].IncludeWhen = strings.Split(strings.Repeat("true,", 1000), ",")
		}, "spec.resources[0].includeWhen: has more than 16 expressions"},
		"many nested expressions": {func(b *blueprint.Blueprint) {
			b.Spec.Resources = []blueprint.Resource{config("a", strings.Repeat("${[[[[[{}]]]]] == [[]]}", 900))}
		}, ""},
		"many regular expressions": {func(b *blueprint.Blueprint) {
			b.Spec.Resources = []blueprint.Resource{config("a", strings.Repeat("${'a'.matches('a{600}')}", 900))}
		}, ""},
	}
}

func hostileExpressions() map[string]hostileCase {
	return map[string]hostileCase{
		"resources that all refer to each other": {func(b *blueprint.Blueprint) {
			all := "${[self.metadata.name"
			for i := range 100 {
				all += fmt.Sprintf(", a%d.k", i)
			}
			for i := range 50 {
				text := strings.ReplaceAll(all, fmt.Sprintf(", a%d.k", i), "") + "].size()}"
				b.Spec.Resources = append(b.Spec.Resources, config(fmt.Sprint("a", i), text))
			}
			for i := range 50 {
				b.Spec.Resources = append(b.Spec.Resources, config(fmt.Sprint("a", i+50), ""))
			}
		}, "a0 -> a1 -> a0"},
		"a cycle of a hundred resources": {func(b *blueprint.Blueprint) {
			for i := range 100 {
				b.Spec.Resources = append(b.Spec.Resources,
					config(fmt.Sprint("a", i), fmt.Sprintf("${a%d.metadata.uid}", (i+1)%100)))
			}
		}, "a0 -> a1 -> a2"},
		"expressions in long keys": {func(b *blueprint.Blueprint) {
			b.Spec.Resources = []blueprint.Resource{config("a", "")}
			b.Spec.Resources[0].Template[strings.Repeat("${", 50_000)] = "x"
		}, "keys must not contain expressions"},
		"a large rendered string": {func(b *blueprint.Blueprint) {
			b.Spec.Resources = []blueprint.Resource{config("a", strings.Repeat("${self.spec.text}", 900))}
		}, "spec.resources[0].template: the object exceeds 1048576 bytes"},
		"a large rendered value": {func(b *blueprint.Blueprint) {
			b.Spec.Resources = []blueprint.Resource{config("a",
				"${[self.spec].map(a, [a,a,a,a,a,a,a,a]).map(a, [a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a])}")}
		}, "spec.resources[0].template: the object exceeds 1048576 bytes"},
		"objects whose total size is too large": {func(b *blueprint.Blueprint) {
			for i := range 100 {
				b.Spec.Resources = append(b.Spec.Resources, config(fmt.Sprint("a", i), strings.Repeat("${self.spec.text}", 9)))
			}
		}, "or all children together exceed 4194304"},
		"expressions whose total cost is too high": {func(b *blueprint.Blueprint) {
			for i := range 100 {
				b.Spec.Resources = append(b.Spec.Resources, config(fmt.Sprint("a", i), "${lists.range(240).map(a, "+
					"lists.range(240).map(b, b)).size()}"))
			}
		}, "the total cost of the instance's expressions exceeds 10000000"},
		"an expression whose cost is too high": {func(b *blueprint.Blueprint) {
			b.Spec.Resources = []blueprint.Resource{config("a",
				"${lists.range(size(self.spec.text)).map(a, lists.range(size(self.spec.text)).map(b, b)).size()}")}
		}, "the cost of the expression exceeds 1000000"},
	}
}

// A hostile Blueprint is rejected, or its instance fails, within the memory and time limits. Afterwards, other
// Blueprints still compile and render.
func TestHostile(t *testing.T) {
	cases := hostileSpecs()
	maps.Copy(cases, hostileExpressions())
	for reason, c := range cases {
		t.Run(reason, func(t *testing.T) {
			b := read(ofWebsites(" []"))
			if err := unstructured.SetNestedField(b.Spec.Type.Schema, "string",
				"properties", "spec", "properties", "text", "type"); err != nil {
				t.Fatal(err)
			}
			c.change(b)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			got := hostileProblems(t, b)
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			allocated := (after.TotalAlloc - before.TotalAlloc) >> 20
			t.Logf("%v, %d MiB: %.200s", took, allocated, got)
			if !strings.Contains(got, c.want) || c.want == "" && got != "" {
				t.Errorf("got %.500s, want %q", got, c.want)
			}
			if len(got) > 32768 {
				t.Errorf("the message has %d bytes", len(got))
			}
			if allocated > 1024 {
				t.Errorf("%d MiB were allocated", allocated)
			}
			if s := step(t, compile(t, website, blueprint.Options{}), flowers, nil); len(s.Rendered) != 1 ||
				len(s.Problems) > 0 {
				t.Errorf("the next Blueprint fails: %+v", s)
			}
		})
	}
}
