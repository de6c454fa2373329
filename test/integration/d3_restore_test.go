package integration

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// restoreLimit is the time within which a change during or after a restore must have an effect.
const restoreLimit = 30 * time.Second

// The watch of a built-in type is resumed after a restore, from a version that does not exist yet. It receives nothing
// until then. The watch of the custom resource notices the restore.
func TestD3_RestoreIsNoticedForBuiltInChildren(t *testing.T) {
	t.Parallel()
	h, own := newRestorable(t)
	gvr := h.widgets()
	h.apply(gvr, "parent", 0)
	parent, err := h.client.Resource(gvr).Namespace(h.namespace).Get(t.Context(), "parent", metav1.GetOptions{})
	h.noError(err)
	create := func(name string) {
		t.Helper()
		owner := metav1.OwnerReference{
			APIVersion: gvr.GroupVersion().String(), Kind: "Widget", Name: "parent",
			UID: parent.GetUID(), Controller: ptr.To(true),
		}
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: name, OwnerReferences: []metav1.OwnerReference{owner},
		}}
		_, err := h.clients.CoreV1().ConfigMaps(h.namespace).Create(t.Context(), object, metav1.CreateOptions{})
		h.noError(err)
	}
	create("stays")
	create("deleted")
	own.backUp(h)

	c, calls := h.controller(dynamiccontroller.Config{}), newRecorder(t, nil)
	owns := dynamiccontroller.Owns(configMaps)
	h.serve(c, gvr, calls.handle, owns)
	h.run(c)
	calls.waitFor(h.id(gvr, "parent"), 1)
	h.advanceEtcd(1000)
	create("lost")
	calls.waitFor(h.id(gvr, "parent"), 2)

	own.restore(h)
	h.noError(h.clients.CoreV1().ConfigMaps(h.namespace).Delete(t.Context(), "deleted", metav1.DeleteOptions{}))
	lister, err := c.SecondaryLister(gvr, owns.Key())
	h.noError(err)
	h.eventuallyWithin(restoreLimit, "the cache holds the restored state", func() error {
		cached, err := lister.OwnedBy(parent.GetUID())
		if err != nil {
			return err
		}
		if len(cached) != 1 || cached[0].(metav1.Object).GetName() != "stays" {
			return fmt.Errorf("got %d children", len(cached))
		}
		return nil
	})
	before := calls.count(h.id(gvr, "parent"))
	create("new")
	calls.waitFor(h.id(gvr, "parent"), before+1)
}

// The last writes of a Reconciler have later versions than the restored children. Its cache must not believe that the
// restored children are outdated.
func TestHandlers_DriftAfterARestoreIsCorrected(t *testing.T) {
	t.Parallel()
	h, own := newRestorable(t)
	s := newSetting(h)
	f := s.serveParents(desiredBySpec(s), configMaps, s.gadgets)
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", map[string]any{
		"configs": map[string]any{"a": "one"}, "gadgets": map[string]any{"g": "one"},
	}))
	valueOf := func(gvr schema.GroupVersionResource, name string, path ...string) string {
		object, err := h.in(gvr, h.namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		value, _, _ := unstructured.NestedString(object.Object, path...)
		return value
	}
	values := func(want string) func() error {
		return func() error {
			config, gadget := valueOf(configMaps, "a", "data", "key"), valueOf(s.gadgets, "g", "spec", "size")
			if config != want || gadget != want {
				return fmt.Errorf("the ConfigMap has %q and the gadget %q, want %q", config, gadget, want)
			}
			return nil
		}
	}
	h.eventually("the children exist", values("one"))
	f.settle("p")
	own.backUp(h)
	h.advanceEtcd(1000)
	h.eventually("the parent is changed", func() error {
		_, err := h.in(s.parents, h.namespace).Patch(t.Context(), "p", types.MergePatchType,
			[]byte(`{"spec":{"configs":{"a":"two"},"gadgets":{"g":"two"}}}`), metav1.PatchOptions{})
		return err
	})
	h.eventually("the children are changed", values("two"))

	own.restore(h) // the parent and its children have the value "one" again
	drift := func(gvr schema.GroupVersionResource, name, patch string) {
		t.Helper()
		h.eventually(name+" is changed", func() error {
			_, err := h.in(gvr, h.namespace).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			return err
		})
	}
	drift(configMaps, "a", `{"data":{"key":"drifted"}}`)
	drift(s.gadgets, "g", `{"spec":{"size":"drifted"}}`)
	h.eventuallyWithin(restoreLimit, "drift after the restore is corrected", values("one"))
	f.settle("p")
}
