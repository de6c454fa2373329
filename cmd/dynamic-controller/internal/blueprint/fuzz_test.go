package blueprint_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
)

// FuzzTemplate puts any string into a template, as a value and as a condition: it is refused or rendered, the same each
// time, within its limits.
func FuzzTemplate(f *testing.F) {
	for _, s := range []string{
		"", "plain", "$${a}", "${self.spec.size}", "x-${self.spec.name}-${self.spec.size}",
		"${self.spec.tags.map(t, t + 'x')}",
		"${{'a': {'b': self.spec.free}}}", "${other.metadata.uid}", "${self.spec.?missing}", "${other.status.list[0].ip}",
		"${'}' + \"${\"}",
		"${quantity('1Gi').asInteger()}", "${lists.range(10).map(i, string(i)).join(',')}", "${'a'.matches('(a|b)*')}",
		"${cel.bind(a, [1], [a, a])}",
		"${self.spec.tags.transformMap(i, v, v)}", "${[1, 2, 3].sortBy(a, -a)}", "${base64.encode(b'x')}", "${r'\\'}",
		"${'%s'.format([self])}",
		"${[[1]].map(a, [a, a]).map(a, [a, a])}", "${sets.contains([1], [1])}", "${ip('1.2.3.4').family()}",
		"${url('http://a/b').getHost()}",
		"${optional.none()}", "${timestamp('2026-01-01T00:00:00Z')}", "${self.metadata.labels.`a/b`}",
		"${has(self.spec.owner.email)}", "${1.0 / 0.0}",
	} {
		f.Add(s)
	}
	self, other := object(flowers), object(`{metadata: {uid: u}, status: {list: []}}`)
	f.Fuzz(func(t *testing.T, s string) {
		b := read(ofWebsites(" []"))
		b.Spec.Resources = []blueprint.Resource{
			config("a", s),
			config("other", ""),
			{ID: "b", Template: config("b", s).Template, ReadyWhen: []string{s}},
		}
		b.Spec.Resources[2].Template["list"] = []any{s, map[string]any{"in": s}}
		exercise(t, b, self, map[string]*unstructured.Unstructured{"other": other, "b": other})
	})
}

// FuzzBlueprint makes Blueprints of any YAML, and serves those that compile.
func FuzzBlueprint(f *testing.F) {
	f.Add(website)
	f.Add(ofWebsites(chain))
	f.Add(withData(`"${self.spec.name}"`))
	f.Add(ofType(plain))
	f.Add(ofWebsites(`
    - {id: a, template: {apiVersion: shop.example.com/v1, kind: Crate, metadata: {name: a},
        spec: {size: "3", tags: ["${self.spec.name}", 1], free: {a: {}}, parts: [{}]}}}`))
	f.Add(ofWebsites(`
    - {id: a, template: {apiVersion: v1, kind: Crate, metadata: {name: a, lables: x},
        spec: {size: "${self.spec.name}", labels: {a: "x${self.spec.size}"}, color: "$${blue}", raw: {}, owner: []}}}`))
	f.Add("{spec: {type: {crd: a.b}, resources: [{id: a, template: {apiVersion: v1, kind: A, metadata: {name: " +
		"'${self.a}'}}}]}}")
	f.Add(ofType("schema: {properties: {spec: {type: object, additionalProperties: {type: array, items: {type: string, " +
		"default: x, pattern: a}}}}}"))
	f.Fuzz(func(t *testing.T, text string) {
		raw, err := yaml.ToJSON([]byte(text))
		if err != nil || len(raw) > 1<<20 {
			return
		}
		var u unstructured.Unstructured
		if err := yaml.Unmarshal(raw, &u.Object); err != nil || u.Object == nil {
			return
		}
		b, err := blueprint.FromUnstructured(&u)
		if err != nil {
			return
		}
		exercise(t, b, object(flowers), nil)
	})
}

// exercise compiles a Blueprint and steps an instance of it, twice each.
func exercise(t *testing.T, b *blueprint.Blueprint, self *unstructured.Unstructured,
	observed map[string]*unstructured.Unstructured) {
	t.Helper()
	before, _ := json.Marshal(b)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	compiled, err := blueprint.Compile(b, blueprint.Options{})
	if _, again := blueprint.Compile(b, blueprint.Options{}); !same(err, again) {
		t.Fatalf("compiled again:\n%v\nbefore:\n%v", again, err)
	}
	if after, _ := json.Marshal(b); string(after) != string(before) {
		t.Fatal("Compile changed the Blueprint")
	}
	if _, checked := blueprint.Compile(b, describing(t, definitionOf(t, crates))); checked == nil && err != nil {
		t.Fatalf("checked against schemas it is taken, and otherwise refused: %v", err)
	}
	var problems blueprint.Problems
	if err != nil {
		if !errors.As(err, &problems) || len(problems) == 0 || len(err.Error()) > 32768 || compiled != nil {
			t.Fatalf("refused by %T %.1000v", err, err)
		}
		return
	}
	selfBefore := self.DeepCopy()
	s, err := compiled.Instance(self).Step(ctx, observed)
	if err != nil {
		t.Fatal(err)
	}
	if limit := uint64(blueprint.MaxInstanceCost + 2*expression.PerCallLimit); s.Cost > 2*limit {
		t.Fatalf("it cost %d", s.Cost)
	}
	for _, r := range s.Rendered {
		raw, err := json.Marshal(r.Object.Object)
		if err != nil || len(raw) > 8*blueprint.MaxObjectBytes {
			t.Fatalf("rendered %d bytes, %v", len(raw), err)
		}
		r.Object.DeepCopy() // panics on what is no JSON value
	}
	again, err := compiled.Instance(self).Step(ctx, observed)
	if d := cmp.Diff(s, again); err != nil || d != "" {
		t.Fatalf("a step again: %v\n%s", err, d)
	}
	if d := cmp.Diff(selfBefore, self); d != "" {
		t.Fatalf("a step changed self:\n%s", d)
	}
}

func same(a, b error) bool {
	return (a == nil) == (b == nil) && (a == nil || strings.EqualFold(a.Error(), b.Error()))
}
