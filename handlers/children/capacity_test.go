package children

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/internal/live"
)

// newLimitedParent adds an annotation to a parent, so that the given number of bytes are left for the inventory and
// further annotations.
func newLimitedParent(parent *unstructured.Unstructured, left int) *unstructured.Unstructured {
	parent = parent.DeepCopy()
	parent.SetAnnotations(map[string]string{"user": strings.Repeat("x", 256<<10-len("user")-left)})
	return parent
}

// newClusterScoped returns a cluster-scoped parent.
func newClusterScoped() *unstructured.Unstructured {
	parent := newObject("v1", "Namespace", "", "first")
	parent.SetUID("namespace-uid")
	parent.SetResourceVersion("1")
	return parent
}

// quotas returns a config map with the value for each namespace.
func quotas(value string, namespaces ...string) []*unstructured.Unstructured {
	all := make([]*unstructured.Unstructured, len(namespaces))
	for i, namespace := range namespaces {
		all[i] = newConfigMap("quota", value)
		all[i].SetNamespace(namespace)
	}
	return all
}

// crowded is a parent with room for children in about 30 namespaces.
type crowded struct {
	reconciling
	t  *testing.T
	id dynamiccontroller.ObjectIdentifiers
}

func newCrowded(t *testing.T, parent *unstructured.Unstructured) crowded {
	t.Helper()
	c := crowded{newReconciling(t, newLimitedParent(parent, 1000)), t, first}
	if parent.GetNamespace() == "" {
		c.id = live.Identify(namespaces, parent)
	}
	return c
}

// reconcile desires config maps with a value in the given namespaces, between two other stages. It returns the existing
// config maps in these namespaces.
func (c crowded) reconcile(value string, namespaces ...string) ([]*unstructured.Unstructured, error) {
	c.t.Helper()
	result, err := c.reconciler.Reconcile(c.t.Context(), c.id, c.parent, Desired{Stages: [][]Child{
		Stage(inNamespace("default", "first")), Stage(quotas(value, namespaces...)...),
		Stage(inNamespace("default", "last")),
	}})
	children := result.Existing()
	if len(children) < 2 || children[len(children)-1].GetName() != "last" {
		c.t.Fatalf("got %d children, without those in the last stage: %v", len(children), err)
	}
	current, readErr := live.Get(c.t.Context(), c, c.id)
	if readErr != nil {
		c.t.Fatal(readErr)
	}
	size := 0
	for key, value := range current.GetAnnotations() {
		size += len(key) + len(value)
	}
	if size > 256<<10 {
		c.t.Errorf("the annotations have %d bytes, which the API server would reject", size)
	}
	return children[1 : len(children)-1], err
}

func TestReconcile_RefusesOnlyWhatDoesNotFit(t *testing.T) {
	for name, parent := range map[string]*unstructured.Unstructured{
		"cluster-scoped parent": newClusterScoped(), "namespaced parent": newWidget(),
	} {
		t.Run(name, func(t *testing.T) {
			c := newCrowded(t, parent)
			all := manyNamespaces(300, randomName(30, ""))
			// The namespaces that are recorded first are the last in sorted order.
			if _, err := c.reconcile("x", all[290:]...); err != nil {
				t.Fatal(err)
			}
			c.TakeWrites()
			desired := slices.Concat(all[:290], all[291:])
			quotas, err := c.reconcile("y", desired...)
			if len(quotas) < 20 || len(quotas) > 50 {
				t.Fatalf("%d children exist: %v", len(quotas), err)
			}
			want := slices.Repeat([]string{"apply configmaps quota"}, len(quotas))
			want = append(append([]string{"patch " + c.id.GVR.Resource + " first"}, want...), "delete configmaps quota")
			if writes := c.TakeWrites(); !slices.Equal(writes, want) {
				t.Errorf("%d children exist; wrote %q", len(quotas), writes)
			}
			for _, quota := range quotas {
				if value, _, _ := unstructured.NestedString(quota.Object, "data", "key"); value != "y" {
					t.Errorf("the child in %s has not been updated", quota.GetNamespace())
				}
			}
			var failed *childError
			firstRefused, more := all[len(quotas)-9], fmt.Sprintf("the errors of %d more children", 299-len(quotas)-10)
			if !errors.Is(err, ErrInventoryFull) || !errors.As(err, &failed) || failed.child.Namespace() != firstRefused ||
				!strings.Contains(err.Error(), more) {
				t.Errorf("%d children exist: %v", len(quotas), err)
			}
		})
	}
}

