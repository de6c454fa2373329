package handlers

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// While the cache shows a child as it was before it was last applied, or not at all, nothing is written again.
func TestACacheThatLagsCausesNoWrites(t *testing.T) {
	server, cache := newFakeServer(newWidget()), stale{}
	children := newChildren(t, ChildrenConfig{Client: server, Cache: cache, Owned: noneOwned})
	parent := newWidget()
	var states []*unstructured.Unstructured
	for _, value := range []string{"one", "two"} {
		made, err := children.Reconcile(t.Context(), first, parent, stages(newConfigMap("a", value)))
		if err != nil {
			t.Fatal(err)
		}
		states = append(states, made...)
	}
	server.took()
	for _, shown := range []*unstructured.Unstructured{nil, states[0], states[1]} {
		cache["a"] = shown
		if _, err := children.Reconcile(t.Context(), first, parent, stages(newConfigMap("a", "two"))); err != nil {
			t.Fatal(err)
		}
	}
	if writes := server.took(); len(writes) != 0 {
		t.Errorf("written: %q", writes)
	}
	// Another process knows nothing of that: the old state is a drift to it.
	cache["a"] = states[0]
	other := newChildren(t, ChildrenConfig{Client: server, Cache: cache, Owned: noneOwned})
	if _, err := other.Reconcile(t.Context(), first, parent, stages(newConfigMap("a", "two"))); err != nil {
		t.Fatal(err)
	}
	if writes := server.took(); !slices.Equal(writes, []string{"apply configmaps a"}) {
		t.Errorf("written: %q", writes)
	}
}

func noneOwned(schema.GroupVersionResource, types.UID) ([]runtime.Object, error) { return nil, nil }

// The index by owner is asked for what is to be pruned; where it cannot answer, the API server is.
func TestTheIndexByOwnerIsAsked(t *testing.T) {
	server := newFakeServer(newWidget())
	answer := fmt.Errorf("configmaps: %w", dynamiccontroller.ErrNotServed)
	var owned []runtime.Object
	children := newChildren(t, ChildrenConfig{Client: server, Owned: func(_ schema.GroupVersionResource, owner types.UID) ([]runtime.Object, error) {
		if owner != "widget-uid" {
			t.Errorf("asked for %s", owner)
		}
		return owned, answer
	}})
	parent := newWidget()
	reconcile := func(names ...string) error {
		var stage []*unstructured.Unstructured
		for _, name := range names {
			stage = append(stage, newConfigMap(name, "x"))
		}
		made, err := children.Reconcile(t.Context(), first, parent, stages(stage...))
		for i, child := range made {
			if i == 0 {
				owned = append(owned, child)
				continue
			}
			owned = append(owned, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
				Namespace: child.GetNamespace(), Name: child.GetName(), UID: child.GetUID(), OwnerReferences: child.GetOwnerReferences(),
			}})
		}
		return err
	}
	if err := errors.Join(reconcile("a", "b", "c"), reconcile("a", "b")); err != nil {
		t.Fatal(err)
	}
	server.took()
	answer = nil
	owned = owned[:3]
	if err := reconcile("a"); err != nil {
		t.Fatal(err)
	}
	// The index shows c, which is gone by now, as indices do.
	if writes := server.took(); !slices.Contains(writes, "delete configmaps b") {
		t.Errorf("written: %q", writes)
	}
	answer = errors.New("broken")
	if err := reconcile("a"); !errors.Is(err, answer) {
		t.Errorf("got %v", err)
	}
}

func TestNothingIsRememberedOfWhatIsGone(t *testing.T) {
	server := newFakeServer(newWidget())
	children := newChildren(t, ChildrenConfig{Client: server})
	parent := newWidget()
	for _, wanted := range []Desired{stages(newConfigMap("a", "x"), newConfigMap("b", "x")), stages(newConfigMap("a", "x"))} {
		if _, err := children.Reconcile(t.Context(), first, parent, wanted); err != nil {
			t.Fatal(err)
		}
	}
	if len(children.memory.parents) != 1 || len(children.memory.parents[first].children) != 1 {
		t.Errorf("remembered: %v", children.memory.parents)
	}
	children.Forget(first)
	if len(children.memory.parents) != 0 {
		t.Errorf("remembered: %v", children.memory.parents)
	}
}

