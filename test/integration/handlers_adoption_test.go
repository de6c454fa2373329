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

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/children"
)

// adopting returns desired children with Adopt set, in a single stage.
func adopting(objects ...*unstructured.Unstructured) children.Desired {
	desired := oneStage(objects...)
	for i := range desired.Stages[0] {
		desired.Stages[0][i].Adopt = true
	}
	return desired
}

// If an object that the parent does not own has the name of a desired child, the reconciler must not change the object.
// It must still create the other desired children.
func TestHandlers_ForeignObjectsAreNeverTakenOver(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	other := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "other", nil))
	controlled := newConfigMap(h.namespace, "controlled", "other")
	controlled.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(other, other.GroupVersionKind())})
	h.put(configMaps, controlled)
	h.put(configMaps, newConfigMap(h.namespace, "orphan", "other"))
	parent := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	desired := func(name string) *unstructured.Unstructured { return newConfigMap("", name, "desired") }

	reconciler := s.newReconciler(children.Config{})
	for _, all := range []children.Desired{
		oneStage(desired("controlled"), desired("orphan"), desired("new")), adopting(desired("controlled"), desired("new")),
	} {
		_, err := reconciler.Reconcile(t.Context(), s.parent("p"), parent.DeepCopy(), all)
		for _, child := range all.Stages[0] {
			name := child.Object.GetName()
			if name == "new" {
				continue
			}
			alone := children.Desired{Stages: [][]children.Child{{child}}, Partial: true}
			_, single := reconciler.Reconcile(t.Context(), s.parent("p"), parent.DeepCopy(), alone)
			if !errors.Is(single, children.ErrNotOwned) || err == nil || !strings.Contains(err.Error(), single.Error()) {
				t.Errorf("%s: got error %v for this child alone, and error %v for all children", name, single, err)
			}
			now := h.get(configMaps, h.namespace, name)
			value, _, _ := unstructured.NestedString(now.Object, "data", "key")
			if value != "other" || metav1.IsControlledBy(now, parent) {
				t.Errorf("%s was taken over: %v", name, now.Object)
			}
		}
		h.noError(isController(parent, h.get(configMaps, h.namespace, "new")))
	}
}

// The reconciler reads the owner from the API server before it adopts a child.
func TestHandlers_ChildrenAreAdopted(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	parent := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	reconciler := s.newReconciler(children.Config{})
	uid := h.put(configMaps, newConfigMap(h.namespace, "orphan", "other")).GetUID()
	reconcile := func(parent *unstructured.Unstructured, name string) error {
		desired := adopting(newConfigMap("", name, "desired"))
		desired.Partial = true
		_, err := reconciler.Reconcile(t.Context(), s.parent("p"), parent, desired)
		return err
	}

	replaced := parent.DeepCopy()
	replaced.SetUID("another")
	replaced.SetResourceVersion("1")
	if err := reconcile(replaced, "orphan"); metav1.GetControllerOf(h.get(configMaps, h.namespace, "orphan")) != nil {
		t.Errorf("an owner that no longer exists adopted the orphan: %v", err)
	}
	h.noError(reconcile(parent.DeepCopy(), "orphan"))
	adopted := h.get(configMaps, h.namespace, "orphan")
	h.noError(isController(parent, adopted))
	if adopted.GetUID() != uid {
		t.Error("the orphan was recreated")
	}

	// Pass an outdated owner, which lacks the deletion timestamp.
	h.merge(s.parents, h.namespace, "p", `{"metadata":{"finalizers":["test.example.com/hold"]}}`)
	outdated := h.get(s.parents, h.namespace, "p")
	h.noError(h.in(s.parents, h.namespace).Delete(t.Context(), "p", metav1.DeleteOptions{}))
	h.put(configMaps, newConfigMap(h.namespace, "second", "other"))
	err := reconcile(outdated, "second")
	if err == nil || metav1.GetControllerOf(h.get(configMaps, h.namespace, "second")) != nil {
		t.Errorf("an owner that is being deleted adopted a child: %v", err)
	}
	h.merge(s.parents, h.namespace, "p", `{"metadata":{"finalizers":null}}`)
}

// ignoreRequeue returns err, or nil if err is a requeue request.
func ignoreRequeue(err error) error {
	if _, requeued := dynamiccontroller.RequeueDelay(err); requeued {
		return nil
	}
	return err
}

