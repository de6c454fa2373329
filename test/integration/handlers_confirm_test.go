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

// restoredParent is a parent that has been restored with its children after its namespace was deleted.
type restoredParent struct {
	*setting
	types      map[string]schema.GroupVersionResource // the type of each child, by name
	backups    map[string]*unstructured.Unstructured  // the restored children, by name
	object     *unstructured.Unstructured             // the restored parent
	reconciler *children.Reconciler
}

// newRestoredParent creates a parent and its children, deletes their namespace and restores them in a new one.
func (s *setting) newRestoredParent() *restoredParent {
	s.Helper()
	r := &restoredParent{
		setting: s,
		types: map[string]schema.GroupVersionResource{
			"first": configMaps, "second": configMaps, "retained": configMaps, "g": s.gadgets,
		},
		backups: map[string]*unstructured.Unstructured{},
	}
	parent := s.put(s.parents, newObject(s.parents, "Platform", s.namespace, "p", nil))
	_, err := s.newReconciler(children.Config{}).Reconcile(s.Context(), s.parent("p"), parent, r.desired("old"))
	s.noError(err)
	for name, gvr := range r.types {
		r.backups[name] = restored(s.get(gvr, s.namespace, name))
	}
	backup := restored(s.get(s.parents, s.namespace, "p"))
	s.merge(s.parents, s.namespace, "p", `{"metadata":{"finalizers":null}}`)
	s.recreateNamespace()
	for name, gvr := range r.types {
		s.put(gvr, r.backups[name])
	}
	r.object = s.put(s.parents, backup)
	r.reconciler = s.newReconciler(children.Config{})
	return r
}

// desired returns the desired children with the value.
func (r *restoredParent) desired(value string) children.Desired {
	first, second := newConfigMap("", "first", value), newConfigMap("", "second", value)
	retained := children.Child{Object: newConfigMap("", "retained", value), Retain: true}
	return children.Desired{Stages: [][]children.Child{
		append(children.Stage(first, newObject(r.gadgets, "Gadget", "", "g", map[string]any{"x": value})), retained),
		children.Stage(second),
	}}
}

// reconcile reconciles the restored parent with the value "new" for its children.
func (r *restoredParent) reconcile() (children.Result, error) {
	return r.reconciler.Reconcile(r.Context(), r.parent("p"), r.get(r.parents, r.namespace, "p"), r.desired("new"))
}

// checkConflict checks that a child is a conflict that reports how to confirm the parent.
func (r *restoredParent) checkConflict(child children.ChildResult) {
	r.Helper()
	want := fmt.Sprintf("%s/restored=%s", platformName, r.object.GetUID())
	if child.Outcome != children.OutcomeConflict || child.Reason != children.ReasonNotConfirmed ||
		!strings.Contains(child.Message, want) || child.Object != nil {
		r.Errorf("got %s, want a conflict with %s", describe(child), want)
	}
}

// confirmAll confirms all children with the UID of the namespace, after a check that none was changed before.
func (r *restoredParent) confirmAll() {
	r.Helper()
	for name, gvr := range r.types {
		if now := r.get(gvr, r.namespace, name); !maps.Equal(now.GetAnnotations(), r.backups[name].GetAnnotations()) {
			r.Errorf("%s was changed without a confirmation: %v", name, now.Object)
		}
		r.confirm(gvr, r.namespace, name, r.get(namespaces, "", r.namespace).GetUID())
	}
}

// checkConfirmed checks that a child has the new value, no confirmation, and the parent as its controller unless it
// is the retained child.
func (r *restoredParent) checkConfirmed(name string, gvr schema.GroupVersionResource) {
	r.Helper()
	now := r.get(gvr, r.namespace, name)
	value, _, _ := unstructured.NestedString(now.Object, "data", "key")
	if gvr == r.gadgets {
		value, _, _ = unstructured.NestedString(now.Object, "spec", "x")
	}
	annotations := now.GetAnnotations()
	if value != "new" || annotations[platformName+"/restored"] != "" || annotations[platformName+"/adopted"] != "" {
		r.Errorf("%s after the confirmation: %v", name, now.Object)
	}
	if isOwned := isController(r.object, now) == nil; isOwned == (name == "retained") {
		r.Errorf("%s has the owner references %v", name, now.GetOwnerReferences())
	}
}

// finishDeletion reconciles the deleted parent while it exists. It returns an error until the parent and all children
// but the retained one are gone.
func (r *restoredParent) finishDeletion() error {
	if now := r.get(r.parents, r.namespace, "p"); now != nil {
		_, err := r.reconciler.Reconcile(r.Context(), r.parent("p"), now, children.Desired{})
		return fmt.Errorf("the parent exists: %w", errors.Join(err))
	}
	for name, gvr := range r.types {
		if exists := r.get(gvr, r.namespace, name) != nil; exists != (name == "retained") {
			return fmt.Errorf("%s exists: %t", name, exists)
		}
	}
	return nil
}

// A namespace is deleted, and a tool for backups restores the parent and its children without owner references. The
// children are conflicts until they are confirmed. Afterwards, they are children like all others.
func TestHandlers_RestoredNamespace(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	r := newSetting(h).newRestoredParent()

	result, err := r.reconcile()
	if !errors.Is(err, children.ErrNotConfirmed) || !errors.Is(err, children.ErrNotOwned) {
		t.Fatalf("without a confirmation: got %v, want %v", err, children.ErrNotConfirmed)
	}
	for _, child := range result.Children[:2] {
		r.checkConflict(child)
	}
	r.confirmAll()
	_, err = r.reconcile()
	h.noError(err)
	for name, gvr := range r.types {
		r.checkConfirmed(name, gvr)
	}
	before := h.get(configMaps, h.namespace, "first").GetResourceVersion()
	if _, err := r.reconcile(); err != nil || h.get(configMaps, h.namespace, "first").GetResourceVersion() != before {
		t.Errorf("the next reconcile wrote again: %v", err)
	}
	h.noError(h.in(r.parents, h.namespace).Delete(t.Context(), "p", metav1.DeleteOptions{}))
	h.eventually("the children are deleted with the parent", r.finishDeletion)
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
