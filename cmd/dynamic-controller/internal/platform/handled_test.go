package platform

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdfake "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// withoutConsent returns a Blueprint that names a type, which does not allow it, and the definition of the type.
func withoutConsent(t *testing.T, status map[string]any) (*unstructured.Unstructured, *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	b := generations("Wheel")[0]
	crd := madeFor(t, b, "")
	crd.Annotations = nil
	b.Spec.Type = blueprint.Type{CRD: crd.Name}
	object := asObject(t, b)
	object.Object["status"] = status
	return object, crd
}

// Versions that required no consent stored no revisions either.
func TestInstancesAreCleanedUpWithoutConsentIfTheBlueprintWasServed(t *testing.T) {
	serving := func(status string) map[string]any {
		return map[string]any{"conditions": []any{map[string]any{"type": blueprint.Serving, "status": status}}}
	}
	instances := func(total int64) map[string]any {
		return map[string]any{"instances": map[string]any{"total": total, "ready": int64(0), "failing": int64(0)}}
	}
	for name, test := range map[string]struct {
		status map[string]any
		cleans bool
	}{
		"nothing is reported":     {status: nil},
		"it is not served":        {status: serving("False")},
		"it has no instances":     {status: instances(0)},
		"it is served":            {status: serving("True"), cleans: true},
		"it has instances":        {status: instances(1), cleans: true},
		"another condition holds": {status: map[string]any{"conditions": []any{map[string]any{"type": blueprint.Accepted, "status": "True"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			object, crd := withoutConsent(t, test.status)
			p, _ := fakePlatform([]*unstructured.Unstructured{object}, []*apiextensionsv1.CustomResourceDefinition{crd}, wheel)
			engine := p.engines.Definitions.(*fakeEngine)
			decideAgain := func(step string) decision {
				t.Helper()
				if err := p.decide(t.Context(), blueprintID("websites")); err != nil {
					t.Fatal(err)
				}
				d, _ := p.registry.get("websites")
				if !d.lacksConsent() || !d.onlyCleans() || d.gvr.Empty() == test.cleans {
					t.Fatalf("%s, the decision is %+v", step, d)
				}
				return d
			}
			if d := decideAgain("at first"); (d.running != nil) != test.cleans {
				t.Errorf("it cleans up: %t", d.running != nil)
			}
			// The platform updates the status to what is served now.
			object = object.DeepCopy()
			object.Object["status"] = serving("False")
			_ = engine.objects.Update(object)
			if d := decideAgain("with another status"); (d.running != nil) != test.cleans {
				t.Errorf("with another status, it cleans up: %t", d.running != nil)
			}
			object = object.DeepCopy()
			object.SetDeletionTimestamp(&metav1.Time{Time: deletedAt})
			_ = engine.objects.Update(object)
			if d := decideAgain("at its end"); d.running != nil {
				t.Error("it is still served at its end")
			}
		})
	}
}

func TestAnEndWithoutConsentFreesTheInstancesOfABlueprintThatWasServed(t *testing.T) {
	for _, total := range []int64{0, 1} {
		e := newEnding(t, blueprint.Delete, partial("a", held(childrenFinalizer)))
		object, crd := withoutConsent(t, map[string]any{"instances": map[string]any{"total": total}})
		e.crds = crdfake.NewClientset(crd)
		e.Platform.crds, e.object = e.crds, object
		e.object.SetDeletionTimestamp(&metav1.Time{Time: deletedAt})
		e.object.SetFinalizers([]string{finalizer})
		if err := unstructured.SetNestedField(e.object.Object, "Delete", "spec", "deletionPolicy"); err != nil {
			t.Fatal(err)
		}
		engine := e.engines.Definitions.(*fakeEngine)
		_ = engine.objects.Update(e.object)
		_ = engine.secondary.Update(crd)
		e.registry = newRegistry()
		if err := e.decide(t.Context(), e.id); err != nil {
			t.Fatal(err)
		}
		err := e.cleanUp(t)
		want := []string{"patch websites a"}[:total]
		if definition, others := e.written(); err != nil || len(definition) > 0 || len(others) != len(want) || total > 0 && others[0] != want[0] {
			t.Errorf("with %d instances reported, it ends with %v, and wrote %q and %q", total, err, definition, others)
		}
	}
}
