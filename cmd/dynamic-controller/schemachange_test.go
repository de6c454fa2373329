package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// tanks is a Blueprint whose schema changes together with the template that reads it.
const tanks = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: tanks.GROUP, annotations: {platform.example.com/allow-incompatible-schema: "2"}}
spec:
  type:
    group: GROUP
    version: v1
    kind: Tank
    schema: {type: object, properties: {spec: SCHEMA}}
  resources:
    - id: tank
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-tank"}
        data: {text: "TEMPLATE"}
`

func tanksWith(schema, template string) string {
	return strings.NewReplacer("SCHEMA", schema, "TEMPLATE", template).Replace(tanks)
}

// record collects the results of f for the objects of a watch, without repetitions of the previous result for the same
// object. The returned function returns the results by the name of the object.
func (a *api) record(
	begin func(context.Context) (watch.Interface, error), f func(metav1.Object) string,
) func() map[string][]string {
	a.Helper()
	events, err := begin(a.Context())
	if err != nil {
		a.Fatal(err)
	}
	var mu sync.Mutex // guards seen
	seen := map[string][]string{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range events.ResultChan() {
			object, ok := event.Object.(metav1.Object)
			if !ok {
				continue
			}
			name, value := object.GetName(), f(object)
			mu.Lock()
			if all := seen[name]; value != "" && (len(all) == 0 || all[len(all)-1] != value) {
				seen[name] = append(all, value)
			}
			mu.Unlock()
		}
	}()
	a.Cleanup(func() {
		events.Stop()
		<-done
	})
	return func() map[string][]string {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(seen)
	}
}

// recordTexts records the texts of all ConfigMaps with the suffix.
func (a *api) recordTexts(suffix string) func() map[string][]string {
	a.Helper()
	return a.record(func(ctx context.Context) (watch.Interface, error) {
		return a.kube.CoreV1().ConfigMaps(a.namespace).Watch(ctx, metav1.ListOptions{})
	}, func(object metav1.Object) string {
		if !strings.HasSuffix(object.GetName(), suffix) {
			return ""
		}
		return object.(*corev1.ConfigMap).Data["text"]
	})
}

// A field with a default and the template that reads it change in one edit. No child is rendered from an instance that
// was read under the old schema, and the rollout does not stop.
func TestSchemaChange_IsRolledOutWithTheTemplateThatReadsIt(t *testing.T) {
	const before = "{type: object, properties: {text: {type: string}, free: " +
		"{type: object, x-kubernetes-preserve-unknown-fields: true}}}"
	properties := func(more string) string {
		return "{type: object, properties: {text: {type: string}, free: {type: object, " +
			"x-kubernetes-preserve-unknown-fields: true}, " + more + "}}"
	}
	for name, test := range map[string]struct{ schema, template, want string }{
		"a default is required": {
			properties("size: {type: integer, default: 3}"), "${string(self.spec.size)}", "3",
		},
		"a default is optional": {
			properties("size: {type: integer, default: 3}"), "${string(self.spec.?size.orValue(0))}", "3",
		},
		"has": {
			properties("size: {type: integer, default: 3}"), "${has(self.spec.size) ? 'yes' : 'no'}", "yes",
		},
		"a default in an object": {
			properties("disk: {type: object, default: {}, properties: {size: {type: integer, default: 3}}}"),
			"${string(self.spec.?disk.?size.orValue(0))}", "3",
		},
		"a required field": {
			"{type: object, required: [size], properties: {text: {type: string}, size: {type: integer, default: 3}, free: " +
				"{type: object, x-kubernetes-preserve-unknown-fields: true}}}",
			"${string(self.spec.?size.orValue(0))}", "3",
		},
		"pruned fields": {
			"{type: object, properties: {text: {type: string}, free: {type: object, properties: {kept: {type: string}}}}}",
			"${json.marshal(self.spec.free)}", `{"kept":"a"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			const instances = 6
			a := newAPI(t)
			startServing(t, a.cluster.Kubeconfig())
			a.apply(tanksWith(before, "old"))
			for i := range instances {
				a.apply(fmt.Sprintf("{apiVersion: GROUP/v1, kind: Tank, metadata: {name: t%d}, spec: "+
					"{text: a, free: {kept: a, pruned: b}}}", i))
			}
			a.waitBlueprint("tanks", all(is("Progressing", "True", "RolloutComplete"), hasCounts(instances, instances, 0)))
			texts := a.recordTexts("-tank")
			stopped := a.record(func(ctx context.Context) (watch.Interface, error) {
				return a.admin.Resource(schema.GroupVersionResource{
					Group: "platform.example.com", Version: "v1alpha1", Resource: "blueprints",
				}).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=tanks." + a.group})
			}, func(object metav1.Object) string {
				if is("Progressing", "False")(object.(*unstructured.Unstructured)) != nil {
					return ""
				}
				return fmt.Sprint(conditions(object.(*unstructured.Unstructured)))
			})
			a.apply(tanksWith(test.schema, test.template))
			a.waitBlueprint("tanks", all(has(int64(2), "status", "served", "generation"),
				is("Progressing", "True", "RolloutComplete"), hasCounts(instances, instances, 0)))
			for i := range instances {
				a.wait("v1", "ConfigMap", fmt.Sprintf("t%d-tank", i), has(test.want, "data", "text"))
			}
			for name, all := range texts() {
				if want := []string{"old", test.want}; !slices.Equal(all, want) {
					t.Errorf("%s: got texts %q, want %q", name, all, want)
				}
			}
			if len(texts()) != instances {
				t.Errorf("got texts of %d ConfigMaps, want %d", len(texts()), instances)
			}
			if all := stopped(); len(all) > 0 {
				t.Errorf("the rollout did not progress: %v", all)
			}
		})
	}
}

