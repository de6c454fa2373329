package platform

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestTheRegistryKnowsWhoDependsOnWhat(t *testing.T) {
	r := newRegistry()
	widget := schema.GroupKind{Group: "example.com", Kind: "Widget"}
	r.expect("a", interest{crd: "x", kinds: []schema.GroupKind{widget}})
	r.expect("b", interest{crd: "x"})
	if got := r.inKind(widget); !slices.Equal(got, []string{"a"}) {
		t.Errorf("in the kind: %v", got)
	}
	if got := r.inCRD("x"); len(got) != 2 {
		t.Errorf("in the type: %v", got)
	}
	if got := r.inType("widgets.example.com", "example.com"); !slices.Equal(got, []string{"a"}) {
		t.Errorf("in the type of a child: %v", got)
	}
	if others := r.forget("a"); !slices.Equal(others, []string{"b"}) {
		t.Errorf("the others: %v", others)
	}
	if got := r.inKind(widget); len(got) > 0 {
		t.Errorf("one that is forgotten is interested: %v", got)
	}
}

func TestATypeIsServedForOneBlueprint(t *testing.T) {
	r, gvr := newRegistry(), schema.GroupVersionResource{Resource: "widgets"}
	for who, want := range map[string]bool{"a": true, "b": false} {
		if first := r.take(gvr, "a"); !first {
			t.Error("a cannot take it, or not again")
		}
		if got := r.take(gvr, who); got != want {
			t.Errorf("%s takes it: %t", who, got)
		}
	}
	r.release(gvr)
	if !r.take(gvr, "b") {
		t.Error("it was let go, and cannot be taken")
	}
}

// cachedConfigMap implements dynamiccontroller.Object.
type cachedConfigMap struct{ *corev1.ConfigMap }

func (c cachedConfigMap) Object() runtime.Object { return c.ConfigMap }

func TestAChildWithoutAnOwnerSaysWhoseItIs(t *testing.T) {
	child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{instanceKey: "ns/one"}}}
	if got := instanceOf(t.Context(), cachedConfigMap{child}); !slices.Equal(got, []string{"ns/one"}) {
		t.Errorf("got %v", got)
	}
	child.OwnerReferences = []metav1.OwnerReference{{Name: "one"}} // which Owns routes
	if got := instanceOf(t.Context(), cachedConfigMap{child}); got != nil {
		t.Errorf("got %v", got)
	}
}
