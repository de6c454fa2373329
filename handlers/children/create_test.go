package children

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/handlers"
)

// The cache can hold a parent that has been deleted. Nothing would delete a child that is created for it.
func TestReconcile_CreatesNothingForDeletedParent(t *testing.T) {
	now := metav1.Now()
	deleting, recreated := newWidget(), newWidget()
	deleting.SetDeletionTimestamp(&now)
	recreated.SetUID("another-uid")
	for name, live := range map[string][]*unstructured.Unstructured{
		"gone": nil, "being deleted": {deleting}, "recreated": {recreated},
	} {
		t.Run(name, func(t *testing.T) {
			server := newFakeServer(live...)
			reconciler := newReconciler(t, Config{Client: server})
			parent := newWidget() // with everything that is written to it before its children
			parent.SetFinalizers([]string{reconciler.finalizer()})
			parent.SetAnnotations(map[string]string{reconciler.inventoryKey(): "ConfigMap=v1/configmaps:0@other"})
			desired := oneStage(newRemoteConfigMap("a"), newConfigMap("b", "x"))
			children, err := reconciler.Reconcile(t.Context(), first, parent, desired)
			if err != nil || len(children) != 0 {
				t.Errorf("got %v, %v", children, err)
			}
			if writes := server.TakeWrites(); len(writes) != 0 {
				t.Errorf("wrote %q", writes)
			}
		})
	}
}

// The cache can hold the parent as it was before the kind was removed from its inventory.
func TestReconcile_RecordsARemovedKindAgainBeforeCreating(t *testing.T) {
	server := newFakeServer(newWidget())
	previous, parent := newReconciler(t, Config{Client: server}), newWidget()
	reconcile := func(reconciler *Reconciler, parent *unstructured.Unstructured, desired Desired) {
		t.Helper()
		_, err := reconciler.Reconcile(t.Context(), first, parent, desired)
		failUnlessRequeued(t, err)
	}
	reconcile(previous, parent, oneStage(newConfigMap("a", "x")))
	outdated := parent.DeepCopy()
	for range 2 {
		reconcile(previous, parent, oneStage())
	}
	if inventory, ok := parent.GetAnnotations()[previous.inventoryKey()]; ok {
		t.Fatalf("the inventory is %s", inventory)
	}
	server.TakeWrites()
	next := newReconciler(t, Config{Client: server})
	reconcile(next, outdated, oneStage(newConfigMap("a", "x")))
	if writes := server.TakeWrites(); !slices.Equal(writes, []string{"patch widgets first", "apply configmaps a"}) {
		t.Errorf("wrote %q", writes)
	}
	reconcile(next, getParent(t, server), oneStage())
	left, err := handlers.Live(server).List(t.Context(), configMaps, "default", labels.Everything())
	if err != nil || len(left) != 0 {
		t.Errorf("not pruned: %v, %v", left, err)
	}
}

func TestReconcile_ReadsTheParentOnceBeforeCreating(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
	for call, want := range []int{1, 0} {
		server.ClearActions()
		desired := oneStage(newConfigMap("a", "x"), newConfigMap("b", "x"))
		if _, err := reconciler.Reconcile(t.Context(), first, parent, desired); err != nil {
			t.Fatal(err)
		}
		reads := 0
		for _, action := range server.Actions() {
			if get, ok := action.(clienttesting.GetAction); ok && get.GetVerb() == "get" && get.GetResource() == widgets {
				reads++
			}
		}
		if reads != want {
			t.Errorf("call %d: read the parent %d times, want %d", call, reads, want)
		}
	}
}
