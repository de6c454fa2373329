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

	"github.com/dynamic-controller/engine/handlers/children"
)

// A user adds the controller's finalizer and a forged inventory with 7,500 kinds to the parent. The controller must not
// list any of these kinds, and must write the parent only once.
func TestHandlers_ForgedInventoryCausesNoRequests(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	var lists atomic.Int64
	var writes writeCounter
	counted := intercepted(writes.wrap(h.config), func(r *http.Request, send send) (*http.Response, error) {
		isForged := strings.Contains(r.URL.Path, "/k7") // with the slash, because the name of the namespace is random
		isList := strings.Contains(r.URL.RawQuery, "labelSelector") || isForged
		if r.Method == http.MethodGet && isList {
			lists.Add(1)
		}
		return send(r)
	})
	reconciler := s.newReconciler(children.Config{
		Client: must(dynamic.NewForConfig(counted)),
		Kinds:  []children.Kind{{GroupKind: schema.GroupKind{Kind: "ConfigMap"}}},
	})
	entries := []string{"Secret=v1/secrets:0", "Namespace=v1/namespaces:0"} // kinds that the API server serves
	for i := range 7500 {
		entries = append(entries, fmt.Sprintf("K%d.x.io=v1/k%d:0", i, i))
	}
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	h.merge(s.parents, h.namespace, "p", fmt.Sprintf(`{"metadata":{"finalizers":[%q],"annotations":{%q:%q}}}`,
		platformName+"/children", platformName+"/inventory", strings.Join(entries, ",")))
	reconcile := func() {
		t.Helper()
		parent := h.get(s.parents, h.namespace, "p")
		_, err := reconciler.Reconcile(t.Context(), s.parent("p"), parent, oneStage(newConfigMap("", "a", "x")))
		h.noError(ignoreRequeue(err))
	}
	reconcile()
	if n := writes.Load(); n != 2 {
		t.Errorf("got %d writes for an inventory and a child, want 2", n)
	}
	inventory := h.get(s.parents, h.namespace, "p").GetAnnotations()[platformName+"/inventory"]
	if !strings.HasPrefix(inventory, "ConfigMap=v1/configmaps:0,Secret=v1/secrets:0,") || len(inventory) > 64<<10 {
		t.Errorf("the inventory has %d bytes and begins with %.80s", len(inventory), inventory)
	}
	lists.Store(0)
	for range 10 {
		reconcile()
	}
	if n, m := lists.Load(), writes.Load(); n != 10 || m != 2 {
		t.Errorf("10 more calls sent %d lists, and all calls together sent %d writes; want 10 and 2", n, m)
	}

	lists.Store(0)
	h.noError(h.in(s.parents, h.namespace).Delete(t.Context(), "p", metav1.DeleteOptions{}))
	reconcile()
	if now := h.get(s.parents, h.namespace, "p"); now != nil {
		t.Errorf("the parent still has the finalizers %q", now.GetFinalizers())
	}
	if n := lists.Load(); n != 1 {
		t.Errorf("the cleanup sent %d lists, want one of the ConfigMaps", n)
	}
}
