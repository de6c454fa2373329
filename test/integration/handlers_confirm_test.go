package integration

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/handlers/children"
)

// unknownUID is the UID of an object that no longer exists.
const unknownUID = "00000000-0000-0000-0000-000000000000"

// restored returns an object as tools for backups create it by default: with its labels and annotations, but without
// owner references, finalizers and UID.
func restored(backup *unstructured.Unstructured) *unstructured.Unstructured {
	object := backup.DeepCopy()
	metadata := map[string]any{"name": backup.GetName()}
	for _, field := range []string{"namespace", "labels", "annotations"} {
		if value, found, _ := unstructured.NestedFieldCopy(backup.Object, "metadata", field); found {
			metadata[field] = value
		}
	}
	object.Object["metadata"] = metadata
	delete(object.Object, "status")
	return object
}

// confirm sets the annotation that confirms that the parent of a child has been restored.
func (s *setting) confirm(gvr schema.GroupVersionResource, namespace, name string, value any) {
	s.Helper()
	s.merge(gvr, namespace, name, fmt.Sprintf(`{"metadata":{"annotations":{"%s/restored":%q}}}`, platformName, value))
}

// A namespace is deleted, and a tool for backups restores the parent and its children without owner references. The
// children are conflicts until they are confirmed. Afterwards, they are children like all others.
func TestHandlers_RestoredNamespace(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	desired := func(value string) children.Desired {
		first, second := newConfigMap("", "first", value), newConfigMap("", "second", value)
		retained := children.Child{Object: newConfigMap("", "retained", value), Retain: true}
		return children.Desired{Stages: [][]children.Child{
			append(children.Stage(first, newObject(s.gadgets, "Gadget", "", "g", map[string]any{"x": value})), retained),
			children.Stage(second),
		}}
	}
	names := map[string]schema.GroupVersionResource{
		"first": configMaps, "second": configMaps, "retained": configMaps, "g": s.gadgets,
	}
	parent := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	_, err := s.newReconciler(children.Config{}).Reconcile(t.Context(), s.parent("p"), parent, desired("old"))
	h.noError(err)
	backups := map[string]*unstructured.Unstructured{}
	for name, gvr := range names {
		backups[name] = restored(h.get(gvr, h.namespace, name))
	}
	backup := restored(h.get(s.parents, h.namespace, "p"))
	h.merge(s.parents, h.namespace, "p", `{"metadata":{"finalizers":null}}`)
	h.recreateNamespace()
	for name, gvr := range names {
		h.put(gvr, backups[name])
	}
	parent = h.put(s.parents, backup)
	reconciler := s.newReconciler(children.Config{})
	reconcile := func(value string) (children.Result, error) {
		return reconciler.Reconcile(t.Context(), s.parent("p"), h.get(s.parents, h.namespace, "p"), desired(value))
	}

	result, err := reconcile("new")
	if !errors.Is(err, children.ErrNotConfirmed) || !errors.Is(err, children.ErrNotOwned) {
		t.Fatalf("without a confirmation: got %v, want %v", err, children.ErrNotConfirmed)
	}
	for _, child := range result.Children[:2] {
		want := fmt.Sprintf("%s/restored=%s", platformName, parent.GetUID())
		if child.Outcome != children.Conflict || child.Reason != children.ReasonNotConfirmed ||
			!strings.Contains(child.Message, want) || child.Object != nil {
			t.Errorf("got %s, want a conflict with %s", describe(child), want)
		}
	}
	for name, gvr := range names {
		if now := h.get(gvr, h.namespace, name); !maps.Equal(now.GetAnnotations(), backups[name].GetAnnotations()) {
			t.Errorf("%s was changed without a confirmation: %v", name, now.Object)
		}
		s.confirm(gvr, h.namespace, name, h.get(namespaces, "", h.namespace).GetUID())
	}
	_, err = reconcile("new")
	h.noError(err)
	for name, gvr := range names {
		now := h.get(gvr, h.namespace, name)
		value, _, _ := unstructured.NestedString(now.Object, "data", "key")
		if gvr == s.gadgets {
			value, _, _ = unstructured.NestedString(now.Object, "spec", "x")
		}
		annotations := now.GetAnnotations()
		if value != "new" || annotations[platformName+"/restored"] != "" || annotations[platformName+"/adopted"] != "" {
			t.Errorf("%s after the confirmation: %v", name, now.Object)
		}
		if isOwned := isController(parent, now) == nil; isOwned == (name == "retained") {
			t.Errorf("%s has the owner references %v", name, now.GetOwnerReferences())
		}
	}
	before := h.get(configMaps, h.namespace, "first").GetResourceVersion()
	if _, err := reconcile("new"); err != nil || h.get(configMaps, h.namespace, "first").GetResourceVersion() != before {
		t.Errorf("the next reconcile wrote again: %v", err)
	}
	h.noError(h.in(s.parents, h.namespace).Delete(t.Context(), "p", metav1.DeleteOptions{}))
	h.eventually("the children are deleted with the parent", func() error {
		if now := h.get(s.parents, h.namespace, "p"); now != nil {
			_, err := reconciler.Reconcile(t.Context(), s.parent("p"), now, children.Desired{})
			return fmt.Errorf("the parent exists: %w", errors.Join(err))
		}
		for name, gvr := range names {
			if exists := h.get(gvr, h.namespace, name) != nil; exists != (name == "retained") {
				return fmt.Errorf("%s exists: %t", name, exists)
			}
		}
		return nil
	})
}