func TestReconcile_FullInventoryHasRoomAfterPruning(t *testing.T) {
	c := newCrowded(t, newWidget())
	all := manyNamespaces(300, randomName(30, ""))
	before, _ := c.reconcile("x", all...)
	c.TakeWrites()
	if _, err := c.reconcile("x", all...); !errors.Is(err, ErrInventoryFull) {
		t.Errorf("got %v", err)
	}
	if writes := c.TakeWrites(); len(writes) > 0 {
		t.Errorf("an unchanged call wrote %q", writes)
	}
	settle := func(namespaces ...string) (now []*unstructured.Unstructured, err error) {
		for range 3 { // children are pruned, their namespaces are removed, others are added
			now, err = c.reconcile("x", namespaces...)
		}
		return now, err
	}
	now, err := settle(all[5:]...)
	if diff := len(now) - len(before); diff < -2 || diff > 2 || !errors.Is(err, ErrInventoryFull) {
		t.Errorf("got %d children after %d, %v", len(now), len(before), err)
	}
	if now, err = settle(all[100:110]...); len(now) != 10 || err != nil {
		t.Errorf("got %d children, %v", len(now), err)
	}
}

func TestReconcile_RefusesKindsThatDoNotFit(t *testing.T) {
	s := newReconciling(t, newLimitedParent(newWidget(), 100))
	other := newObject("example.com/v1", "Widget", "default", "other")
	result, err := s.reconciler.Reconcile(t.Context(), first, s.parent,
		Desired{Stages: [][]Child{Stage(other), Stage(newConfigMap("a", "x"))}})
	children := result.Existing()
	if len(children) != 1 || children[0].GetName() != "a" || !errors.Is(err, ErrInventoryFull) {
		t.Errorf("got %d children, %v", len(children), err)
	}
}

// A namespace that cannot exist would make the inventory malformed.
func TestReconcile_RejectsInvalidNamespaces(t *testing.T) {
	s := newReconciling(t, newWidget())
	result, err := s.reconciler.Reconcile(t.Context(), first, s.parent,
		oneStage(inNamespace("Not/valid", "a"), newConfigMap("b", "x"), inNamespace("far", "c")))
	children := result.Existing()
	invalid := result.Children[0]
	if len(children) != 2 || err == nil || invalid.NamespacedKey != "Not/valid/a" || invalid.Reason != ReasonInvalid {
		t.Errorf("got %d children, %v", len(children), err)
	}
	if got := s.parent.GetAnnotations()[s.reconciler.names.Inventory()]; got != "ConfigMap=v1/configmaps:0@far" {
		t.Errorf("the inventory is %q", got)
	}
}

// An object in a namespace that is not recorded could not be found later.
func TestReconcile_AdoptsNothingThatDoesNotFit(t *testing.T) {
	s := newReconciling(t, newLimitedParent(newClusterScoped(), 104), inNamespace("far", "a"), inNamespace("near", "a"))
	desired := Desired{Stages: [][]Child{{{Object: inNamespace("far", "a"), Adopt: true}}}}
	result, err := s.reconciler.Reconcile(t.Context(), live.Identify(namespaces, s.parent), s.parent, desired)
	children := result.Existing()
	if len(children) != 1 || err != nil {
		t.Fatalf("with enough room: got %d children, %v", len(children), err)
	}
	s.TakeWrites()
	desired.Stages[0] = append(desired.Stages[0], Child{Object: inNamespace("near", "a"), Adopt: true})
	result, err = s.reconciler.Reconcile(t.Context(), live.Identify(namespaces, s.parent), s.parent, desired)
	children = result.Existing()
	if writes := s.TakeWrites(); len(children) != 1 || !errors.Is(err, ErrInventoryFull) || len(writes) > 0 {
		t.Errorf("got %d children, %v; wrote %q", len(children), err, writes)
	}
}

// The caller's parent is outdated: another process has removed a namespace from the inventory, which is now full.
func TestReconcile_OutdatedInventoryDoesNotMakeRoom(t *testing.T) {
	outdated := newClusterScoped()
	outdated.SetAnnotations(map[string]string{"platform.example.com/inventory": "ConfigMap=v1/configmaps:0@far"})
	current := newLimitedParent(outdated, 99)
	current.SetResourceVersion("2")
	s := newReconciling(t, current)
	result, err := s.reconciler.Reconcile(t.Context(), live.Identify(namespaces, outdated), outdated,
		oneStage(inNamespace("far", "a")))
	children := result.Existing()
	if writes := s.TakeWrites(); len(children) > 0 || !errors.Is(err, ErrInventoryFull) ||
		slices.Contains(writes, "apply configmaps a") {
		t.Errorf("got %d children, %v; wrote %q", len(children), err, writes)
	}
}

// manyNamespaces returns sorted namespaces with different names.
func manyNamespaces(n int, name func(i int) string) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = name(i)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// randomName returns a function that returns random names.
func randomName(length int, prefix string) func(int) string {
	random := rand.New(rand.NewPCG(1, 2))
	return func(int) string {
		name := []byte(prefix)
		for len(name) < length {
			name = append(name, "abcdefghijklmnopqrstuvwxyz0123456789"[random.IntN(36)])
		}
		return string(name)
	}
}
