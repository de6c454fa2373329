package children

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/internal/live"
)

func TestLargest(t *testing.T) {
	for most := range 20 {
		for limit := range most + 1 {
			calls := 0
			got := largest(most, func(n int) bool { calls++; return n <= limit })
			if got != limit || calls > 10 || limit == 0 && calls > 1 {
				t.Errorf("of %d: got %d after %d calls, want %d", most, got, calls, limit)
			}
		}
	}
}

func TestInventory_GrowsAsFarAsItFits(t *testing.T) {
	now := parseInventory("ConfigMap=v1/configmaps:0@c@y,Secret=v1/secrets:0@z")
	wanted := parseInventory("ConfigMap=v2/configmaps:1@a@b@c@y,Pod=v1/pods:1@a@x,Secret=v1/secrets:1@b@z")
	for room, want := range map[int]string{
		1000: wanted.plain(),
		// Only the excess namespaces are missing.
		77: "ConfigMap=v2/configmaps:1@a@b@c@y,Pod=v1/pods:1@a,Secret=v1/secrets:1@b@z",
		73: "ConfigMap=v2/configmaps:1@a@c@y,Pod=v1/pods:1@a,Secret=v1/secrets:1@z",
		69: "ConfigMap=v2/configmaps:1@c@y,Pod=v1/pods:1,Secret=v1/secrets:1@z",
		// There is no room for another kind.
		68: "ConfigMap=v2/configmaps:1@c@y,Secret=v1/secrets:1@z",
		51: "ConfigMap=v2/configmaps:1@c@y,Secret=v1/secrets:1@z",
		// There is not even room for the recorded namespaces.
		50: now.plain(),
	} {
		if got := now.grow(wanted, room).plain(); got != want {
			t.Errorf("%d bytes: got %s, want %s", room, got, want)
		}
	}
	many := withKinds(nil, maxInventoryEntries+5)
	if got := now.grow(now.with(many), maxInventoryBytes); len(got) != maxInventoryEntries || got.index(now[1].kind) < 0 {
		t.Errorf("too many kinds: got %d", len(got))
	}
}

// A packed inventory can become longer when a namespace is removed from one of its kinds.
func TestInventory_RoomForChangesIsLeft(t *testing.T) {
	const room = 40 << 10
	wanted := withKinds(manyNamespaces(10_000, randomName(20, "")), 3)
	full := inventory(nil).grow(wanted, room)
	if text, _ := full.fits(room); len(text) > room-room/16 || len(text) < room-room/8 {
		t.Fatalf("got %d bytes", len(text))
	}
	left := slices.Clone(full)
	left[1].namespaces = nil
	for i, namespace := range full[1].namespaces {
		if i%8 != 0 {
			left[1].namespaces = append(left[1].namespaces, namespace)
		}
	}
	if got := full.grow(left, room); !got.equals(left) {
		t.Errorf("the smaller inventory is not accepted; the third kind has %d of %d namespaces",
			len(got[1].namespaces), len(left[1].namespaces))
	}
	if got := full.grow(wanted, room); !got.equals(full) {
		t.Error("a full inventory grows")
	}
}

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

func TestReconcile_RefusesOnlyWhatDoesNotFit(t *testing.T) {
	for name, parent := range map[string]*unstructured.Unstructured{
		"cluster-scoped parent": newClusterScoped(), "namespaced parent": newWidget(),
	} {
		t.Run(name, func(t *testing.T) {
			parent := newLimitedParent(parent, 1000) // about 30 namespaces
			s, id := newReconciling(t, parent), first
			if parent.GetNamespace() == "" {
				id = live.Identify(namespaces, parent)
			}
			reconcile := func(desired Desired) ([]*unstructured.Unstructured, error) {
				t.Helper()
				children, err := s.reconciler.Reconcile(t.Context(), id, s.parent, desired)
				checkAnnotations(t, s, id)
				return children, err
			}
			all := manyNamespaces(300, randomName(30, ""))
			stages := func(value string, namespaces ...string) Desired {
				return Desired{Stages: [][]Child{
					Stage(inNamespace("default", "first")), Stage(quotas(value, namespaces...)...),
					Stage(inNamespace("default", "last")),
				}}
			}
			// The namespaces that are recorded first are the last in sorted order.
			if _, err := reconcile(stages("x", all[290:]...)); err != nil {
				t.Fatal(err)
			}
			s.TakeWrites()
			desired := stages("y", slices.Concat(all[:290], all[291:])...)
			children, err := reconcile(desired)
			quotas := len(children) - 2
			if quotas < 20 || quotas > 50 {
				t.Fatalf("%d children exist: %v", len(children), err)
			}
			var failed *ChildError
			firstRefused, more := all[quotas-9], fmt.Sprintf("\n%d more children of", 299-quotas-3)
			if !errors.Is(err, ErrInventoryFull) || !errors.As(err, &failed) || failed.Namespace() != firstRefused ||
				!strings.Contains(err.Error(), more) {
				t.Errorf("%d children exist: %v", len(children), err)
			}
			want := slices.Repeat([]string{"apply configmaps quota"}, quotas)
			want = append(append([]string{"patch " + id.GVR.Resource + " first"}, want...), "delete configmaps quota")
			if writes := s.TakeWrites(); !slices.Equal(writes, want) {
				t.Errorf("%d children exist; wrote %q", len(children), writes)
			}
			for _, child := range children[1 : len(children)-1] {
				if value, _, _ := unstructured.NestedString(child.Object, "data", "key"); value != "y" {
					t.Errorf("the child in %s has not been updated", child.GetNamespace())
				}
			}
			// The namespace of the pruned child makes room for about one other.
			for range 3 {
				children, err = reconcile(desired)
			}
			if more := len(children) - 2 - quotas; more < 0 || more > 2 || !errors.Is(err, ErrInventoryFull) {
				t.Errorf("%d more children were created: %v", more, err)
			}
			s.TakeWrites()
			_, _ = reconcile(desired)
			if writes := s.TakeWrites(); len(writes) > 0 {
				t.Errorf("an unchanged call wrote %q", writes)
			}
			for range 3 {
				children, err = reconcile(stages("y", all[100:110]...))
			}
			if err != nil || len(children) != 12 {
				t.Errorf("got %d children, %v", len(children), err)
			}
		})
	}
}