// The author of an existing type changes a default at the same time as the Blueprint. Nothing has stored the previous
// default, and an instance that contains it cannot be told from one that was created with it.
func TestSchemaChange_OfADefault(t *testing.T) {
	a := newAPI(t)
	first := startServing(t, a.cluster.Kubeconfig())
	withSize := func(size string) string {
		return changed(existingCRDWithStatus, change{"text: {type: string}", "text: {type: string}, size: " + size},
			change{"metadata: {name: websites.GROUP}",
				"metadata: {name: websites.GROUP, annotations: {platform.example.com/allowed-blueprint: websites.GROUP}}"})
	}
	named := func(template string) string {
		return changed(withNamedType("websites"), change{`"${self.spec.text}"`, `"` + template + `"`})
	}
	const instances = 6
	a.apply(withSize("{type: integer}"))
	a.wait(typeVersion, typeKind, "websites."+a.group, func(crd *unstructured.Unstructured) error {
		for _, c := range conditions(crd) {
			if c.Type == "Established" && c.Status == metav1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("the type is not established")
	})
	a.apply(named("old"))
	for i := range instances {
		a.apply(fmt.Sprintf("{apiVersion: GROUP/v1, kind: Website, metadata: {name: w%d}, spec: {text: a}}", i))
		a.wait("GROUP/v1", "Website", fmt.Sprintf("w%d", i), is("Ready", "True"))
	}
	a.apply(withSize("{type: integer, default: 3}"))
	a.wait("GROUP/v1", "Website", "w0", has(int64(3), "spec", "size"))
	// The cache of the next process contains the default.
	first.kill()
	startServing(t, a.cluster.Kubeconfig())
	a.apply("{apiVersion: GROUP/v1, kind: Website, metadata: {name: fence}, spec: {text: a}}")
	a.wait("GROUP/v1", "Website", "fence", is("Ready", "True"))

	texts := a.recordTexts("-page")
	a.apply(withSize("{type: integer, default: 5}"))
	a.apply(named("new ${string(self.spec.size)}"))
	for i := range instances {
		name := fmt.Sprintf("w%d-page", i)
		a.wait("v1", "ConfigMap", name, has("new 5", "data", "text"))
		if all := texts()[name]; slices.Contains(all, "new 3") {
			t.Errorf("%s: got texts %q", name, all)
		}
	}
}
