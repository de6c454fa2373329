package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children"
)

// frozenCache is a Cache whose Get method always returns the same object, like a cache that no longer receives events.
type frozenCache struct{ object *unstructured.Unstructured }

func (f frozenCache) Get(
	context.Context, schema.GroupVersionResource, string, string,
) (*unstructured.Unstructured, error) {
	return f.object.DeepCopy(), nil
}

func (f frozenCache) Lister(schema.GroupVersionResource) (dynamiccontroller.Lister, error) {
	return nil, fmt.Errorf("list: %w", dynamiccontroller.ErrNotServed)
}

// beforeCreate returns a Reconciler that calls f once: after it has found that a child does not exist, and before it
// creates the child.
func (s *setting) beforeCreate(f func()) *children.Reconciler {
	s.Helper()
	var called atomic.Bool
	config := intercepted(s.config, func(r *http.Request, send send) (*http.Response, error) {
		response, err := send(r)
		isChild := strings.Contains(r.URL.Path, "/configmaps/") || strings.Contains(r.URL.Path, "/gadgets/")
		if isChild && r.Method == http.MethodGet && err == nil && response.StatusCode == http.StatusNotFound &&
			called.CompareAndSwap(false, true) {
			f()
		}
		return response, err
	})
	return s.newReconciler(children.Config{Client: must(dynamic.NewForConfig(config))})
}

// Another parent or a user creates an object just before the reconciler creates a child with the same name. The
// reconciler must not merge the child into that object.
func TestHandlers_ConcurrentlyCreatedObjectsAreNotTakenOver(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	a := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "a", nil))
	b := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "b", nil))
	newChild := func(kind, value string) *unstructured.Unstructured {
		if kind == "ConfigMap" {
			return newConfigMap("", "both", value)
		}
		return newObject(s.gadgets, "Gadget", "", "both", map[string]any{"value": value})
	}
	for kind, gvr := range map[string]schema.GroupVersionResource{"ConfigMap": configMaps, "Gadget": s.gadgets} {
		_, err := s.beforeCreate(func() {
			reconciler := s.newReconciler(children.Config{})
			_, err := reconciler.Reconcile(t.Context(), s.parent("a"), a.DeepCopy(), partial(newChild(kind, "of a")))
			h.noError(err)
		}).Reconcile(t.Context(), s.parent("b"), h.get(s.parents, h.namespace, "b"), partial(newChild(kind, "of b")))
		if !errors.Is(err, children.ErrNotOwned) {
			t.Errorf("%s: the second parent got error %v, want %v", kind, err, children.ErrNotOwned)
		}
		now := h.get(gvr, h.namespace, "both")
		h.noError(isController(a, now))
		if content := fmt.Sprint(now.Object["data"], now.Object["spec"]); strings.Contains(content, "of b") {
			t.Errorf("%s: the child of the first parent contains %s", kind, content)
		}
		if now.GetDeletionGracePeriodSeconds() != nil || now.GetDeletionTimestamp() != nil {
			t.Errorf("%s: the child is being deleted: %v", kind, now.Object["metadata"])
		}
	}

	_, err := s.beforeCreate(func() {
		object := newConfigMap(h.namespace, "users", "")
		object.Object["data"] = map[string]any{"of": "the user"}
		h.put(configMaps, object)
	}).Reconcile(t.Context(), s.parent("b"), h.get(s.parents, h.namespace, "b"),
		partial(newConfigMap("", "users", "of b")))
	if !errors.Is(err, children.ErrNotOwned) {
		t.Errorf("got error %v, want %v", err, children.ErrNotOwned)
	}
	now := h.get(configMaps, h.namespace, "users")
	if metav1.IsControlledBy(now, b) || fmt.Sprint(now.Object["data"]) != "map[of:the user]" {
		t.Errorf("the user's object was changed to %v", now.Object)
	}
}

// emptyCache is a Cache that holds no objects, like a cache of children that does not hold foreign objects.
type emptyCache struct{ frozenCache }

func (emptyCache) Get(
	_ context.Context, gvr schema.GroupVersionResource, _, name string,
) (*unstructured.Unstructured, error) {
	return nil, apierrors.NewNotFound(gvr.GroupResource(), name)
}

// Children that the cache does not hold are created without reading them first.
func TestHandlers_ObjectsOutsideTheCacheAreNotTakenOver(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	parent := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	foreground := metav1.DeletePropagationForeground
	for name, remove := range map[string]*metav1.DeleteOptions{
		"existing": nil, "with-finalizer": {}, "foreground": {PropagationPolicy: &foreground},
	} {
		object := newConfigMap(h.namespace, name, "")
		object.Object["data"] = map[string]any{"of": "the user"}
		object.SetFinalizers([]string{"example.com/hold"})
		h.put(configMaps, object)
		if remove != nil {
			h.noError(h.in(configMaps, h.namespace).Delete(t.Context(), name, *remove))
		}
		reconciler := s.newReconciler(children.Config{Cache: emptyCache{}})
		for range 2 {
			_, err := reconciler.Reconcile(t.Context(), s.parent("p"), parent, partial(newConfigMap("", name, "of p")))
			if err == nil {
				t.Errorf("%s: got no error", name)
			}
		}
		now := h.get(configMaps, h.namespace, name)
		isOurs := len(now.GetOwnerReferences()) > 0 || len(now.GetLabels()) > 0
		if isOurs || fmt.Sprint(now.Object["data"]) != "map[of:the user]" {
			t.Errorf("%s: the user's object was changed to %v", name, now.Object)
		}
		now.SetFinalizers(nil)
		_, err := h.in(configMaps, h.namespace).Update(t.Context(), now, metav1.UpdateOptions{})
		h.noError(err)
	}
}

// A parent has been deleted and its child orphaned, but the cache still contains the child with its owner reference. If
// the reconciler restored the owner reference, the garbage collector would delete the orphan.
func TestHandlers_OutdatedCacheDoesNotReclaimOrphan(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	parent := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	reconciler := s.newReconciler(children.Config{})
	result, err := reconciler.Reconcile(t.Context(), s.parent("p"), parent, oneStage(newConfigMap("", "child", "one")))
	created := result.Existing()
	h.noError(err)
	// The garbage collector does the same. It would overlook a child that it has not seen yet.
	h.merge(configMaps, h.namespace, "child", `{"metadata":{"ownerReferences":null}}`)
	h.noError(h.in(s.parents, h.namespace).Delete(t.Context(), "p", metav1.DeleteOptions{}))
	h.eventually("the parent is gone", func() error {
		if h.get(s.parents, h.namespace, "p") != nil {
			return errors.New("the parent still exists")
		}
		return nil
	})
	before := h.get(configMaps, h.namespace, "child")
	outdated := s.newReconciler(children.Config{Cache: frozenCache{created[0]}})
	_, err = outdated.Reconcile(t.Context(), s.parent("p"), parent, partial(newConfigMap("", "child", "two")))
	if err == nil {
		t.Error("Reconcile returned no error")
	}
	now := h.get(configMaps, h.namespace, "child")
	if now == nil || now.GetResourceVersion() != before.GetResourceVersion() {
		t.Errorf("the orphan was written: %v", now)
	}
}
