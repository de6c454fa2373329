package blueprint_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
)

// FuzzTemplate puts any string into a template as a value and as a condition. The template must be rejected or rendered
// within the limits, and the result must be repeatable.
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
		"${has(self.spec.owner.email)}", "${1.0 / 0.0}", "${lists.range(7)}", "${[{'a': self}]}", "${item}", "${c}",
		"${each}", "${c.map(x, x.metadata.name)}", "${each.data.x == item}", "${settings.data.a}", "${size(found)}",
		"${found[0].metadata.name}", "${found}",
		"${json.marshal(self)}", `${json.unmarshal('{"a": [1, null]}').a[0]}`,
		"${json.unmarshal(json.marshal(self.spec.free))}",
		"${'%x'.format([hash.sha256(self.spec.name)])}", "${base64.encode(hash.md5('') + hash.fnv64a('a'))}",
		"${random.seededString(8, self.spec.name)}", "${random.seededInt(-1, 9, 'a')}",
		"${{'a': 'x'}.merge(self.spec.labels)}", "${{'a': {'b': 1}}.deepMerge(self.spec.free)}",
		"${lists.setAtIndex(self.spec.tags, 0, 'x')}", "${lists.insertAtIndex([], 0, omit())}",
		"${lists.removeAtIndex(other.status.list, 0)}", "${'äb'.reverse()}",
		"self.spec.size > 1", "has(each.data) && each.data.x == item", "b.metadata.uid == 'u'",
		"other.status.list.size() > 0",
		"has(settings.spec) && size(found) == 1",
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
		b = read(ofWebsites(" []"))
		b.Spec.Resources = []blueprint.Resource{config("other", "")}
		b.Spec.Type.Status = map[string]any{"a": s, "b": []any{s, map[string]any{"in": s}}}
		b.Spec.Type.Conditions = []blueprint.Condition{
			{Type: "A", Status: "true", Reason: s, Message: s}, {Type: "B", Status: s},
		}
		exercise(t, b, self, map[string]*unstructured.Unstructured{"other": other})

		c := blueprint.Resource{ID: "c", Template: config("c", s).Template, ForEach: []map[string]string{{"item": s}}}
		c.Template["metadata"] = map[string]any{"name": "c-${item}"}
		d := blueprint.Resource{ID: "d", Template: config("d", s).Template, ReadyWhen: []string{s},
			ForEach: []map[string]string{{"item": "${self.spec.tags}"}}}
		d.Template["metadata"] = c.Template["metadata"]
		for _, r := range []blueprint.Resource{c, d} {
			b.Spec.Resources = []blueprint.Resource{config("other", ""), r}
			exercise(t, b, self, map[string]*unstructured.Unstructured{"other": other, "c/shop/c-a": other, "d/shop/c-a": other})
		}

		b.Spec.Resources = []blueprint.Resource{
			config("other", ""),
			referTo("settings", blueprint.ExternalRefMetadata{Name: s, Namespace: "${self.metadata.namespace}"}),
			referTo("found", blueprint.ExternalRefMetadata{Selector: &metav1.LabelSelector{
				MatchLabels: map[string]string{"a": s, "b": s},
				MatchExpressions: []metav1.LabelSelectorRequirement{
					{Key: "a", Operator: metav1.LabelSelectorOpIn, Values: []string{s}},
				},
			}}),
		}
		exercise(t, b, self, map[string]*unstructured.Unstructured{"other": other})

		b.Spec.Resources = []blueprint.Resource{
			referTo("settings", blueprint.ExternalRefMetadata{Name: "a"}),
			referTo("found", blueprint.ExternalRefMetadata{Selector: &metav1.LabelSelector{}}),
			{ID: "b", Template: config("b", "").Template, IncludeWhen: []string{s, "has(settings.spec)"}},
		}
		exercise(t, b, self, nil)

		c.IncludeWhen = []string{"size(found) > 0"}
		b.Spec.Resources = append(b.Spec.Resources[:2:2], c)
		exercise(t, b, self, nil)
	})
}

// referTo returns a resource that refers to existing ConfigMaps.
func referTo(id string, metadata blueprint.ExternalRefMetadata) blueprint.Resource {
	return blueprint.Resource{ID: id, ExternalRef: &blueprint.ExternalRef{
		APIVersion: "v1", Kind: "ConfigMap", Metadata: metadata,
	}}
}

