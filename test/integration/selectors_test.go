package integration

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A selector that matches nothing is accepted by the API server: its watches sync, stay open, and bring no object.
func TestWithLabelSelector_NothingServesNothing(t *testing.T) {
	h := newHarness(t)
	selected, parent, child, other := h.define(h.newType()), h.define(h.newType()), h.define(h.newType()), h.define(h.newType())
	// "nothing" is the label that the engine's unsatisfiable selector is about.
	labelled := func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"nothing": ""}) }
	h.apply(selected, "before", 0, labelled)
	h.apply(parent, "p", 0)
	object, err := h.client.Resource(parent).Namespace(h.namespace).Get(t.Context(), "p", metav1.GetOptions{})
	h.noError(err)
	owned := func(o *unstructured.Unstructured) {
		o.SetOwnerReferences([]metav1.OwnerReference{{
			APIVersion: parent.GroupVersion().String(), Kind: "Widget", Name: "p", UID: types.UID(object.GetUID()), Controller: ptr.To(true),
		}})
	}
	nothing := dynamiccontroller.WithLabelSelector(labels.Nothing())
	c := h.controller(dynamiccontroller.Config{ResyncPeriod: -1})
	h.run(c)
	calls := newRecorder(t, nil)
	h.serve(c, selected, calls.handle, nothing)
	h.serve(c, parent, calls.handle, dynamiccontroller.Owns(child, nothing),
		dynamiccontroller.Watches(other, func(runtime.Object) []string { return []string{h.namespace + "/p"} }, nothing))
	h.synced(c, selected)
	h.synced(c, parent)
	calls.waitFor(h.id(parent, "p"), 1)

	h.apply(selected, "after", 0, labelled)
	h.apply(child, "c", 0, owned)
	h.apply(other, "o", 0, labelled)
	h.apply(parent, "p", 1) // by now the events before it have been delivered, if there were any
	calls.waitFor(h.id(parent, "p"), 2)
	h.apply(parent, "p", 2)
	calls.waitFor(h.id(parent, "p"), 3)
	if n := calls.sum(); n != 3 {
		t.Errorf("%d calls: %v", n, calls.counts())
	}
	for _, status := range c.Status() {
		if status.State != dynamiccontroller.TypeSynced || status.GVR == selected && status.Objects != 0 {
			t.Errorf("%+v", status)
		}
		for _, secondary := range status.Secondaries {
			if secondary.State != dynamiccontroller.TypeSynced || secondary.Objects != 0 {
				t.Errorf("%+v", secondary)
			}
		}
	}
}
