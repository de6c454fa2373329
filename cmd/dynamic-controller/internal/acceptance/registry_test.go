package acceptance

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestTheRegistryKnowsWhoDependsOnWhat(t *testing.T) {
	r := newRegistry()
	widget := schema.GroupKind{Group: "example.com", Kind: "Widget"}
	r.setDependencies("a", dependencies{crd: "x", kinds: []schema.GroupKind{widget}})
	r.setDependencies("b", dependencies{crd: "x"})
	if got := r.dependentsOfKind(widget); !slices.Equal(got, []string{"a"}) {
		t.Errorf("in the kind: %v", got)
	}
	if got := r.claimants("x"); len(got) != 2 {
		t.Errorf("in the type: %v", got)
	}
	if got := r.dependentsOfCRD("widgets.example.com", "example.com"); !slices.Equal(got, []string{"a"}) {
		t.Errorf("in the type of a child: %v", got)
	}
	if others := r.forget("a"); !slices.Equal(others, []string{"b"}) {
		t.Errorf("the others: %v", others)
	}
	if got := r.dependentsOfKind(widget); len(got) > 0 {
		t.Errorf("one that is forgotten is interested: %v", got)
	}
}

func TestATypeIsServedForOneBlueprint(t *testing.T) {
	r, gvr := newRegistry(), schema.GroupVersionResource{Resource: "widgets"}
	for who, want := range map[string]bool{"a": true, "b": false} {
		if first := r.acquire(gvr, "a"); !first {
			t.Error("a cannot take it, or not again")
		}
		if got := r.acquire(gvr, who); got != want {
			t.Errorf("%s takes it: %t", who, got)
		}
	}
	r.release(gvr)
	if !r.acquire(gvr, "b") {
		t.Error("the type cannot be acquired after its release")
	}
}
