package acceptance

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestRegistry_ReturnsDependents(t *testing.T) {
	r := newRegistry()
	widget := schema.GroupKind{Group: "example.com", Kind: "Widget"}
	r.setDependencies("a", dependencies{crd: "x", kinds: []schema.GroupKind{widget}})
	r.setDependencies("b", dependencies{crd: "x"})
	if got := r.dependentsOfKind(widget); !slices.Equal(got, []string{"a"}) {
		t.Errorf("got dependents %v of the kind", got)
	}
	if got := r.claimants("x"); len(got) != 2 {
		t.Errorf("got claimants %v of the type", got)
	}
	if got := r.dependentsOfCRD("widgets.example.com", "example.com"); !slices.Equal(got, []string{"a"}) {
		t.Errorf("got dependents %v of the child's type", got)
	}
	if others := r.forget("a"); !slices.Equal(others, []string{"b"}) {
		t.Errorf("got rivals %v", others)
	}
	if got := r.dependentsOfKind(widget); len(got) > 0 {
		t.Errorf("got dependents %v after the Blueprint was removed", got)
	}
}

func TestRegistry_TypeBelongsToOneBlueprint(t *testing.T) {
	r, gvr := newRegistry(), schema.GroupVersionResource{Resource: "widgets"}
	for who, want := range map[string]bool{"a": true, "b": false} {
		if first := r.acquire(gvr, "a"); !first {
			t.Error("Blueprint a cannot acquire the type, or cannot acquire it again")
		}
		if got := r.acquire(gvr, who); got != want {
			t.Errorf("Blueprint %s acquires the type: %t, want %t", who, got, want)
		}
	}
	r.release(gvr)
	if !r.acquire(gvr, "b") {
		t.Error("a released type cannot be acquired")
	}
}
