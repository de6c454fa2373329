package integration

import (
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/restmapper"
)

// A subscriber hears of a type's life, and at each call lookups answer what it is told.
func TestM4_ASubscriberHearsOfATypesLife(t *testing.T) {
	h := newHarness(t)
	m, _ := h.mapper()
	gvr := h.newType()
	kind := schema.GroupKind{Group: gvr.Group, Kind: "Widget"}
	heard := make(chan restmapper.Change, 10)
	cancel := m.Subscribe(func(c restmapper.Change) {
		if c.Kind == kind {
			heard <- c
		}
	})
	defer cancel()
	hear := func(want restmapper.ChangeType, old, now int) {
		t.Helper()
		select {
		case c := <-heard:
			if c.Type != want || len(c.Old) != old || len(c.New) != now {
				t.Errorf("heard %s with %d and %d mappings, not %s with %d and %d", c.Type, len(c.Old), len(c.New), want, old, now)
			}
			if _, err := m.RESTMapping(kind); meta.IsNoMatchError(err) != (c.Type == restmapper.Removed) {
				t.Errorf("heard %s, and lookups say %v", c.Type, err)
			}
		case <-time.After(deadline):
			t.Fatalf("not heard: %s", want)
		}
	}
	h.define(gvr)
	hear(restmapper.Added, 0, 1)
	h.updateCRD(gvr.GroupResource().String(), func(crd *apiextensionsv1.CustomResourceDefinition) {
		v2 := *crd.Spec.Versions[0].DeepCopy()
		v2.Name, v2.Storage = "v2", false
		crd.Spec.Versions = append(crd.Spec.Versions, v2)
	})
	hear(restmapper.Changed, 1, 2)

	late := make(chan restmapper.Change, 1)
	cancelLate := m.Subscribe(func(c restmapper.Change) {
		if c.Kind == kind && c.Type == restmapper.Added {
			late <- c
		}
	})
	select {
	case c := <-late:
		if len(c.New) != 2 {
			t.Errorf("the late subscriber was told of %v", c.New)
		}
	case <-time.After(deadline):
		t.Fatal("the late subscriber was not told what is known")
	}
	cancelLate()
	h.undefine(gvr)
	hear(restmapper.Removed, 2, 0)
}
