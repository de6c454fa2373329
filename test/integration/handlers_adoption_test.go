package integration

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/dynamic-controller/engine/handlers"
)

// An object that is there is never taken over, whoever's it is, and the error says so; the other children are made.
func TestHandlers_WhatIsSomebodyElsesIsNeverTakenOver(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	other := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "other", nil))
	controlled := newConfigMap(h.namespace, "controlled", "theirs")
	controlled.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(other, other.GroupVersionKind())})
	controlled.SetLabels(map[string]string{"app": "p"})
	h.put(configMaps, controlled)
	h.put(configMaps, newConfigMap(h.namespace, "orphan", "theirs"))
	parent := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	labelled := func(name string) *unstructured.Unstructured {
		object := newConfigMap("", name, "ours")
		object.SetLabels(map[string]string{"app": "p"})
		return object
	}

	for _, selector := range []labels.Selector{nil, labels.SelectorFromSet(labels.Set{"app": "p"})} {
		children := s.newChildren(handlers.ChildrenConfig{Selector: selector})
		_, err := children.Reconcile(t.Context(), s.parent("p"), parent.DeepCopy(), stages(labelled("controlled"), labelled("orphan"), labelled("free")))
		for _, name := range []string{"controlled", "orphan"} {
			_, alone := children.Reconcile(t.Context(), s.parent("p"), parent.DeepCopy(), handlers.Desired{Stages: stages(labelled(name)).Stages, Partial: true})
			if !errors.Is(alone, handlers.ErrNotOurs) || err == nil || !strings.Contains(err.Error(), alone.Error()) {
				t.Errorf("the error for %s is %v, and among others %v", name, alone, err)
			}
			now := h.get(configMaps, h.namespace, name)
			if value, _, _ := unstructured.NestedString(now.Object, "data", "key"); value != "theirs" || metav1.IsControlledBy(now, parent) {
				t.Errorf("%s was taken over: %v", name, now.Object)
			}
		}
		h.noError(isController(parent, h.get(configMaps, h.namespace, "free")))
	}
}

// An orphan that matches is adopted, by an owner that the API server knows to be alive; one that matches no longer is
// released, and neither is changed otherwise.
func TestHandlers_AdoptedAndReleasedBySelector(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	parent := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	selector := labels.SelectorFromSet(labels.Set{"app": "p"})
	children := s.newChildren(handlers.ChildrenConfig{Selector: selector})
	orphan := newConfigMap(h.namespace, "orphan", "theirs")
	orphan.SetLabels(map[string]string{"app": "p"})
	uid := h.put(configMaps, orphan).GetUID()
	want := newConfigMap("", "orphan", "ours")
	want.SetLabels(map[string]string{"app": "p"})
	reconcile := func(parent *unstructured.Unstructured) error {
		_, err := children.Reconcile(t.Context(), s.parent("p"), parent.DeepCopy(), stages(want))
		return err
	}

	replaced := parent.DeepCopy()
	replaced.SetUID("another")
	replaced.SetResourceVersion("1")
	if err := reconcile(replaced); metav1.GetControllerOf(h.get(configMaps, h.namespace, "orphan")) != nil {
		t.Errorf("an owner that is no more adopted: %v", err)
	}
	h.noError(reconcile(parent))
	adopted := h.get(configMaps, h.namespace, "orphan")
	h.noError(isController(parent, adopted))
	if adopted.GetUID() != uid {
		t.Error("it was made anew")
	}

	h.merge(configMaps, h.namespace, "orphan", `{"metadata":{"labels":{"app":"quarantine"}}}`)
	if err := reconcile(parent); !errors.Is(err, handlers.ErrNotOurs) {
		t.Errorf("released: %v", err)
	}
	released := h.get(configMaps, h.namespace, "orphan")
	if metav1.GetControllerOf(released) != nil || released.GetLabels()["app"] != "quarantine" || released.GetUID() != uid {
		t.Errorf("not released: %v", released.Object)
	}
	_, err := children.Reconcile(t.Context(), s.parent("p"), h.get(s.parents, h.namespace, "p"), handlers.Desired{})
	h.noError(ignoreRequeue(err))
	if h.get(configMaps, h.namespace, "orphan") == nil {
		t.Error("what was released was pruned")
	}

	// A cache may show for long an owner that is being deleted as it was before.
	second := newConfigMap("", "second", "ours")
	second.SetLabels(map[string]string{"app": "p"})
	reconcileSecond := func(parent *unstructured.Unstructured) error {
		_, err := children.Reconcile(t.Context(), s.parent("p"), parent, handlers.Desired{Stages: stages(second).Stages, Partial: true})
		return err
	}
	h.noError(reconcileSecond(h.get(s.parents, h.namespace, "p")))
	h.merge(s.parents, h.namespace, "p", `{"metadata":{"finalizers":["test.example.com/hold"]}}`)
	alive := h.get(s.parents, h.namespace, "p")
	h.noError(h.in(s.parents, h.namespace).Delete(t.Context(), "p", metav1.DeleteOptions{}))
	h.noError(h.in(configMaps, h.namespace).Delete(t.Context(), "second", metav1.DeleteOptions{}))
	orphan.SetName("second")
	h.put(configMaps, orphan)
	if err := reconcileSecond(alive); err == nil || metav1.GetControllerOf(h.get(configMaps, h.namespace, "second")) != nil {
		t.Errorf("an owner that is being deleted adopted: %v", err)
	}
	h.merge(s.parents, h.namespace, "p", `{"metadata":{"finalizers":null}}`)
}