// FuzzBlueprint compiles Blueprints from any YAML and steps an instance of those that are valid.
func FuzzBlueprint(f *testing.F) {
	f.Add(website)
	f.Add(ofWebsites(chain))
	f.Add(withData(`"${self.spec.name}"`))
	f.Add(reporting(`status: {a: "${crate.spec.size}", b: {c: ["x${self.spec.name}"]}}
    conditions: [{type: A, status: crate.status.up, reason: "${self.spec.name}", message: "a ${crate.status.up}"}]`,
		parts))
	f.Add(ofType(plain))
	f.Add(ofWebsites(`
    - {id: a, template: {apiVersion: shop.example.com/v1, kind: Crate, metadata: {name: a},
        spec: {size: "3", tags: ["${self.spec.name}", 1], free: {a: {}}, parts: [{}]}}}`))
	f.Add(ofWebsites(`
    - {id: a, template: {apiVersion: v1, kind: Crate, metadata: {name: a, lables: x},
        spec: {size: "${self.spec.name}", labels: {a: "x${self.spec.size}"}, color: "$${blue}", raw: {}, owner: []}}}`))
	f.Add(ofWebsites(`
    - {id: a, forEach: [{tag: "${self.spec.tags}"}, {num: "${lists.range(3)}"}],
        readyWhen: ["each.metadata.name != ''"], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${tag}-${num}"}}}
    - {id: b, forEach: [{page: "${a}"}], template: {apiVersion: v1, kind: Crate,
        metadata: {name: "${page.metadata.name}"}, spec: {size: "${a.size()}"}}}`))
	f.Add("{spec: {type: {crd: a.b}, resources: [{id: a, template: {apiVersion: v1, kind: A, metadata: {name: " +
		"'${self.a}'}}}]}}")
	f.Add(ofWebsites(referring("{name: a}") + included("open", "a") + included("closed", "a")))
	f.Add(ofWebsites(referring("{selector: {matchLabels: {a: '${self.spec.name}'}}}") + `
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a},
        data: {k: "${string(size(settings))}"}}}`))
	f.Add(reporting(`status: {names: "${pages.map(p, p.metadata.name)}", first: "${settings.data.a}"}
    conditions: [{type: Full, status: "size(pages) > size(found)", message: "${string(size(pages))} pages"}]`,
		referring("{name: '${self.spec.name}-settings', namespace: '${self.metadata.namespace}'}")+`
    - {id: found, externalRef: {apiVersion: v1, kind: ConfigMap, metadata: {selector: {matchExpressions: [
        {key: a, operator: In, values: ["${self.spec.name}"]}]}}}}
    - {id: pages, forEach: [{f: "${found}"}, {tag: "${self.spec.tags}"}], includeWhen: [has(settings.data)],
        readyWhen: [has(each.data), "each.data.k == self.spec.name"], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${f.metadata.name}-${tag}"}, data: {k: "${settings.data.a}"}}}`))
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

// exercise compiles a Blueprint and steps one instance of it. It does both twice and compares the results.
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
		t.Fatalf("Compile succeeds with schemas and fails without: %v", err)
	}
	var problems blueprint.Problems
	if err != nil {
		if !errors.As(err, &problems) || len(problems) == 0 || len(err.Error()) > 32768 || compiled != nil {
			t.Fatalf("Compile returned %T %.1000v, want Problems", err, err)
		}
		return
	}
	selfBefore := self.DeepCopy()
	instance := compiled.Instance(self).WithLookup(func(context.Context, blueprint.Reference) (
		[]*unstructured.Unstructured, error) {
		return []*unstructured.Unstructured{self}, nil
	})
	s, err := instance.Step(ctx, observed)
	if err != nil {
		t.Fatal(err)
	}
	if limit := uint64(blueprint.MaxInstanceCost + 2*expression.PerCallLimit); s.Cost > 2*limit {
		t.Fatalf("the step cost %d", s.Cost)
	}
	if raw, err := json.Marshal(s.Report); err != nil || len(raw) > 8*blueprint.MaxStatusBytes {
		t.Fatalf("reported %d bytes, %v", len(raw), err)
	}
	for _, r := range s.Rendered {
		raw, err := json.Marshal(r.Object.Object)
		if err != nil || len(raw) > 8*blueprint.MaxObjectBytes {
			t.Fatalf("rendered %d bytes, %v", len(raw), err)
		}
		r.Object.DeepCopy() // panics if a value is not a JSON value
	}
	again, err := instance.Step(ctx, observed)
	if d := cmp.Diff(s, again); err != nil || d != "" {
		t.Fatalf("a repeated step: %v\n%s", err, d)
	}
	if d := cmp.Diff(selfBefore, self); d != "" {
		t.Fatalf("a step changed self:\n%s", d)
	}
}

func same(a, b error) bool {
	return (a == nil) == (b == nil) && (a == nil || strings.EqualFold(a.Error(), b.Error()))
}
