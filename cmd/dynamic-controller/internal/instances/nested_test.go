package instances

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/test/platformtest"
)

var sites = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "sites"}

// unservedEngine serves only the type websites.
type unservedEngine struct{ *platformtest.Engine }

func (e unservedEngine) Lister(gvr schema.GroupVersionResource) (dynamiccontroller.Lister, error) {
	if gvr != websites {
		return nil, dynamiccontroller.ErrNotServed
	}
	return e.Engine.Lister(gvr)
}

// nesting returns a Blueprint with a child that can be an instance, and a child that refers to it.
func nesting() *blueprint.Blueprint {
	b := chain(0)
	b.Spec.Resources = []blueprint.Resource{
		{ID: "site", Template: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Site", "metadata": map[string]any{"name": "site"},
		}},
		newTemplate("page", "page", map[string]any{"data": map[string]any{"of": "${site.metadata.name}"}}),
	}
	return b
}

// A new instance has no conditions and is not ready until it has been reconciled.
func TestNestedInstance_NotReadyBeforeFirstReconcile(t *testing.T) {
	k, server := newTestReconciler(t, nesting())
	self := newFlowers(t, server)
	for i := range k.Children {
		k.Children[i].HasCRD = k.Children[i].GVK == site
	}
	unready := func() string {
		t.Helper()
		step, err := applyChildren(t, k, self)
		if err != nil {
			t.Fatal(err)
		}
		if len(step.Unready) == 0 {
			return ""
		}
		return step.Unready[0].Reason
	}
	if got := unready(); got != "waiting for its first reconcile" {
		t.Errorf("without a status: %q", got)
	}
	for _, test := range []struct {
		condition map[string]any
		want      string
	}{
		{map[string]any{"type": "Ready", "status": "True"}, "waiting for its first reconcile"},
		{map[string]any{"type": "Ready", "status": "True", "observedGeneration": int64(1)},
			"waiting for its controller to observe the newest generation"},
		{map[string]any{"type": "Ready", "status": "False", "observedGeneration": int64(2), "reason": "Waiting"},
			"waiting for the condition Ready (Waiting)"},
		{map[string]any{"type": "Ready", "status": "True", "observedGeneration": int64(2)}, ""},
	} {
		object, err := server.Tracker().Get(sites, "shop", "site")
		if err != nil {
			t.Fatal(err)
		}
		child := object.(*unstructured.Unstructured).DeepCopy()
		child.SetGeneration(2)
		child.Object["status"] = map[string]any{"conditions": []any{test.condition}}
		if err := k.engine.(*platformtest.Engine).Secondary.Update(child); err != nil {
			t.Fatal(err)
		}
		if got := unready(); got != test.want {
			t.Errorf("%v: %q, want %q", test.condition, got, test.want)
		}
	}
}

// Other controllers need not write a condition.
func TestNestedInstance_OfOtherControllerIsReady(t *testing.T) {
	k, server := newTestReconciler(t, nesting())
	self := newFlowers(t, server)
	for i := range k.Children {
		k.Children[i].HasCRD = k.Children[i].GVK == site
	}
	k.engine = unservedEngine{k.engine.(*platformtest.Engine)}
	if step, err := applyChildren(t, k, self); err != nil || !step.Ready {
		t.Errorf("got %v, %v", step.Unready, err)
	}
}
