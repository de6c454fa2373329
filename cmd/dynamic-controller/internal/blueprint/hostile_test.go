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

// wide is a value of many small parts, deep is one in one in one.
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

// A hostileCase changes a Blueprint so that it requires excessive memory or time.
type hostileCase struct {
	change func(*blueprint.Blueprint)
	want   string // a problem of the Blueprint or of its instance, or empty
}

// hostileProblems compiles the Blueprint and renders an instance with a long text. It returns the problems of either.
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
		"a schema of many rules": {func(b *blueprint.Blueprint) {
			rules := make([]any, 5000)
			for i := range rules {
				rules[i] = map[string]any{"rule": "self.size > 1"}
			}
			b.Spec.Type.Schema["properties"].(map[string]any)["spec"].(map[string]any)["x-kubernetes-validations"] = rules
		}, "spec.type.schema: has more than 100 rules"},
		"a schema of many properties": {func(b *blueprint.Blueprint) {
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
		"ten thousand expressions": {func(b *blueprint.Blueprint) {
			b.Spec.Resources = []blueprint.Resource{config("a", strings.Repeat("${1}", 10_000))}
		}, "spec.resources: has 10000 expressions, more than 1000"},
		"expressions that are large together": {func(b *blueprint.Blueprint) {
			b.Spec.Resources = []blueprint.Resource{config("a", strings.Repeat("${'"+strings.Repeat("x", 1000)+"'}", 100))}
		}, "spec.resources: has 100200 bytes of expressions, more than 65536"},
		"a thousand expressions that are all wrong": {func(b *blueprint.Blueprint) {
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
		"everything refers to everything": {func(b *blueprint.Blueprint) {
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
		"a cycle of a hundred": {func(b *blueprint.Blueprint) {
			for i := range 100 {
				b.Spec.Resources = append(b.Spec.Resources,
					config(fmt.Sprint("a", i), fmt.Sprintf("${a%d.metadata.uid}", (i+1)%100)))
			}
		}, "a0 -> a1 -> a2"},
		"keys that are long": {func(b *blueprint.Blueprint) {
			b.Spec.Resources = []blueprint.Resource{config("a", "")}
			b.Spec.Resources[0].Template[strings.Repeat("${", 50_000)] = "x"
		}, "a key cannot contain expressions"},
		"a text that becomes large": {func(b *blueprint.Blueprint) {
			b.Spec.Resources = []blueprint.Resource{config("a", strings.Repeat("${self.spec.text}", 900))}
		}, "spec.resources[0].template: the object has more than 1048576 bytes"},
		"values that become large": {func(b *blueprint.Blueprint) {
			b.Spec.Resources = []blueprint.Resource{config("a",
				"${[self.spec].map(a, [a,a,a,a,a,a,a,a]).map(a, [a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a])}")}
		}, "spec.resources[0].template: the object has more than 1048576 bytes"},
		"many objects that are large together": {func(b *blueprint.Blueprint) {
			for i := range 100 {
				b.Spec.Resources = append(b.Spec.Resources, config(fmt.Sprint("a", i), strings.Repeat("${self.spec.text}", 9)))
			}
		}, "or all children of the instance more than 4194304"},
		"expressions that cost much together": {func(b *blueprint.Blueprint) {
			for i := range 100 {
				b.Spec.Resources = append(b.Spec.Resources, config(fmt.Sprint("a", i), "${lists.range(240).map(a, "+
					"lists.range(240).map(b, b)).size()}"))
			}
		}, "the expressions of this instance cost more than 10000000 together"},
		"one that costs too much": {func(b *blueprint.Blueprint) {
			b.Spec.Resources = []blueprint.Resource{config("a",
				"${lists.range(size(self.spec.text)).map(a, lists.range(size(self.spec.text)).map(b, b)).size()}")}
		}, "the expression costs more than 1000000"},
	}
}

// A hostile Blueprint is rejected, or its instance fails, within the limits of memory and time. Other Blueprints are
// compiled and rendered as usual afterwards.
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
				t.Errorf("a message of %d bytes", len(got))
			}
			if allocated > 1024 {
				t.Errorf("%d MiB were allocated", allocated)
			}
			if s := step(t, compile(t, website, blueprint.Options{}), flowers, nil); len(s.Rendered) != 1 ||
				len(s.Problems) > 0 {
				t.Errorf("another afterwards: %+v", s)
			}
		})
	}
}
