package integration

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/handlers"
)

// A tenant writes an inventory of 7,500 kinds and the finalizer to its object. Neither reconciling nor deleting the object
// makes the controller list any of them, nor write the object more often than the tenant does.
func TestHandlers_ForgedInventoryCostsNoRequests(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	var lists atomic.Int64
	var written tally
	counted := wrapped(written.through(h.config), func(r *http.Request, send send) (*http.Response, error) {
		if r.Method == http.MethodGet && (strings.Contains(r.URL.RawQuery, "labelSelector") || strings.Contains(r.URL.Path, "k7")) {
			lists.Add(1)
		}
		return send(r)
	})
	children := s.newChildren(handlers.ChildrenConfig{
		Client: must(dynamic.NewForConfig(counted)),
		Kinds:  []handlers.ChildKind{{GroupKind: schema.GroupKind{Kind: "ConfigMap"}}},
	})
	entries := []string{"Secret=v1/secrets", "Namespace=v1/namespaces"} // that the API server does serve
	for i := range 7500 {
		entries = append(entries, fmt.Sprintf("K%d.x.io=v1/k%d", i, i))
	}
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	h.merge(s.parents, h.namespace, "p", fmt.Sprintf(`{"metadata":{"finalizers":[%q],"annotations":{%q:%q}}}`,
		platformName+"/children", platformName+"/inventory", strings.Join(entries, ",")))
	reconcile := func() {
		t.Helper()
		_, err := children.Reconcile(t.Context(), s.parent("p"), h.get(s.parents, h.namespace, "p"), stages(newConfigMap("", "a", "x")))
		h.noError(ignoreRequeue(err))
	}
	reconcile()
	if n := written.writes.Load(); n != 2 {
		t.Errorf("%d writes of an inventory and a child", n)
	}
	inventory := h.get(s.parents, h.namespace, "p").GetAnnotations()[platformName+"/inventory"]
	if !strings.HasPrefix(inventory, "ConfigMap=v1/configmaps,Secret=v1/secrets,") || len(inventory) > 64<<10 {
		t.Errorf("the inventory has %d bytes and begins %.80s", len(inventory), inventory)
	}
	lists.Store(0)
	for range 10 {
		reconcile()
	}
	if n, m := lists.Load(), written.writes.Load(); n != 10 || m != 2 {
		t.Errorf("10 more calls made %d lists, and all %d writes", n, m)
	}

	lists.Store(0)
	h.noError(h.in(s.parents, h.namespace).Delete(t.Context(), "p", metav1.DeleteOptions{}))
	reconcile()
	if now := h.get(s.parents, h.namespace, "p"); now != nil {
		t.Errorf("the parent is held by %q", now.GetFinalizers())
	}
	if n := lists.Load(); n != 0 {
		t.Errorf("the deletion made %d lists", n)
	}
}
