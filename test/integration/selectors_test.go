package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
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
		dynamiccontroller.Watches(other, func(context.Context, dynamiccontroller.Object) []string { return []string{h.namespace + "/p"} }, nothing))
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

// The selector for fields.Nothing is accepted for custom and built-in types, and matches not even an object with the name
// that it contains. An object that the selector of a type does not match causes no event.
func TestWithFieldSelector_OnAnAPIServer(t *testing.T) {
	h := newHarness(t)
	byName, none := h.define(h.newType()), h.define(h.newType())
	for _, gvr := range []gvrType{byName, none} {
		for _, name := range []string{"one", "nothing"} {
			h.apply(gvr, name, 0)
		}
	}
	c := h.controller(dynamiccontroller.Config{ResyncPeriod: -1})
	h.run(c)
	calls := newRecorder(t, nil)
	nothing := dynamiccontroller.WithFieldSelector(fields.Nothing())
	serviceAccounts := gvrType{Version: "v1", Resource: "serviceaccounts"}
	h.serve(c, none, calls.handle, nothing, dynamiccontroller.Owns(serviceAccounts, nothing))
	h.serve(c, byName, calls.handle, dynamiccontroller.WithFieldSelector(fields.OneTermEqualSelector("metadata.name", "one")))
	h.synced(c, none)
	h.synced(c, byName)
	calls.waitFor(h.id(byName, "one"), 1)
	h.apply(none, "nothing", 1)
	h.apply(byName, "nothing", 1)
	h.apply(byName, "one", 1)
	calls.waitFor(h.id(byName, "one"), 2)
	if n := calls.sum(); n != 2 {
		t.Errorf("%d calls: %v", n, calls.counts())
	}
	h.eventually("the watch of service accounts has synced", func() error {
		for _, status := range c.Status() {
			if want := map[gvrType]int{byName: 1}[status.GVR]; status.Objects != want {
				t.Errorf("%s has %d objects, want %d", status.GVR, status.Objects, want)
			}
			for _, secondary := range status.Secondaries {
				if secondary.State != dynamiccontroller.TypeSynced {
					return fmt.Errorf("%+v", secondary)
				}
				if secondary.Objects != 0 {
					t.Errorf("%+v", secondary)
				}
			}
		}
		return nil
	})

	h.serve(c, byName, calls.handle, dynamiccontroller.WithFieldSelector(fields.OneTermEqualSelector("spec.unknown", "x")))
	h.eventually("an unknown field is reported", func() error {
		for _, status := range c.Status() {
			if status.GVR != byName {
				continue
			}
			// The watch without the field continues.
			r := status.Replacement
			if status.State != dynamiccontroller.TypeSynced || r == nil || r.State != dynamiccontroller.TypeFailing ||
				!strings.Contains(r.Message, "spec.unknown") {
				return fmt.Errorf("the state is %s: %+v", status.State, r)
			}
		}
		return nil
	})
}