// checkAnnotations checks that the annotations of the parent do not exceed the limit of the API server.
func checkAnnotations(t *testing.T, s reconciling, id dynamiccontroller.ObjectIdentifiers) {
	t.Helper()
	current, err := live.Get(t.Context(), s, id)
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for key, value := range current.GetAnnotations() {
		size += len(key) + len(value)
	}
	if size > 256<<10 {
		t.Errorf("the annotations have %d bytes", size)
	}
}

func TestReconcile_RefusesKindsThatDoNotFit(t *testing.T) {
	s := newReconciling(t, newLimitedParent(newWidget(), 100))
	other := newObject("example.com/v1", "Widget", "default", "other")
	children, err := s.reconciler.Reconcile(t.Context(), first, s.parent,
		Desired{Stages: [][]Child{Stage(other), Stage(newConfigMap("a", "x"))}})
	if len(children) != 1 || children[0].GetName() != "a" || !errors.Is(err, ErrInventoryFull) {
		t.Errorf("got %d children, %v", len(children), err)
	}
}

// A namespace that cannot exist would make the inventory malformed.
func TestReconcile_RejectsInvalidNamespaces(t *testing.T) {
	s := newReconciling(t, newWidget())
	children, err := s.reconciler.Reconcile(t.Context(), first, s.parent,
		oneStage(inNamespace("Not/valid", "a"), newConfigMap("b", "x"), inNamespace("far", "c")))
	var failed *ChildError
	if len(children) != 2 || !errors.As(err, &failed) || failed.NamespacedKey != "Not/valid/a" {
		t.Errorf("got %d children, %v", len(children), err)
	}
	if got := s.parent.GetAnnotations()[s.reconciler.inventoryKey()]; got != "ConfigMap=v1/configmaps:0@far" {
		t.Errorf("the inventory is %q", got)
	}
}

// An object in a namespace that is not recorded could not be found later.
func TestReconcile_AdoptsNothingThatDoesNotFit(t *testing.T) {
	s := newReconciling(t, newLimitedParent(newClusterScoped(), 95), inNamespace("far", "a"), inNamespace("near", "a"))
	desired := Desired{Stages: [][]Child{{{Object: inNamespace("far", "a"), Adopt: true}}}}
	children, err := s.reconciler.Reconcile(t.Context(), live.Identify(namespaces, s.parent), s.parent, desired)
	if len(children) != 1 || err != nil {
		t.Fatalf("with enough room: got %d children, %v", len(children), err)
	}
	s.TakeWrites()
	desired.Stages[0] = append(desired.Stages[0], Child{Object: inNamespace("near", "a"), Adopt: true})
	children, err = s.reconciler.Reconcile(t.Context(), live.Identify(namespaces, s.parent), s.parent, desired)
	if writes := s.TakeWrites(); len(children) != 1 || !errors.Is(err, ErrInventoryFull) || len(writes) > 0 {
		t.Errorf("got %d children, %v; wrote %q", len(children), err, writes)
	}
}

// The caller's parent is outdated: another process has removed a namespace from the inventory, which is now full.
func TestReconcile_OutdatedInventoryDoesNotMakeRoom(t *testing.T) {
	outdated := newClusterScoped()
	outdated.SetAnnotations(map[string]string{"platform.example.com/inventory": "ConfigMap=v1/configmaps:0@far"})
	current := newLimitedParent(outdated, 90)
	current.SetResourceVersion("2")
	s := newReconciling(t, current)
	children, err := s.reconciler.Reconcile(t.Context(), live.Identify(namespaces, outdated), outdated,
		oneStage(inNamespace("far", "a")))
	if writes := s.TakeWrites(); len(children) > 0 || !errors.Is(err, ErrInventoryFull) ||
		slices.Contains(writes, "apply configmaps a") {
		t.Errorf("got %d children, %v; wrote %q", len(children), err, writes)
	}
}
