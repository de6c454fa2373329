package platform

import (
	"maps"
	"slices"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdfake "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// A cache may show a Blueprint that is gone. No definition is made for it, which nobody would delete.
func TestADefinitionIsMadeForABlueprintThatIsThere(t *testing.T) {
	for name, c := range map[string]struct {
		change func(live *unstructured.Unstructured) // nil if there is none
		fails  error
		made   bool
	}{
		"it is there":         {change: func(*unstructured.Unstructured) {}, made: true},
		"it is gone":          {},
		"another is":          {change: func(live *unstructured.Unstructured) { live.SetUID("another") }},
		"it is being deleted": {change: func(live *unstructured.Unstructured) { live.SetDeletionTimestamp(&metav1.Time{Time: time.Now()}) }},
		"nobody can tell":     {change: func(*unstructured.Unstructured) {}, fails: apierrors.NewServiceUnavailable("etcd is down")},
	} {
		t.Run(name, func(t *testing.T) {
			b := &blueprint.Blueprint{Spec: making("Wheel")}
			b.Name, b.UID = "websites", "u"
			p, _ := fakePlatform(nil, nil)
			server := newFakeServer(nil)
			if c.change != nil {
				live := asObject(t, b)
				live.SetGroupVersionKind(blueprint.GroupVersionKind)
				c.change(live)
				if err := server.Tracker().Add(live); err != nil {
					t.Fatal(err)
				}
			}
			if c.fails != nil {
				server.fails("get", b.Name, c.fails)
			}
			crds := crdfake.NewClientset()
			p.client, p.crds = server, crds
			err := p.define(t.Context(), b, decision{judgement: judgement{definition: madeFor(t, b, "u")}})
			if (err != nil) != (c.fails != nil) {
				t.Errorf("define: %v", err)
			}
			if made := len(crds.Actions()) > 0; made != c.made {
				t.Errorf("it was made: %t, want %t", made, c.made)
			}
		})
	}
}

// A leader that ended between storing a generation and updating the definition has left the definition of the generation before.
func TestTheDefinitionOfALoadedRevisionIsApplied(t *testing.T) {
	all := generations("Wheel", "Wheel", "Missing")
	for i, field := range []string{"one", "two", "three"} {
		spec := all[i].Spec.Type.Schema["properties"].(map[string]any)["spec"].(map[string]any)
		spec["properties"] = map[string]any{field: map[string]any{"type": "string"}, "one": map[string]any{"type": "string"}}
	}
	fields := func(crd *apiextensionsv1.CustomResourceDefinition) (names []string) {
		return slices.Sorted(maps.Keys(crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties))
	}
	for name, test := range map[string]struct {
		there bool
		verb  string
	}{"instead of an older one": {true, "update"}, "if there is none": {false, "create"}} {
		t.Run(name, func(t *testing.T) {
			var there []*apiextensionsv1.CustomResourceDefinition
			crds := crdfake.NewClientset()
			if test.there {
				there = append(there, madeFor(t, all[0], "u"))
				crds = crdfake.NewClientset(there[0].DeepCopy())
			}
			object := asObject(t, all[2])
			object.SetGroupVersionKind(blueprint.GroupVersionKind)
			p, _ := fakePlatform([]*unstructured.Unstructured{object}, there, wheel)
			p.client, p.crds = storedClient{newFakeServer(nil, object), p.engines.Definitions.(*fakeEngine).secondary}, crds
			add(t, p, stored(t, all[0], 1), stored(t, all[1], 2))
			for _, replaced := range []bool{false, true} {
				if err := p.decide(t.Context(), blueprintID("websites")); err != nil {
					t.Fatal(err)
				}
				d, _ := p.registry.get("websites")
				if d.refusal == nil || d.onlyCleans() || d.running.generation != 2 {
					t.Fatalf("the decision is %+v", d)
				}
				if err := p.define(t.Context(), all[2], d); err != nil {
					t.Fatal(err)
				}
				now, err := crds.ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), "websites.shop.example.com", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if got := fields(now); !slices.Equal(got, []string{"one", "two"}) || now.Annotations[schemaKey] == "" || now.Annotations[madeByKey] != "u" {
					t.Errorf("the fields are %q, and the annotations %v", got, now.Annotations)
				}
				verbs := 0
				for _, action := range crds.Actions() {
					if action.GetVerb() == test.verb {
						verbs++
					}
				}
				if verbs != 1 {
					t.Errorf("there were %d requests to %s it, seen again: %t", verbs, test.verb, replaced)
				}
				_ = p.engines.Definitions.(*fakeEngine).secondary.Add(now)
			}
		})
	}
}
