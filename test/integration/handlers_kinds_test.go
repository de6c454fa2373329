package integration

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/handlers/children"
)

// The first call writes an inventory that contains the kinds of both calls. Using only this inventory, another process
// must prune the children of both calls.
func TestHandlers_KindsOfLaterCallsAreRecordedInOneWrite(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	var writes writeCounter
	parent := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	reconcile := func(reconciler *children.Reconciler, desired children.Desired) {
		t.Helper()
		_, err := reconciler.Reconcile(t.Context(), s.parent("p"), parent, desired)
		h.noError(ignoreRequeue(err))
	}
	counted := s.newReconciler(children.Config{Client: must(dynamic.NewForConfig(writes.wrap(h.config)))})
	config, gadget := newConfigMap("", "a", "x"), newObject(s.gadgets, "Gadget", "", "g", nil)
	kinds := []schema.GroupVersionKind{config.GroupVersionKind(), gadget.GroupVersionKind()}
	reconcile(counted, children.Desired{Stages: oneStage(config).Stages, Partial: true, Kinds: kinds})
	reconcile(counted, children.Desired{Stages: oneStage(config, gadget).Stages, Kinds: kinds})
	if n := writes.Load(); n != 3 {
		t.Errorf("got %d writes for two children and an inventory, want 3", n)
	}
	parent = h.get(s.parents, h.namespace, "p")
	reconcile(s.newReconciler(children.Config{}), children.Desired{})
	if h.get(configMaps, h.namespace, "a") != nil || h.get(s.gadgets, h.namespace, "g") != nil {
		t.Error("another process did not prune all children")
	}
}