// ignoreRequeue is for what is waited for anyway.
func ignoreRequeue(err error) error {
	if err != nil && strings.HasPrefix(err.Error(), "requeue after") {
		return nil
	}
	return err
}

// Claim adopts and releases what has no fixed name, and an owner that is being deleted, or that was made anew, adopts nothing
// whatever its cache says.
func TestHandlers_ClaimAsksTheServerWhetherTheOwnerLives(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	claim := handlers.Claim{Client: h.client, FieldManager: platformName, Selector: labels.SelectorFromSet(labels.Set{"app": "p"})}
	owner := newObject(s.parents, "Platform", h.namespace, "p", nil)
	owner.SetFinalizers([]string{"test.example.com/hold"})
	owner = h.put(s.parents, owner)
	list := func() []*unstructured.Unstructured {
		found, err := handlers.Live(h.client).List(t.Context(), configMaps, h.namespace, labels.Everything())
		h.noError(err)
		return found
	}
	object := func(name, app string) *unstructured.Unstructured {
		object := newConfigMap(h.namespace, name, "x")
		object.SetLabels(map[string]string{"app": app})
		return h.put(configMaps, object)
	}
	names := func(objects []*unstructured.Unstructured) string {
		var all []string
		for _, object := range objects {
			all = append(all, object.GetName())
		}
		slices.Sort(all)
		return strings.Join(all, " ")
	}
	object("a", "p")
	object("b", "p")
	object("c", "q")
	claimed, err := claim.Objects(t.Context(), s.parent("p"), owner, configMaps, list())
	h.noError(err)
	if names(claimed) != "a b" {
		t.Errorf("claimed %s", names(claimed))
	}
	h.noError(isController(owner, h.get(configMaps, h.namespace, "a")))
	h.merge(configMaps, h.namespace, "b", `{"metadata":{"labels":{"app":"q"}}}`)
	claimed, err = claim.Objects(t.Context(), s.parent("p"), owner, configMaps, list())
	h.noError(err)
	if names(claimed) != "a" || metav1.GetControllerOf(h.get(configMaps, h.namespace, "b")) != nil {
		t.Errorf("claimed %s, and b has %v", names(claimed), h.get(configMaps, h.namespace, "b").GetOwnerReferences())
	}

	object("d", "p")
	h.noError(h.in(s.parents, h.namespace).Delete(t.Context(), "p", metav1.DeleteOptions{}))
	if _, err = claim.Objects(t.Context(), s.parent("p"), owner, configMaps, list()); err == nil {
		t.Error("an owner that is being deleted may adopt")
	}
	h.merge(s.parents, h.namespace, "p", `{"metadata":{"finalizers":null}}`)
	h.eventually("the owner is gone", func() error {
		if h.get(s.parents, h.namespace, "p") != nil {
			return errors.New("it is not")
		}
		return nil
	})
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	if _, err = claim.Objects(t.Context(), s.parent("p"), owner, configMaps, list()); err == nil {
		t.Error("an owner that was made anew may adopt")
	}
	if refs := h.get(configMaps, h.namespace, "d").GetOwnerReferences(); len(refs) != 0 {
		t.Errorf("d was adopted: %v", refs)
	}
}

// A process that sees an old parent, without the kinds that another has recorded since, loses none of them.
func TestHandlers_AnOldParentLosesNoKind(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	old := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	reconcile := func(children *handlers.Children, parent *unstructured.Unstructured, desired handlers.Desired) {
		t.Helper()
		_, err := children.Reconcile(t.Context(), s.parent("p"), parent, desired)
		h.noError(ignoreRequeue(err))
	}
	gadget := newObject(s.gadgets, "Gadget", "", "g", nil)
	for _, children := range []*handlers.Children{nil, s.newChildren(handlers.ChildrenConfig{})} {
		earlier := children // the same process, with a cache that lags, or another one
		if earlier == nil {
			earlier = s.newChildren(handlers.ChildrenConfig{})
			children = s.newChildren(handlers.ChildrenConfig{})
		}
		reconcile(earlier, old.DeepCopy(), stages(newConfigMap("", "a", "x")))
		reconcile(children, old.DeepCopy(), stages(gadget))
		h.eventually("the first kind is pruned", func() error {
			reconcile(children, h.get(s.parents, h.namespace, "p"), stages(gadget))
			if h.get(configMaps, h.namespace, "a") != nil {
				return fmt.Errorf("not yet, with the inventory %v", h.get(s.parents, h.namespace, "p").GetAnnotations())
			}
			return nil
		})
	}
}