func TestAVersionIsAfterAnotherOfTheSameObjectAlone(t *testing.T) {
	object := newWidget()
	for name, c := range map[string]struct {
		uid             types.UID
		resourceVersion string
		want            bool
	}{
		"later":         {"widget-uid", "10", true},
		"the same":      {"widget-uid", "9", false},
		"earlier":       {"widget-uid", "8", false},
		"of another":    {"other-uid", "10", false},
		"of no meaning": {"widget-uid", "x", false},
		"of none":       {"", "", false},
	} {
		object.SetResourceVersion("9")
		if got := (version{uid: c.uid, resourceVersion: c.resourceVersion}).isAfter(object); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// What is deleted by others, and not wanted any more, is forgotten too.
func TestOnlyWantedChildrenAreRemembered(t *testing.T) {
	server := newFakeServer(newWidget())
	children, parent := newChildren(t, ChildrenConfig{Client: server}), newWidget()
	for n := range 5 {
		name := fmt.Sprintf("run-%d", n)
		if _, err := children.Reconcile(t.Context(), first, parent, stages(newConfigMap(name, "x"))); err != nil {
			t.Fatal(err)
		}
		if err := resource(server, configMaps, "default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if known := children.memory.parents[first].children; len(known) != 1 {
		t.Errorf("remembered: %v", known)
	}
}

// What is wanted again, and shown by a cache that has yet to show what was written in between, is written.
func TestWhatIsWantedAgainIsWrittenAgain(t *testing.T) {
	server, cache := newFakeServer(newWidget()), stale{}
	children, parent := newChildren(t, ChildrenConfig{Client: server, Cache: cache, Owned: noneOwned}), newWidget()
	for _, value := range []string{"one", "two", "one"} {
		made, err := children.Reconcile(t.Context(), first, parent, stages(newConfigMap("a", value)))
		if err != nil {
			t.Fatal(err)
		}
		if cache["a"] == nil {
			cache["a"] = made[0]
		}
	}
	live, err := Live(server).Get(t.Context(), configMaps, "default", "a")
	if err != nil || fmt.Sprint(live.Object["data"]) != "map[key:one]" {
		t.Errorf("there is %v, %v", live, err)
	}
}

// A cache without managedFields, of what the server writes in another way than it was applied, causes no more than one write.
func TestACacheWithoutManagedFieldsCausesNoWrites(t *testing.T) {
	server, cache := newFakeServer(newWidget()), stale{}
	children, parent := newChildren(t, ChildrenConfig{Client: server, Cache: cache, Owned: noneOwned}), newWidget()
	server.PrependReactor("patch", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		written := &unstructured.Unstructured{}
		if err := written.UnmarshalJSON(action.(clienttesting.PatchAction).GetPatch()); err != nil {
			return true, nil, err
		}
		written.Object["data"] = map[string]any{"key": "1"}
		written.SetUID("child-uid")
		written.SetResourceVersion("100")
		cache["a"] = written.DeepCopy()
		written.SetManagedFields([]metav1.ManagedFieldsEntry{{
			Manager: "platform.example.com", Operation: metav1.ManagedFieldsOperationApply,
			FieldsV1: metav1.NewFieldsV1(`{"f:data":{"f:key":{}}}`),
		}})
		return true, written, nil
	})
	for range 3 {
		if _, err := children.Reconcile(t.Context(), first, parent, stages(newConfigMap("a", "1000m"))); err != nil {
			t.Fatal(err)
		}
	}
	writes := 0
	for _, action := range server.Actions() {
		if action.GetVerb() == "patch" && action.GetResource() == configMaps {
			writes++
		}
	}
	if writes != 1 {
		t.Errorf("%d writes", writes)
	}
}

// A deletion that takes long is asked after ever less often; the next one begins anew.
func TestALongDeletionIsAskedAfterLessAndLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m memory
		for _, seconds := range []int{1, 1, 2, 4, 8, 16, 30, 30} {
			wait := m.waits(first)
			if wait != time.Duration(seconds)*time.Second {
				t.Errorf("waits %s, and not %d s", wait, seconds)
			}
			time.Sleep(wait)
		}
		m.waitsNoMore(first)
		if wait := m.waits(first); wait != childrenPoll {
			t.Errorf("waits %s", wait)
		}
	})
}
