package children

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
)

// The discovery of a kind's group may have been failing since the process started. The inventory and the finalizer are
// kept until the API server reports that the kind is not served. If the mapper reports the failure, they are kept until
// the discovery succeeds, because the API server can serve the kind in another version.
func TestReconcile_UnknownKindIsGoneOnlyIfNotServed(t *testing.T) {
	unavailable := apierrors.NewServiceUnavailable("the API service is down")
	const body = "404 page not found"
	notServed := apierrors.NewGenericServerResponse(404, "list", configMaps.GroupResource(), "", body, 0, true)
	unknown := meta.NewDefaultRESTMapper(nil)
	for name, c := range map[string]struct {
		response error
		mapper   meta.RESTMapper
		deleted  bool // whether the parent is being deleted
		fails    bool
		kept     bool // whether the inventory is kept or, if the parent is being deleted, the finalizer
	}{
		"prune, unavailable":                    {unavailable, unknown, false, true, true},
		"prune, not served":                     {notServed, unknown, false, false, false},
		"prune, served":                         {nil, unknown, false, false, true},
		"cleanup, unavailable":                  {unavailable, unknown, true, true, true},
		"cleanup, not served":                   {notServed, unknown, true, false, false},
		"cleanup, served":                       {nil, unknown, true, false, true},
		"prune, not served, discovery fails":    {notServed, undiscoveredMapper{}, false, true, true},
		"prune, served, discovery fails":        {nil, undiscoveredMapper{}, false, false, true},
		"cleanup, unavailable, discovery fails": {unavailable, undiscoveredMapper{}, true, true, true},
		"cleanup, not served, discovery fails":  {notServed, undiscoveredMapper{}, true, true, true},
		"cleanup, served, but discovery fails":  {nil, undiscoveredMapper{}, true, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			server := newFakeServer(newWidget())
			reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
			if _, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(newRemoteConfigMap("a"))); err != nil {
				t.Fatal(err)
			}
			server.TakeWrites()
			reconciler.config.Mapper = c.mapper
			if c.response != nil {
				server.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, c.response
				})
			}
			if c.deleted {
				deleted := metav1.NewTime(time.Now().Add(-2 * decide.UnservedPeriod))
				parent.SetDeletionTimestamp(&deleted)
			}
			_, err := reconciler.Reconcile(t.Context(), first, parent, oneStage())
			if _, requeued := dynamiccontroller.RequeueDelay(err); (err != nil && !requeued) != c.fails {
				t.Errorf("got %v", err)
			}
			current := getParent(t, server)
			kept := current.GetAnnotations()[reconciler.names.Inventory()] != ""
			if c.deleted {
				kept = len(current.GetFinalizers()) > 0
			}
			writes := server.TakeWrites()
			if kept != c.kept || slices.Contains(writes, "delete configmaps a") != (c.response == nil) {
				t.Errorf("kept: %t, want %t; wrote %q", kept, c.kept, writes)
			}
		})
	}
}

// A child in such a namespace would never be found again.
func TestReconcile_RefusesNamespacesThatAreNotListed(t *testing.T) {
	for namespace, limit := range map[string]string{"far": "default", "default": "far"} {
		server, parent := newFakeServer(newWidget()), newWidget()
		reconciler := newReconciler(t, Config{Client: server, Namespaces: []string{limit}})
		desired := oneStage(inNamespace(namespace, "a"), inNamespace(limit, "b"))
		_, err := reconciler.Reconcile(t.Context(), first, parent, desired)
		if !errors.Is(err, ErrNamespaceNotListed) || !strings.Contains(err.Error(), "ConfigMap a: namespace "+namespace) {
			t.Errorf("got %v", err)
		}
		if writes := server.TakeWrites(); len(writes) > 0 {
			t.Errorf("wrote %q", writes)
		}
		desired.Stages[0][0].Retain = true // is never listed
		if _, err := reconciler.Reconcile(t.Context(), first, parent, desired); err != nil {
			t.Errorf("retained: %v", err)
		}
	}
}

// A child in a namespace that was removed from Config.Namespaces is not forgotten.
func TestReconcile_KeepsNamespacesThatAreNotListed(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		t.Run(fmt.Sprintf("deleted: %t", deleted), func(t *testing.T) {
			server, parent := newFakeServer(newWidget()), newWidget()
			reconciler := newReconciler(t, Config{Client: server, Namespaces: []string{"default", "far"}})
			if _, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(inNamespace("far", "a"))); err != nil {
				t.Fatal(err)
			}
			if deleted {
				now := metav1.Now()
				parent.SetDeletionTimestamp(&now)
			}
			inventory := parent.GetAnnotations()[reconciler.names.Inventory()]
			server.TakeWrites()
			limited := newReconciler(t, Config{Client: server, Namespaces: []string{"default"}})
			_, err := limited.Reconcile(t.Context(), first, parent.DeepCopy(), oneStage())
			if !errors.Is(err, ErrNamespaceNotListed) || !strings.Contains(err.Error(), "namespace far: ") {
				t.Errorf("got %v", err)
			}
			if writes := server.TakeWrites(); len(writes) > 0 {
				t.Errorf("wrote %q", writes)
			}
			current := getParent(t, server)
			if current.GetAnnotations()[reconciler.names.Inventory()] != inventory || len(current.GetFinalizers()) == 0 {
				t.Errorf("the parent is %v", current)
			}
			_, err = reconciler.Reconcile(t.Context(), first, parent, oneStage())
			failUnlessRequeued(t, err)
			if writes := server.TakeWrites(); !slices.Equal(writes, []string{"delete configmaps a"}) {
				t.Errorf("with the namespace, it wrote %q", writes)
			}
		})
	}
}