// A confirmation gives an object to the parent only if the object has lost its owner reference, and its marks name the
// parent, or the confirmation does. Otherwise, nothing is changed.
func TestHandlers_ConfirmationsOfOthersObjects(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	realms := h.defineKind("Realm", apiextensionsv1.ClusterScoped)
	s.mapper, _ = h.mapperOf(s.parents, s.gadgets, realms)
	parent := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	other := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "other", nil))
	of := func(parent *unstructured.Unstructured, name string) *unstructured.Unstructured {
		t.Helper()
		_, err := s.newReconciler(children.Config{}).Reconcile(t.Context(), s.parent(parent.GetName()), parent.DeepCopy(),
			partial(newConfigMap("", name, "old")))
		h.noError(err)
		object := restored(h.get(configMaps, h.namespace, name))
		h.noError(h.in(configMaps, h.namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
		return object
	}
	// lost returns a child that the parent had with an earlier UID.
	lost := func(parent *unstructured.Unstructured, name string) *unstructured.Unstructured {
		object := of(parent, name)
		object.SetLabels(map[string]string{platformName + "/parent": unknownUID})
		return object
	}
	namespaceUID := string(h.get(namespaces, "", h.namespace).GetUID())
	for name, test := range map[string]struct {
		object  func(name string) *unstructured.Unstructured
		confirm string
		owned   bool
	}{
		"its own child, with the namespace": {
			func(name string) *unstructured.Unstructured { return lost(parent, name) }, namespaceUID, true,
		},
		"its own child, with the parent": {
			func(name string) *unstructured.Unstructured { return lost(parent, name) }, string(parent.GetUID()), true,
		},
		"its own child, with another namespace": {
			func(name string) *unstructured.Unstructured { return lost(parent, name) }, unknownUID, false,
		},
		"its own child, with another parent": {
			func(name string) *unstructured.Unstructured { return lost(parent, name) }, string(other.GetUID()), false,
		},
		"the child of another parent, with the namespace": {
			func(name string) *unstructured.Unstructured { return lost(other, name) }, namespaceUID, false,
		},
		"the child of another parent, with the parent": {
			func(name string) *unstructured.Unstructured { return lost(other, name) }, string(parent.GetUID()), true,
		},
		"the child of another parent that exists": {
			func(name string) *unstructured.Unstructured { return of(other, name) }, namespaceUID, false,
		},
		"a copy with another name": {func(name string) *unstructured.Unstructured {
			object := lost(parent, "copied-"+name)
			object.SetName(name)
			return object
		}, namespaceUID, false},
		"a child with another controller": {func(name string) *unstructured.Unstructured {
			object := lost(parent, name)
			object.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(other, other.GroupVersionKind())})
			return object
		}, string(parent.GetUID()), false},
		"an object without the label": {func(name string) *unstructured.Unstructured {
			object := lost(parent, name)
			object.SetLabels(nil)
			return object
		}, string(parent.GetUID()), false},
		"an object without the annotation": {func(name string) *unstructured.Unstructured {
			object := lost(parent, name)
			object.SetAnnotations(nil)
			return object
		}, string(parent.GetUID()), false},
	} {
		t.Run(name, func(t *testing.T) {
			id := strings.NewReplacer(" ", "-", ",", "").Replace(name)
			h.put(configMaps, test.object(id))
			s.confirm(configMaps, h.namespace, id, test.confirm)
			before := h.get(configMaps, h.namespace, id)
			_, err := s.newReconciler(children.Config{}).Reconcile(t.Context(), s.parent("p"), parent.DeepCopy(),
				partial(newConfigMap("", id, "new")))
			now := h.get(configMaps, h.namespace, id)
			switch {
			case test.owned:
				h.noError(err)
				h.noError(isController(parent, now))
			case !errors.Is(err, children.ErrNotOwned):
				t.Errorf("got %v, want %v", err, children.ErrNotOwned)
			case now.GetResourceVersion() != before.GetResourceVersion():
				t.Errorf("the object was changed: %v", now.Object)
			}
		})
	}

	t.Run("a child of a cluster-scoped parent", func(t *testing.T) {
		realm := h.put(realms, newObject(realms, "Realm", "", "r-"+h.namespace, nil))
		t.Cleanup(func() {
			if err := h.in(realms, "").Delete(h.Context(), realm.GetName(), metav1.DeleteOptions{}); err != nil &&
				!apierrors.IsNotFound(err) {
				t.Error(err)
			}
		})
		id := h.id(realms, realm.GetName())
		id.NamespacedKey = realm.GetName()
		reconcile := func(value string) error {
			_, err := s.newReconciler(children.Config{}).Reconcile(t.Context(), id, realm.DeepCopy(),
				partial(newConfigMap(h.namespace, "of-realm", value)))
			return err
		}
		h.noError(reconcile("old"))
		object := restored(h.get(configMaps, h.namespace, "of-realm"))
		h.noError(h.in(configMaps, h.namespace).Delete(t.Context(), "of-realm", metav1.DeleteOptions{}))
		object.SetLabels(map[string]string{platformName + "/parent": unknownUID})
		h.put(configMaps, object)
		s.confirm(configMaps, h.namespace, "of-realm", namespaceUID)
		if err := reconcile("new"); !errors.Is(err, children.ErrNotConfirmed) {
			t.Errorf("confirmed with the namespace: got %v, want %v", err, children.ErrNotConfirmed)
		}
		s.confirm(configMaps, h.namespace, "of-realm", realm.GetUID())
		h.noError(reconcile("new"))
		h.noError(isController(realm, h.get(configMaps, h.namespace, "of-realm")))
	})
}