// A handler can pass an outdated owner to Claim. If the current owner is being deleted or has been recreated, Claim
// must not adopt objects.
func TestHandlers_ClaimerDoesNotAdoptForDeletedOrRecreatedOwner(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	claimer := must(handlers.NewClaimer(handlers.ClaimerConfig{
		Client: h.client, FieldManager: platformName, Selector: labels.SelectorFromSet(labels.Set{"app": "p"}),
	}))
	owner := newObject(s.parents, "Platform", h.namespace, "p", nil)
	owner.SetFinalizers([]string{"test.example.com/hold"})
	owner = h.put(s.parents, owner)
	claim := func() ([]*unstructured.Unstructured, error) {
		candidates, err := handlers.Live(h.client).List(t.Context(), configMaps, h.namespace, labels.Everything())
		h.noError(err)
		return claimer.Claim(t.Context(), s.parent("p"), owner, configMaps, candidates)
	}
	create := func(name, app string) {
		object := newConfigMap(h.namespace, name, "x")
		object.SetLabels(map[string]string{"app": app})
		h.put(configMaps, object)
	}
	names := func(objects []*unstructured.Unstructured) string {
		var all []string
		for _, object := range objects {
			all = append(all, object.GetName())
		}
		slices.Sort(all)
		return strings.Join(all, " ")
	}
	create("a", "p")
	create("b", "p")
	create("c", "q")
	claimed, err := claim()
	h.noError(err)
	if names(claimed) != "a b" {
		t.Errorf("claimed %s, want a and b", names(claimed))
	}
	h.noError(isController(owner, h.get(configMaps, h.namespace, "a")))
	h.merge(configMaps, h.namespace, "b", `{"metadata":{"labels":{"app":"q"}}}`)
	claimed, err = claim()
	h.noError(err)
	if names(claimed) != "a" || metav1.GetControllerOf(h.get(configMaps, h.namespace, "b")) != nil {
		t.Errorf("claimed %q, want a; b has the owners %v", names(claimed),
			h.get(configMaps, h.namespace, "b").GetOwnerReferences())
	}

	create("d", "p")
	h.noError(h.in(s.parents, h.namespace).Delete(t.Context(), "p", metav1.DeleteOptions{}))
	if _, err = claim(); err == nil {
		t.Error("Claim succeeded for an owner that is being deleted")
	}
	h.merge(s.parents, h.namespace, "p", `{"metadata":{"finalizers":null}}`)
	h.eventually("the owner is gone", func() error {
		if h.get(s.parents, h.namespace, "p") != nil {
			return errors.New("the owner still exists")
		}
		return nil
	})
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	if _, err = claim(); err == nil {
		t.Error("Claim succeeded for an outdated copy of a recreated owner")
	}
	if refs := h.get(configMaps, h.namespace, "d").GetOwnerReferences(); len(refs) != 0 {
		t.Errorf("d was adopted: %v", refs)
	}
}

// The reconciler records the kinds of children in the parent's inventory. If the caller's copy of the parent is
// outdated and lacks some of these kinds, the reconciler must still keep them in the inventory.
func TestHandlers_OutdatedParentKeepsRecordedKinds(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	old := h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	reconcile := func(reconciler *children.Reconciler, parent *unstructured.Unstructured, desired children.Desired) {
		t.Helper()
		_, err := reconciler.Reconcile(t.Context(), s.parent("p"), parent, desired)
		h.noError(ignoreRequeue(err))
	}
	gadget := newObject(s.gadgets, "Gadget", "", "g", nil)
	same := s.newReconciler(children.Config{})
	for name, processes := range map[string][2]*children.Reconciler{
		"a lagging cache": {same, same},
		"another process": {s.newReconciler(children.Config{}), s.newReconciler(children.Config{})},
	} {
		reconcile(processes[0], old.DeepCopy(), oneStage(newConfigMap("", "a", "x")))
		reconcile(processes[1], old.DeepCopy(), oneStage(gadget))
		h.eventually(name+": the first kind is pruned", func() error {
			reconcile(processes[1], h.get(s.parents, h.namespace, "p"), oneStage(gadget))
			if h.get(configMaps, h.namespace, "a") != nil {
				return fmt.Errorf("the inventory is %v", h.get(s.parents, h.namespace, "p").GetAnnotations())
			}
			return nil
		})
	}
}
