package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// The API server accepts a selector that matches nothing. Watches with such a selector must sync, stay open and return
// no objects.
func TestWithLabelSelector_UnsatisfiableSelectorMatchesNoObjects(t *testing.T) {
	h := newHarness(t)
	selected, parent := h.widgets(), h.widgets()
	child, other := h.widgets(), h.widgets()
	// The engine's unsatisfiable selector uses the label "nothing".
	labelled := func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"nothing": ""}) }
	h.apply(selected, "before", 0, labelled)
	h.apply(parent, "p", 0)
	owned := h.owned(h.id(parent, "p"))
	mapToParent := func(context.Context, dynamiccontroller.Object) []string { return []string{h.namespace + "/p"} }
	nothing := dynamiccontroller.WithLabelSelector(labels.Nothing())
	c := h.controller(dynamiccontroller.Config{ResyncPeriod: -1})
	h.run(c)
	calls := newRecorder(t, nil)
	h.serve(c, selected, calls.handle, nothing)
	h.serve(c, parent, calls.handle, dynamiccontroller.Owns(child, nothing),
		dynamiccontroller.Watches(other, mapToParent, nothing))
	h.synced(c, selected)
	h.synced(c, parent)
	calls.waitFor(h.id(parent, "p"), 1)

	h.apply(selected, "after", 0, labelled)
	h.apply(child, "c", 0, owned)
	h.apply(other, "o", 0, labelled)
	h.apply(parent, "p", 1) // Earlier events would have been delivered before this one.
	calls.waitFor(h.id(parent, "p"), 2)
	h.apply(parent, "p", 2)
	calls.waitFor(h.id(parent, "p"), 3)
	if n := calls.sum(); n != 3 {
		t.Errorf("got %d calls, want 3: %v", n, calls.counts())
	}
	for _, status := range c.Status() {
		if status.State != dynamiccontroller.TypeSynced || status.GVR == selected && status.Objects != 0 {
			t.Errorf("got status %+v", status)
		}
		for _, secondary := range status.Secondaries {
			if secondary.State != dynamiccontroller.TypeSynced || secondary.Objects != 0 {
				t.Errorf("got secondary %+v, want no objects", secondary)
			}
		}
	}
}

// For both custom and built-in types, the API server accepts the selector that the engine sends for fields.Nothing.
// This selector matches no objects, not even one with the name that the selector contains. Objects that do not match a
// selector must cause no events.
func TestWithFieldSelector_MatchesOnlySelectedObjects(t *testing.T) {
	h := newHarness(t)
	byName, none := h.widgets(), h.widgets()
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
	h.serve(c, byName, calls.handle,
		dynamiccontroller.WithFieldSelector(fields.OneTermEqualSelector("metadata.name", "one")))
	h.synced(c, none)
	h.synced(c, byName)
	calls.waitFor(h.id(byName, "one"), 1)
	h.apply(none, "nothing", 1)
	h.apply(byName, "nothing", 1)
	h.apply(byName, "one", 1)
	calls.waitFor(h.id(byName, "one"), 2)
	if n := calls.sum(); n != 2 {
		t.Errorf("got %d calls, want 2: %v", n, calls.counts())
	}
	h.eventually("the watch of service accounts has synced", func() error {
		for _, status := range c.Status() {
			if want := map[gvrType]int{byName: 1}[status.GVR]; status.Objects != want {
				t.Errorf("got %d objects of %s, want %d", status.Objects, status.GVR, want)
			}
			for _, secondary := range status.Secondaries {
				if secondary.State != dynamiccontroller.TypeSynced {
					return fmt.Errorf("got secondary %+v", secondary)
				}
				if secondary.Objects != 0 {
					t.Errorf("got secondary %+v, want no objects", secondary)
				}
			}
		}
		return nil
	})
}

func TestWithFieldSelector_UnknownFieldIsReported(t *testing.T) {
	h := newHarness(t)
	gvr := h.widgets()
	c := h.controller(dynamiccontroller.Config{ResyncPeriod: -1})
	h.run(c)
	calls := newRecorder(t, nil)
	h.serve(c, gvr, calls.handle)
	h.synced(c, gvr)
	h.serve(c, gvr, calls.handle,
		dynamiccontroller.WithFieldSelector(fields.OneTermEqualSelector("spec.unknown", "x")))
	h.eventually("an unknown field is reported", func() error {
		// The previous watch continues.
		status := c.Status()[0]
		r := status.Replacement
		if status.State != dynamiccontroller.TypeSynced || r == nil || r.State != dynamiccontroller.TypeFailing ||
			!strings.Contains(r.Message, "spec.unknown") {
			return fmt.Errorf("got state %s with replacement %+v", status.State, r)
		}
		return nil
	})
}
