package integration

import (
	"errors"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/restmapper"
)

// typeEvents tells an engine what a mapper knows.
func typeEvents(m *restmapper.Mapper) dynamiccontroller.TypeEvents {
	return func(tell func(gvrType, bool)) (cancel func()) {
		return m.Subscribe(func(c restmapper.Change) {
			has := func(mappings []*meta.RESTMapping, gvr gvrType) bool {
				return slices.ContainsFunc(mappings, func(m *meta.RESTMapping) bool { return m.Resource == gvr })
			}
			for _, old := range c.Old {
				if !has(c.New, old.Resource) {
					tell(old.Resource, false)
				}
			}
			for _, now := range c.New {
				tell(now.Resource, true)
			}
		})
	}
}

// With a mapper beside it the engine serves a type when it appears, and again when it is back, and lets its objects go
// when it vanishes; callers who know kinds find the resource.
func TestS5_WithAMapperTypesComeAndGo(t *testing.T) {
	h := newHarness(t)
	m, _ := h.mapper()
	gvr := h.newType()
	c := h.controller(dynamiccontroller.Config{}, dynamiccontroller.WithTypeEvents(typeEvents(m)))
	h.run(c)
	calls := newRecorder(t, nil)
	h.serve(c, gvr, calls.handle)
	kind := gvr.GroupVersion().WithKind("Widget")
	if _, err := dynamiccontroller.ResourceFor(m, kind); !meta.IsNoMatchError(err) {
		t.Errorf("a kind that there is not: %v", err)
	}
	for round := 1; round <= 3; round++ {
		h.eventually("the engine backs off", func() error {
			if state := c.Status()[0].State; state != dynamiccontroller.TypeNotFound {
				return errors.New(string(state))
			}
			return nil
		})
		h.define(gvr)
		established := time.Now()
		h.synced(c, gvr)
		t.Logf("established -> synced: %s at the most", time.Since(established))
		if _, err := m.WaitForMapping(t.Context(), kind.GroupKind()); err != nil {
			t.Error(err)
		}
		if found, err := dynamiccontroller.ResourceFor(m, kind); err != nil || found != gvr {
			t.Errorf("found %v, %v", found, err)
		}
		h.apply(gvr, "w", round)
		calls.waitFor(h.id(gvr, "w"), 2*round-1)
		h.undefine(gvr)
		calls.waitFor(h.id(gvr, "w"), 2*round)
	}
}
