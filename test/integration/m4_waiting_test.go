package integration

import (
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/restmapper"
)

// By the time a subscriber is called, lookups must reflect the change.
func TestM4_SubscriberReceivesTypeChanges(t *testing.T) {
	h := newHarness(t)
	m, _ := h.mapper()
	gvr := h.newType()
	kind := schema.GroupKind{Group: gvr.Group, Kind: "Widget"}
	received := make(chan restmapper.Change, 10)
	cancel := m.Subscribe(func(c restmapper.Change) {
		if c.Kind == kind {
			received <- c
		}
	})
	defer cancel()
	expect := func(want restmapper.ChangeType, old, now int) {
		t.Helper()
		select {
		case c := <-received:
			if c.Type != want || len(c.Old) != old || len(c.New) != now {
				t.Errorf("got %s with %d old and %d new mappings, want %s with %d and %d",
					c.Type, len(c.Old), len(c.New), want, old, now)
			}
			if _, err := m.RESTMapping(kind); meta.IsNoMatchError(err) != (c.Type == restmapper.Removed) {
				t.Errorf("got a change of type %s, but a lookup returned error %v", c.Type, err)
			}
		case <-time.After(deadline):
			t.Fatalf("no change of type %s was received", want)
		}
	}
	h.define(gvr)
	expect(restmapper.Added, 0, 1)
	h.updateCRD(gvr.GroupResource().String(), func(crd *apiextensionsv1.CustomResourceDefinition) {
		v2 := *crd.Spec.Versions[0].DeepCopy()
		v2.Name, v2.Storage = "v2", false
		crd.Spec.Versions = append(crd.Spec.Versions, v2)
	})
	expect(restmapper.Changed, 1, 2)

	second := make(chan restmapper.Change, 1)
	cancelSecond := m.Subscribe(func(c restmapper.Change) {
		if c.Kind == kind && c.Type == restmapper.Added {
			second <- c
		}
	})
	select {
	case c := <-second:
		if len(c.New) != 2 {
			t.Errorf("the second subscriber received %v, want two mappings", c.New)
		}
	case <-time.After(deadline):
		t.Fatal("the second subscriber did not receive the current state")
	}
	cancelSecond()
	h.undefine(gvr)
	expect(restmapper.Removed, 2, 0)
}
