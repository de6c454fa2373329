package handlers

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	clienttesting "k8s.io/client-go/testing"
)

func farAway(name string) *unstructured.Unstructured {
	child := newConfigMap(name, "x")
	child.SetNamespace("far")
	return child
}

// A replica that leads now, and whose cache still shows a parent that is gone, or being deleted, or another one, makes no
// child for it: nothing would delete that.
func TestNoChildIsMadeForAParentThatIsGone(t *testing.T) {
	now := metav1.Now()
	going, another := newWidget(), newWidget()
	going.SetDeletionTimestamp(&now)
	another.SetUID("another-uid")
	for name, live := range map[string]*unstructured.Unstructured{"gone": nil, "going": going, "another": another} {
		t.Run(name, func(t *testing.T) {
			server := newFakeServer()
			if live != nil {
				server = newFakeServer(live)
			}
			children := newChildren(t, ChildrenConfig{Client: server})
			parent := newWidget() // with all that is written to it before its children
			parent.SetFinalizers([]string{children.finalizer()})
			parent.SetAnnotations(map[string]string{children.inventoryKey(): "ConfigMap=v1/configmaps"})
			made, err := children.Reconcile(t.Context(), first, parent, stages(farAway("a"), newConfigMap("b", "x")))
			if err != nil || len(made) != 0 {
				t.Errorf("made %v, and %v", made, err)
			}
			if writes := server.took(); len(writes) != 0 {
				t.Errorf("written: %q", writes)
			}
		})
	}
}

// A kind that was struck off since the cache saw the parent is recorded again before a child of it is made.
func TestAKindThatWasStruckOffIsRecordedAgain(t *testing.T) {
	server := newFakeServer(newWidget())
	before, parent := newChildren(t, ChildrenConfig{Client: server}), newWidget()
	reconcile := func(children *Children, parent *unstructured.Unstructured, desired Desired) {
		t.Helper()
		if _, err := children.Reconcile(t.Context(), first, parent, desired); err != nil && !strings.HasPrefix(err.Error(), "requeue after") {
			t.Fatal(err)
		}
	}
	reconcile(before, parent, stages(newConfigMap("a", "x")))
	old := parent.DeepCopy()
	for range 2 {
		reconcile(before, parent, stages())
	}
	if inventory, ok := parent.GetAnnotations()[before.inventoryKey()]; ok {
		t.Fatalf("the inventory is %s", inventory)
	}
	server.took()
	now := newChildren(t, ChildrenConfig{Client: server})
	reconcile(now, old, stages(newConfigMap("a", "x")))
	if writes := server.took(); !slices.Equal(writes, []string{"apply widgets first", "apply configmaps a"}) {
		t.Errorf("written: %q", writes)
	}
	live, err := Live(server).Get(t.Context(), widgets, "default", "first")
	if err != nil {
		t.Fatal(err)
	}
	reconcile(now, live, stages())
	if left, err := Live(server).List(t.Context(), configMaps, "default", labels.Everything()); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// The parent is read once a pass, and only in one that creates.
func TestTheParentIsReadOnceBeforeCreations(t *testing.T) {
	server := newFakeServer(newWidget())
	children, parent := newChildren(t, ChildrenConfig{Client: server}), newWidget()
	for _, want := range []int{1, 0} {
		server.ClearActions()
		if _, err := children.Reconcile(t.Context(), first, parent, stages(newConfigMap("a", "x"), newConfigMap("b", "x"))); err != nil {
			t.Fatal(err)
		}
		reads := 0
		for _, action := range server.Actions() {
			if get, ok := action.(clienttesting.GetAction); ok && get.GetVerb() == "get" && get.GetResource() == widgets {
				reads++
			}
		}
		if reads != want {
			t.Errorf("%d reads, and not %d", reads, want)
		}
	}
}
