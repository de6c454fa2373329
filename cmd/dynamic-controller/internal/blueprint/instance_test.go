package blueprint_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

const flowers = `
apiVersion: shop.example.com/v1
kind: Website
metadata: {name: flowers, namespace: shop}
spec: {size: 2, name: Flowers, tags: [a, b], ratio: 1.5, free: {none: null}}`

func compile(t testing.TB, text string, options blueprint.Options) *blueprint.Compiled {
	t.Helper()
	compiled, err := blueprint.Compile(read(text), options)
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

func step(t testing.TB, compiled *blueprint.Compiled, self string, observed map[string]string) blueprint.Step {
	t.Helper()
	there := map[string]*unstructured.Unstructured{}
	for id, text := range observed {
		there[id] = object(text)
	}
	s, err := compiled.Instance(object(self)).Step(context.Background(), there)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStep_values(t *testing.T) {
	for reason, c := range map[string]struct{ value, want, problem string }{
		"an integer": {value: `"${self.spec.size + 1}"`, want: `3`},
		"a number":   {value: `"${self.spec.ratio * 2.0}"`, want: `3`},
		"a boolean":  {value: `"${self.spec.size == 2}"`, want: `true`},
		"a list":     {value: `"${self.spec.tags + ['c']}"`, want: `["a","b","c"]`},
		"a map": {
			value: `"${{'a': self.spec.size, 'b': [{'c': 'd'}]}}"`,
			want:  `{"a":2,"b":[{"c":"d"}]}`,
		},
		"null":                {value: `"${null}"`, want: `null`},
		"bytes become base64": {value: `"${b'abc'}"`, want: `"YWJj"`},
		"a time": {
			value: `"${timestamp('2026-01-02T03:04:05Z') + duration('1s')}"`,
			want:  `"2026-01-02T03:04:06Z"`,
		},
		"values within text": {
			value: `"${self.spec.name}-${self.spec.size}-${1.5}-${true}-${1u}"`,
			want:  `"Flowers-2-1.5-true-1"`,
		},
		"spaces around an expression make it text":    {value: `" ${self.spec.size}"`, want: `" 2"`},
		"an escaped expression is text":               {value: `"$${self.spec.size}"`, want: `"${self.spec.size}"`},
		"an escaped expression next to a real one":    {value: `["$${a}", "${self.spec.size}"]`, want: `["${a}",2]`},
		"a string that is only an escaped expression": {value: `{a: ["$${a}"]}`, want: `{"a":["${a}"]}`},
		"an absent optional field is omitted": {
			value: `{a: "${self.spec.?missing}", b: "${self.spec.?name}"}`,
			want:  `{"b":"Flowers"}`,
		},
		"an absent optional item is omitted": {
			value: `["${self.spec.?missing}", "${self.spec.?size}"]`,
			want:  `[2]`,
		},
		"an absent optional value in a literal": {value: `"${[self.spec.?missing, optional.of(1)]}"`, want: `[1]`},
		"a missing field is reported with its path": {
			value:   `"${self.spec.owner.email}"`,
			problem: "${self.spec.owner.email}: self.spec.owner does not exist; test it with has(), or read it with ?",
		},
		"a missing item is reported with its path": {
			value:   `"${self.spec.tags[7]}"`,
			problem: "self.spec.tags[7] does not exist",
		},
		"null within text": {
			value:   `"x${self.spec.free.none}"`,
			problem: "is of type null_type; text can contain only",
		},
		"a number that JSON cannot represent": {
			value:   `"${1.0 / 0.0}"`,
			problem: "+Inf cannot be represented in JSON",
		},
		"a map with keys other than strings": {
			value:   `"${{1: 2}}"`,
			problem: "has a map key of type int, not string",
		},
		"a quantity": {
			value:   `"${quantity('1Gi')}"`,
			problem: "is of type kubernetes.Quantity, which an object cannot contain",
		},
		"a failed evaluation": {
			value:   `"${self.spec.size / 0}"`,
			problem: "${self.spec.size / 0}: division by zero",
		},
		"an absent optional value within text": {value: `"x${dyn(self.spec.?missing)}"`, problem: "text can contain only"},
	} {
		t.Run(reason, func(t *testing.T) {
			text := strings.Replace(withData(c.value), "id: map", "id: config", 1)
			s := step(t, compile(t, text, blueprint.Options{}), flowers, nil)
			if c.problem != "" {
				if len(s.Problems) != 1 || !strings.Contains(s.Problems[0].String(), c.problem) || s.Ready {
					t.Errorf("problems %q, want %q", s.Problems, c.problem)
				}
				return
			}
			if len(s.Problems) > 0 || len(s.Rendered) != 1 {
				t.Fatalf("step %+v", s)
			}
			data := s.Rendered[0].Object.Object["data"].(map[string]any)
			if got, _ := json.Marshal(data["k"]); string(got) != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			s.Rendered[0].Object.DeepCopy() // panics if a value is not a JSON value
		})
	}
}

// chain defines three resources in reverse order. Each refers to the next one.
const chain = `
    - id: web
      readyWhen: ["true"]
      template: {apiVersion: apps/v1, kind: Deployment, metadata: {name: "${self.metadata.name}"},
        spec: {host: "${service.status.ip}"}}
    - id: service
      includeWhen: [self.spec.size > 1]
      readyWhen: ["database.spec.x == 1"]
      template: {apiVersion: v1, kind: Service, metadata: {name: "${self.metadata.name}"},
        spec: {uid: "${database.metadata.uid}"}}
    - id: database
      readyWhen: [database.status.phase == 'Up', has(self.spec.size)]
      template: {apiVersion: v1, kind: Secret, metadata: {name: db}}`

func TestStep_inOrder(t *testing.T) {
	const (
		absent   = ""
		starting = `{metadata: {uid: u1}}`
		down     = `{metadata: {uid: u1}, status: {phase: Down}}`
		up       = `{metadata: {uid: u1}, status: {phase: Up}}`
		noUID    = `{metadata: {}, status: {phase: Up}}`
		pending  = `{metadata: {}}`
		there    = `{status: {ip: 1.2.3.4}}`
	)
	for reason, c := range map[string]struct {
		self              string
		database, service string
		web               string
		want              string
	}{
		"resources without references are rendered first": {
			want: "rendered [database] waiting [service: waiting for database web: waiting for service] unready [database: " +
				"does not exist yet] excluded []",
		},
		"readyWhen reads a missing field": {
			database: starting,
			want: "rendered [database] waiting [service: waiting for database web: waiting for service] unready [database: " +
				"waiting for readyWhen \"database.status.phase == 'Up'\": database.status does not exist] excluded []",
		},
		"readyWhen is false": {
			database: down,
			want: "rendered [database] waiting [service: waiting for database web: waiting for service] unready [database: " +
				"waiting for readyWhen \"database.status.phase == 'Up'\"] excluded []",
		},
		"the next resource is rendered when the first is ready": {
			database: up,
			want: "rendered [database service] waiting [web: waiting for service] unready [service: does not exist yet] " +
				"excluded []",
		},
		"a reference to a missing field of a ready resource": {
			database: noUID,
			want: "rendered [database] waiting [service: waiting for database.metadata.uid, which " +
				"spec.resources[1].template.spec.uid reads web: waiting for service] unready [] excluded []",
		},
		"a reference to a missing field of a resource without readyWhen": {
			database: up, service: pending,
			want: "rendered [database service] waiting [web: waiting for service.status, which " +
				"spec.resources[0].template.spec.host reads] unready [] excluded []",
		},
		"the last resource does not exist yet": {
			database: up, service: there,
			want: "rendered [database service web] waiting [] unready [web: does not exist yet] excluded []",
		},
		"all resources are ready": {
			database: up, service: there, web: `{}`,
			want: "rendered [database service web] waiting [] unready [] excluded [] ready",
		},
		"an excluded resource excludes the resources that refer to it": {
			self:     strings.Replace(flowers, "size: 2", "size: 1", 1),
			database: up, service: there,
			want: "rendered [database] waiting [] unready [] excluded [service web] ready",
		},
		"a resource is excluded before its references exist": {
			self: strings.Replace(flowers, "size: 2", "size: 1", 1),
			want: "rendered [database] waiting [] unready [database: does not exist yet] excluded [service web]",
		},
		"includeWhen fails": {
			self:     strings.Replace(flowers, "size: 2, ", "", 1),
			database: down,
			want: "rendered [database] waiting [web: waiting for service, which has an error] unready [database: waiting for " +
				"readyWhen \"database.status.phase == 'Up'\"] excluded []" +
				" problems spec.resources[1].includeWhen[0]: ${self.spec.size > 1}: self.spec.size does not exist; test it with " +
				"has(), or read it with ?",
		},
	} {
		t.Run(reason, func(t *testing.T) {
			compiled := compile(t, ofWebsites(strings.Replace(chain, `readyWhen: ["database.spec.x == 1"]`, "", 1)),
				blueprint.Options{})
			observed := map[string]string{}
			for id, text := range map[string]string{"database": c.database, "service": c.service, "web": c.web} {
				if text != absent {
					observed[id] = text
				}
			}
			self := c.self
			if self == "" {
				self = flowers
			}
			s := step(t, compiled, self, observed)
			var rendered []string
			for _, r := range s.Rendered {
				rendered = append(rendered, r.ID)
			}
			got := fmt.Sprint("rendered ", rendered, " waiting ", s.Waiting, " unready ", s.Unready, " excluded ", s.Excluded)
			if s.Ready {
				got += " ready"
			}
			if len(s.Problems) > 0 {
				got += " problems " + s.Problems.Error()
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestStep_places(t *testing.T) {
	inNone := strings.Replace(flowers, ", namespace: shop", "", 1)
	known := func(gvk schema.GroupVersionKind) (bool, bool) { return gvk.Kind == "ConfigMap", true }
	for reason, c := range map[string]struct {
		template, self string
		options        blueprint.Options
		want           string
	}{
		"a namespaced object without a namespace": {
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}`, flowers, blueprint.Options{IsNamespaced: known}, "shop/a",
		},
		"an object with a namespace": {
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: "${self.spec.name.lowerAscii()}"}}`, flowers,
			blueprint.Options{}, "flowers/a",
		},
		"a cluster-scoped object": {
			`{apiVersion: v1, kind: Namespace, metadata: {name: a}}`, flowers, blueprint.Options{IsNamespaced: known}, "/a",
		},
		"an object whose scope is unknown": {
			`{apiVersion: v1, kind: Foo, metadata: {name: a}}`, flowers, blueprint.Options{}, "shop/a",
		},
		"a namespaced object of an instance without a namespace": {
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}`, inNone, blueprint.Options{IsNamespaced: known},
			"spec.resources[0].template.metadata.namespace: is required, because the instance has no namespace",
		},
		"an empty name": {
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: "${self.spec.name.replace('Flowers', '')}"}}`, flowers,
			blueprint.Options{}, "spec.resources[0].template.metadata.name: must not be empty",
		},
		"a name that is absent": {
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: "${dyn(self.spec.?live)}"}}`, flowers, blueprint.Options{},
			"spec.resources[0].template.metadata.name: must not be empty",
		},
		"an empty namespace": {
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: "${''}"}}`, flowers, blueprint.Options{},
			"spec.resources[0].template.metadata.namespace: must not be empty",
		},
	} {
		t.Run(reason, func(t *testing.T) {
			s := step(t, compile(t, allowingNamespaces(ofWebsites("\n    - {id: a, template: "+c.template+"}"), "*"), c.options),
				c.self, nil)
			got := s.Problems.Error()
			if len(s.Rendered) > 0 {
				got = s.Rendered[0].Object.GetNamespace() + "/" + s.Rendered[0].Object.GetName()
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestStep_labelsAndAnnotations(t *testing.T) {
	at := "spec.resources[0].template.metadata."
	for reason, c := range map[string]struct{ metadata, want string }{
		"strings": {
			`labels: {a: "${string(self.spec.size)}"}, annotations: "${{'b': self.spec.name}}"`, "map[a:2] map[b:Flowers]",
		},
		"an absent label is omitted": {
			`labels: {a: "${self.spec.?missing.hasValue() ? optional.of('x') : optional.none()}", b: b}`, "map[b:b] map[]",
		},
		"absent labels and null annotations": {`labels: "${optional.none()}", annotations: null`, "map[] map[]"},
		"an expression that yields a number": {
			`labels: {app: a, b: "${dyn(self.spec.size)}"}`, at + "labels.b: must be a string; convert it with string()",
		},
		"an expression that yields a map of numbers": {
			`annotations: "${{'a/b': self.spec.size}}"`, at + `annotations["a/b"]: must be a string; convert it with string()`,
		},
		"an expression that yields null": {
			`annotations: {a: "${null}"}`, "spec.resources[0].template.metadata.annotations.a",
		},
		"an expression that yields a list instead of a map": {
			`labels: "${self.spec.tags}"`, at + "labels: must be a map of strings",
		},
	} {
		t.Run(reason, func(t *testing.T) {
			text := ofWebsites("\n    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a, " + c.metadata +
				"}}}")
			compiled, err := blueprint.Compile(read(text), blueprint.Options{})
			if err != nil {
				if !strings.Contains(err.Error(), c.want) {
					t.Errorf("rejected: %v", err)
				}
				return
			}
			s, err := compiled.Instance(object(flowers)).Step(context.Background(), nil)
			if err != nil {
				t.Fatal(err)
			}
			got := s.Problems.Error()
			if len(s.Rendered) > 0 {
				got = fmt.Sprint(s.Rendered[0].Object.GetLabels(), s.Rendered[0].Object.GetAnnotations())
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// Fields that the platform writes are invisible to expressions, whether or not the schema of the type is known.
func TestStep_ignoresPlatformFields(t *testing.T) {
	const written = `
metadata: {name: flowers, namespace: shop, resourceVersion: "7", managedFields: [{manager: m}], finalizers: [a/b],
  generation: 3}
status: {observedGeneration: 3, conditions: [{type: Ready, status: "True"}], url: u}`
	compiled := compile(t, `
spec:
  type: {crd: websites.shop.example.com}
  resources:
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a},
        data: {metadata: "${self.metadata}", status: "${self.?status}"}}}`, blueprint.Options{})
	for self, want := range map[string]string{
		written: `{"metadata":{"generation":3,"name":"flowers","namespace":"shop"},"status":{"url":"u"}}`,
		strings.ReplaceAll(written, ", url: u", ""): `{"metadata":{"generation":3,"name":"flowers","namespace":"shop"}}`,
	} {
		instance := object(self)
		before := instance.DeepCopy()
		s, err := compiled.Instance(instance).Step(context.Background(), nil)
		if err != nil || len(s.Rendered) != 1 {
			t.Fatalf("%v, %v", s.Problems, err)
		}
		if got, _ := json.Marshal(s.Rendered[0].Object.Object["data"]); string(got) != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if d := cmp.Diff(before, instance); d != "" {
			t.Errorf("the instance was changed:\n%s", d)
		}
	}
}

func TestStep_sameObjectTwice(t *testing.T) {
	s := step(t, compile(t, ofWebsites(`
    - {id: a, template: {apiVersion: apps/v1, kind: Deployment, metadata: {name: flowers}}}
    - {id: b, template: {apiVersion: apps/v1beta1, kind: Deployment,
        metadata: {name: "${self.metadata.name}"}}}`), blueprint.Options{}), flowers, nil)
	if len(s.Rendered) != 1 || s.Problems.Error() != "spec.resources[1].template.metadata.name: Deployment flowers is "+
		"already rendered by a; use a different name" {
		t.Errorf("step %+v", s)
	}
}

func TestStep_isPureAndRepeatable(t *testing.T) {
	compiled := compile(t, ofWebsites(strings.Replace(chain, `readyWhen: ["database.spec.x == 1"]`, "", 1)+`
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a},
        data: {all: "${self.spec}", tags: ["${self.spec.tags}", {a: [b]}]}}}`), blueprint.Options{})
	self, database := object(flowers), object(`{metadata: {uid: u1}, status: {phase: Up}}`)
	selfBefore, databaseBefore := self.DeepCopy(), database.DeepCopy()
	observed := map[string]*unstructured.Unstructured{"database": database}
	first, err := compiled.Instance(self).Step(context.Background(), observed)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := json.Marshal(first)
	var running sync.WaitGroup
	for range 8 {
		running.Go(func() {
			for range 20 {
				again, err := compiled.Instance(self).Step(context.Background(), observed)
				if got, _ := json.Marshal(again); err != nil || string(got) != string(want) {
					t.Errorf("a repeated step: %v\n%s\nwant\n%s", err, got, want)
				}
				for _, r := range again.Rendered { // The caller can modify the result.
					scribble(r.Object.Object)
				}
			}
		})
	}
	running.Wait()
	if d := cmp.Diff(selfBefore, self) + cmp.Diff(databaseBefore, database); d != "" {
		t.Errorf("a step changed its arguments:\n%s", d)
	}
}

func scribble(v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, inner := range v {
			scribble(inner)
		}
		v["scribbled"] = true
	case []any:
		for i, inner := range v {
			scribble(inner)
			v[i] = "scribbled"
		}
	}
}

func TestStep_stopsWhenContextIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("the term has ended")
	cancel(why)
	compiled := compile(t,
		strings.Replace(withData(`"${lists.range(9000).map(i, i + self.spec.size).size()}"`), "id: map", "id: config", 1),
		blueprint.Options{})
	if _, err := compiled.Instance(object(flowers)).Step(ctx, nil); !errors.Is(err, why) {
		t.Errorf("Step: %v, want %v", err, why)
	}
}
