package integration

import (
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// With type events from a mapper, the engine watches a type as soon as the type is defined, and empties the cache when
// the type is removed. While the type is defined, ResourceFor must find the resource for the type's kind.
func TestS5_TypeEventsFromMapper(t *testing.T) {
	h := newHarness(t)
	m, _ := h.mapper()
	gvr := h.newType()
	c := h.controller(dynamiccontroller.Config{}, dynamiccontroller.WithTypeEvents(m.TypeEvents))
	h.run(c)
	calls := newRecorder(t, nil)
	h.serve(c, gvr, calls.handle)
	kind := gvr.GroupVersion().WithKind("Widget")
	if _, err := dynamiccontroller.ResourceFor(m, kind); !meta.IsNoMatchError(err) {
		t.Errorf("find an unknown kind: got %v, want a NoMatch error", err)
	}
	for round := 1; round <= 3; round++ {
		h.eventually("the type is not found", func() error {
			if state := c.Status()[0].State; state != dynamiccontroller.TypeNotFound {
				return errors.New(string(state))
			}
			return nil
		})
		h.define(gvr)
		established := time.Now()
		h.synced(c, gvr)
		t.Logf("the cache synced at most %s after the type was established", time.Since(established))
		if _, err := m.WaitForMapping(t.Context(), kind.GroupKind()); err != nil {
			t.Error(err)
		}
		if found, err := dynamiccontroller.ResourceFor(m, kind); err != nil || found != gvr {
			t.Errorf("got %v, error %v; want %v", found, err, gvr)
		}
		h.apply(gvr, "w", round)
		calls.waitFor(h.id(gvr, "w"), 2*round-1)
		h.undefine(gvr)
		calls.waitFor(h.id(gvr, "w"), 2*round)
	}
}
