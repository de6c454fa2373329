package acceptance

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
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/test/platformtest"
)

// The cache can contain a Blueprint that has been deleted. Nothing would delete a CustomResourceDefinition created for
// it.
func TestCRDApplier_CreatesCRDOnlyForExistingBlueprints(t *testing.T) {
	for name, c := range map[string]struct {
		change func(live *unstructured.Unstructured) // nil if the Blueprint does not exist
		fails  error
		made   bool
	}{
		"unchanged": {change: func(*unstructured.Unstructured) {}, made: true},
		"deleted":   {},
		"replaced":  {change: func(live *unstructured.Unstructured) { live.SetUID("another") }},
		"being deleted": {
			change: func(live *unstructured.Unstructured) { live.SetDeletionTimestamp(&metav1.Time{Time: time.Now()}) },
		},
		"API server unavailable": {
			change: func(*unstructured.Unstructured) {},
			fails:  apierrors.NewServiceUnavailable("etcd is down"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := &blueprint.Blueprint{Spec: making("Wheel")}
			b.Name, b.UID = "websites", "u"
			p, _ := newTestController(nil, nil)
			server := platformtest.NewServer(nil)
			if c.change != nil {
				live := asObject(t, b)
				live.SetGroupVersionKind(blueprint.GroupVersionKind)
				c.change(live)
				if err := server.Tracker().Add(live); err != nil {
					t.Fatal(err)
				}
			}
			if c.fails != nil {
				server.Fails("get", b.Name, c.fails)
			}
			crds := crdfake.NewClientset()
			p.use(server, crds)
			applied, err := p.blueprints.crds.apply(t.Context(), b, madeFor(t, b, "u"), nil)
			if (err != nil) != (c.fails != nil) || applied != c.made {
				t.Errorf("apply: %t, %v", applied, err)
			}
			if made := len(crds.Actions()) > 0; made != c.made {
				t.Errorf("created: %t, want %t", made, c.made)
			}
		})
	}
}

// The newest generation is rejected. The CustomResourceDefinition of the served one has been deleted or reset.
func TestCRDApplier_AppliesCRDOfServedRevision(t *testing.T) {
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
	}{"older definition": {true, "update"}, "no definition": {false, "create"}} {
		t.Run(name, func(t *testing.T) {
			var there []*apiextensionsv1.CustomResourceDefinition
			crds := crdfake.NewClientset()
			if test.there {
				there = append(there, madeFor(t, all[0], "u"))
				crds = crdfake.NewClientset(there[0].DeepCopy())
			}
			object := asObject(t, all[2])
			object.SetGroupVersionKind(blueprint.GroupVersionKind)
			p, _ := newTestController([]*unstructured.Unstructured{object}, there, wheel)
			p.use(storedClient{platformtest.NewServer(nil, object), p.engine.Secondary}, crds)
			add(t, p, stored(t, all[0], 1), stored(t, all[1], 2))
			for _, replaced := range []bool{false, true} {
				applyServedDefinition(t, p, all[2], 2)
				now, err := crds.ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), "websites.shop.example.com",
					metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if got := fields(now); !slices.Equal(got, []string{"one", "two"}) || now.Annotations[schemaAnnotation] == "" ||
					now.Annotations[ownerUIDAnnotation] != "u" {
					t.Errorf("got fields %q and annotations %v", got, now.Annotations)
				}
				if n := countVerb(crds.Actions(), test.verb); n != 1 {
					t.Errorf("got %d %s requests, want 1; the cache is current: %t", n, test.verb, replaced)
				}
				_ = p.engine.Secondary.Add(now)
			}
		})
	}
}

// applyServedDefinition applies the CustomResourceDefinition of a Blueprint whose newest generation is rejected. It
// fails the test unless the given generation is served.
func applyServedDefinition(t *testing.T, p *testController, b *blueprint.Blueprint, generation int64) {
	t.Helper()
	if err := p.decide(t.Context(), instances.BlueprintID(b.Name)); err != nil {
		t.Fatal(err)
	}
	d, _ := p.registry.get(b.Name)
	if d.rejection == nil || d.cleansUpOnly() || d.running.generation != generation {
		t.Fatalf("got decision %+v", d)
	}
	if _, err := p.blueprints.adopt(t.Context(), b, d); err != nil {
		t.Fatal(err)
	}
}

func countVerb(actions []clienttesting.Action, verb string) (n int) {
	for _, action := range actions {
		if action.GetVerb() == verb {
			n++
		}
	}
	return n
}
