package children

import (
	"errors"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/internal/fakeserver"
)

// The cache can hold a parent that has been deleted. Nothing would delete a child created for it.
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
			parent := newWidget() // the cached parent has the finalizer and the inventory
			parent.SetFinalizers([]string{reconciler.names.Finalizer()})
			parent.SetAnnotations(map[string]string{reconciler.names.Inventory(): "ConfigMap=v1/configmaps:0@other"})
			desired := oneStage(newRemoteConfigMap("a"), newConfigMap("b", "x"))
			result, err := reconciler.Reconcile(t.Context(), first, parent, desired)
			children := result.Existing()
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
func TestReconcile_RecordsRemovedKindBeforeCreating(t *testing.T) {
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
	if inventory, ok := parent.GetAnnotations()[previous.names.Inventory()]; ok {
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

// Before children are created, the parent is written, or else read once. With a cache, the children are not read.
func TestReconcile_CreatesWithoutFurtherRequests(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler := newReconciler(t, Config{Client: server, Cache: fakeserver.Cache{}})
	parent := newWidget()
	for _, call := range []struct {
		children []*unstructured.Unstructured
		want     []string
	}{
		{
			[]*unstructured.Unstructured{newConfigMap("a", "x"), newConfigMap("b", "x")},
			[]string{"patch widgets", "patch configmaps", "patch configmaps"},
		},
		{
			[]*unstructured.Unstructured{newConfigMap("c", "x"), newConfigMap("d", "x")},
			[]string{"get widgets", "patch configmaps", "patch configmaps"},
		},
	} {
		before := len(server.Actions())
		if _, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(call.children...)); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, action := range server.Actions()[before:] {
			got = append(got, action.GetVerb()+" "+action.GetResource().Resource)
		}
		if !slices.Equal(got, call.want) {
			t.Errorf("got requests %q, want %q", got, call.want)
		}
	}
}

// The cache can lag behind an apply. The child is then read instead of created again.
func TestReconcile_ReadsAppliedChildrenMissingFromCache(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler := newReconciler(t, Config{Client: server, Cache: fakeserver.Cache{}})
	parent, desired := newWidget(), oneStage(newConfigMap("a", "x"))
	for _, want := range [][]string{{"patch widgets first", "apply configmaps a"}, nil} {
		if _, err := reconciler.Reconcile(t.Context(), first, parent, desired); err != nil {
			t.Fatal(err)
		}
		if writes := server.TakeWrites(); !slices.Equal(writes, want) {
			t.Errorf("wrote %q, want %q", writes, want)
		}
	}
}

// If only the resourceVersion of the caller's parent were updated, the caller's next write would restore the cached
// status.
func TestCreate_UpdatesTheStatusOfAnOutdatedParent(t *testing.T) {
	now := newWidget()
	now.Object["status"] = map[string]any{"phase": "new"}
	server := newFakeServer(now)
	parent := newWidget()
	parent.Object["status"] = map[string]any{"phase": "old"}
	r := newReconciler(t, Config{Client: server})
	if _, err := r.Reconcile(t.Context(), first, parent, oneStage(newConfigMap("a", "x"))); err != nil {
		t.Fatal(err)
	}
	if phase, _, _ := unstructured.NestedString(parent.Object, "status", "phase"); phase != "new" {
		t.Errorf("the parent has the status %q", phase)
	}
}

// Admission can deny an update before the API server rejects it because the object exists.
func TestReconcile_DeniedCreationOfAnExistingObject(t *testing.T) {
	for exists, want := range map[bool]error{true: ErrNotOwned, false: errDenied} {
		server := newFakeServer(newWidget())
		if exists {
			foreign := newConfigMap("a", "foreign")
			foreign.SetNamespace(first.Namespace())
			server = newFakeServer(newWidget(), foreign)
		}
		server.PrependReactor("patch", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errDenied
		})
		reconciler := newReconciler(t, Config{Client: server, Cache: fakeserver.Cache{}})
		_, err := reconciler.Reconcile(t.Context(), first, newWidget(), oneStage(newConfigMap("a", "x")))
		if !errors.Is(err, want) {
			t.Errorf("exists: %t: got %v, want %v", exists, err, want)
		}
	}
}

var errDenied = apierrors.NewForbidden(configMaps.GroupResource(), "a", errors.New("test"))
