package integration

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/handlers"
)

// The kinds of two calls are recorded by the first, with one write. A process that knows nothing of either finds the
// children of both.
func TestHandlers_KindsOfLaterCallsAreRecordedInOneWrite(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	var written tally
	parent := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	children := s.newChildren(handlers.ChildrenConfig{Client: must(dynamic.NewForConfig(written.through(h.config)))})
	config, gadget := newConfigMap("", "a", "x"), newObject(s.gadgets, "Gadget", "", "g", nil)
	reconcile := func(by *handlers.Children, desired handlers.Desired) {
		t.Helper()
		_, err := by.Reconcile(t.Context(), s.parent("p"), parent, desired)
		h.noError(ignoreRequeue(err))
	}
	kinds := []schema.GroupVersionKind{config.GroupVersionKind(), gadget.GroupVersionKind()}
	reconcile(children, handlers.Desired{Stages: stages(config).Stages, Partial: true, Kinds: kinds})
	reconcile(children, handlers.Desired{Stages: stages(config, gadget).Stages, Kinds: kinds})
	if n := written.writes.Load(); n != 3 {
		t.Errorf("there were %d writes of two children and an inventory", n)
	}
	parent = h.get(s.parents, h.namespace, "p")
	reconcile(s.newChildren(handlers.ChildrenConfig{}), handlers.Desired{})
	if h.get(configMaps, h.namespace, "a") != nil || h.get(s.gadgets, h.namespace, "g") != nil {
		t.Error("a process that knows of no kinds leaves children behind")
	}
}
