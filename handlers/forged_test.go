package handlers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// forgedKinds is about the number of entries that fit into the annotations of one object.
const forgedKinds = 7500

// forge writes an inventory of unknown kinds and the finalizer to a parent, as anyone who can update it could.
func forge(parent *unstructured.Unstructured) {
	entries := []string{"ConfigMap=v1/configmaps", ",,=,=/,ConfigMap=v1/../../secrets"}
	for i := range forgedKinds {
		entries = append(entries, fmt.Sprintf("K%d.x.io=v1/k%d", i, i))
	}
	parent.SetAnnotations(map[string]string{"platform.example.com/inventory": strings.Join(entries, ",")})
	parent.SetFinalizers([]string{"platform.example.com/children"})
}

// listCounter counts lists and answers those of unknown types like an API server.
type listCounter struct {
	dynamic.Interface

	mu          sync.Mutex // guards lists
	lists       map[schema.GroupVersionResource]int
	acrossLists int // those across namespaces
}

func newListCounter(server *fakeServer) *listCounter {
	return &listCounter{Interface: server, lists: map[schema.GroupVersionResource]int{}}
}

func (c *listCounter) Resource(gvr schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return &countedResource{NamespaceableResourceInterface: c.Interface.Resource(gvr), counter: c, gvr: gvr}
}

// took returns the number of lists since it was last called, and how many of them were across namespaces.
func (c *listCounter) took() (all, across int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.lists {
		all += n
	}
	across = c.acrossLists
	clear(c.lists)
	c.acrossLists = 0
	return all, across
}

func (c *listCounter) list(ctx context.Context, gvr schema.GroupVersionResource, in dynamic.ResourceInterface, across bool, options metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	c.mu.Lock()
	c.lists[gvr]++
	if across {
		c.acrossLists++
	}
	c.mu.Unlock()
	if gvr != widgets && gvr != configMaps && gvr != namespaces {
		return nil, apierrors.NewGenericServerResponse(404, "list", gvr.GroupResource(), "", "404 page not found", 0, true)
	}
	return in.List(ctx, options)
}

type countedResource struct {
	dynamic.NamespaceableResourceInterface
	counter *listCounter
	gvr     schema.GroupVersionResource
}

func (r *countedResource) List(ctx context.Context, options metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	return r.counter.list(ctx, r.gvr, r.NamespaceableResourceInterface, true, options)
}

func (r *countedResource) Namespace(namespace string) dynamic.ResourceInterface {
	return &countedInNamespace{ResourceInterface: r.NamespaceableResourceInterface.Namespace(namespace), of: r}
}

type countedInNamespace struct {
	dynamic.ResourceInterface
	of *countedResource
}

func (r *countedInNamespace) List(ctx context.Context, options metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	return r.of.counter.list(ctx, r.of.gvr, r.ResourceInterface, false, options)
}

var (
	configMapKind = ChildKind{GroupKind: schema.GroupKind{Kind: "ConfigMap"}}
	widgetKind    = ChildKind{GroupKind: schema.GroupKind{Group: "example.com", Kind: "Widget"}}
)

// The kinds that a forged inventory names cost no requests: neither on a reconcile nor when the parent is deleted.
func TestChildren_ForgedInventoryCostsNoRequests(t *testing.T) {
	parent := newWidget()
	forge(parent)
	server := newFakeServer(parent)
	counter := newListCounter(server)
	children := newChildren(t, ChildrenConfig{Client: counter, Kinds: []ChildKind{configMapKind}})
	for call := range 3 {
		if _, err := children.Reconcile(t.Context(), first, parent, stages(newConfigMap("a", "x"))); err != nil {
			t.Fatal(err)
		}
		if all, across := counter.took(); all > 1 || across > 0 {
			t.Errorf("call %d made %d lists, %d of them across namespaces", call, all, across)
		}
	}
	if writes := server.took(); len(writes) != 1 {
		t.Errorf("written: %q", writes)
	}
	now := metav1.Now()
	parent.SetDeletionTimestamp(&now)
	if _, err := children.Reconcile(t.Context(), first, parent, Desired{}); err != nil {
		t.Fatal(err)
	}
	if all, _ := counter.took(); all > 0 {
		t.Errorf("the deletion made %d lists", all)
	}
	live, err := Live(server).Get(t.Context(), widgets, "default", "first")
	if err != nil {
		t.Fatal(err)
	}
	if finalizers := live.GetFinalizers(); len(finalizers) > 0 {
		t.Errorf("the parent still has %q", finalizers)
	}
}

// A tenant that writes its inventory back makes the controller write once at most for each time.
func TestChildren_ForgedInventoryCausesNoWriteLoop(t *testing.T) {
	parent := newWidget()
	server := newFakeServer(parent)
	children := newChildren(t, ChildrenConfig{Client: server, Kinds: []ChildKind{configMapKind}})
	for round := range 3 {
		forge(parent)
		annotation := parent.GetAnnotations()[children.inventoryKey()]
		parent.SetAnnotations(map[string]string{children.inventoryKey(): strings.TrimPrefix(annotation, "ConfigMap=v1/configmaps,")})
		parent.SetResourceVersion(fmt.Sprint(1000 + round))
		server.took()
		for call, most := range []int{2, 0, 0} { // the inventory, and the child in the first round
			if _, err := children.Reconcile(t.Context(), first, parent, stages(newConfigMap("a", "x"))); err != nil {
				t.Fatal(err)
			}
			if writes := server.took(); len(writes) > most {
				t.Errorf("round %d, call %d: written %q", round, call, writes)
			}
		}
		text := parent.GetAnnotations()[children.inventoryKey()]
		if !strings.HasPrefix(text, "ConfigMap=v1/configmaps,") || len(text) > maxInventoryBytes {
			t.Errorf("round %d: the inventory has %d bytes and begins %.60s", round, len(text), text)
		}
	}
	if known := children.memory.parents[first].inventory.String(); known != "ConfigMap=v1/configmaps" {
		t.Errorf("remembered: %.100s", known)
	}
}

// Children of a kind that the controller does not list stay, at no cost, and are pruned by a version that lists it.
func TestChildren_UnlistedKindsAreKeptForALaterVersion(t *testing.T) {
	parent := newWidget()
	server := newFakeServer(parent)
	counter := newListCounter(server)
	reconcile := func(children *Children, desired Desired, want string) {
		t.Helper()
		for range 2 {
			if _, err := children.Reconcile(t.Context(), first, parent, desired); err != nil && !strings.HasPrefix(err.Error(), "requeue after") {
				t.Fatal(err)
			}
		}
		if got := parent.GetAnnotations()[children.inventoryKey()]; got != want {
			t.Errorf("the inventory is %q, not %q", got, want)
		}
	}
	older := newChildren(t, ChildrenConfig{Client: counter, Kinds: []ChildKind{configMapKind, widgetKind}})
	b := newObject("example.com/v1", "Widget", "", "b")
	reconcile(older, stages(newConfigMap("a", "x"), b), "ConfigMap=v1/configmaps,Widget.example.com=v1/widgets")
	counter.took()
	server.took()

	forgetful := newChildren(t, ChildrenConfig{Client: counter, Kinds: []ChildKind{}})
	reconcile(forgetful, stages(b), "ConfigMap=v1/configmaps,Widget.example.com=v1/widgets")
	if writes := server.took(); len(writes) > 0 || counter.lists[configMaps] > 0 {
		t.Errorf("written: %q; %d lists", writes, counter.lists[configMaps])
	}
	reconcile(forgetful, Desired{Kinds: []schema.GroupVersionKind{newObject("v1", "Namespace", "", "").GroupVersionKind()}},
		"Namespace=v1/namespaces,ConfigMap=v1/configmaps,Widget.example.com=v1/widgets")
	server.took()

	reconcile(newChildren(t, ChildrenConfig{Client: counter, Kinds: []ChildKind{configMapKind}}), stages(b), "Widget.example.com=v1/widgets,Namespace=v1/namespaces")
	if writes := server.took(); !slices.Equal(writes, []string{"delete configmaps a", "apply widgets first"}) {
		t.Errorf("written: %q", writes)
	}
}

// Only kinds that can be elsewhere are listed across namespaces, and only on behalf of parents with the finalizer.
func TestChildren_OnlyKindsElsewhereAreListedAcrossNamespaces(t *testing.T) {
	for name, c := range map[string]struct {
		finalizer, elsewhere bool
		across               int
	}{
		"neither":                 {false, false, 0},
		"a forged finalizer":      {true, false, 0},
		"elsewhere, no finalizer": {false, true, 0},
		"elsewhere and finalizer": {true, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			parent := newWidget()
			if c.finalizer {
				parent.SetFinalizers([]string{"platform.example.com/children"})
			}
			counter := newListCounter(newFakeServer(parent))
			children := newChildren(t, ChildrenConfig{Client: counter, Kinds: []ChildKind{{GroupKind: configMapKind.GroupKind, Elsewhere: c.elsewhere}}})
			if _, err := children.Reconcile(t.Context(), first, parent, stages(newConfigMap("a", "x"))); err != nil {
				t.Fatal(err)
			}
			if all, across := counter.took(); all != 1 || across != c.across {
				t.Errorf("%d lists, %d of them across namespaces", all, across)
			}
		})
	}
}

// Without Elsewhere nothing would find the child again: it is refused before anything is written.
func TestChildren_ChildElsewhereMustBeDeclared(t *testing.T) {
	server := newFakeServer(newWidget())
	children := newChildren(t, ChildrenConfig{Client: server, Kinds: []ChildKind{configMapKind}})
	_, err := children.Reconcile(t.Context(), first, newWidget(), stages(farAway("a")))
	if err == nil || !strings.Contains(err.Error(), "Elsewhere") {
		t.Errorf("got %v", err)
	}
	if writes := server.took(); len(writes) > 0 {
		t.Errorf("written: %q", writes)
	}
}

// A wanted kind that is cluster-scoped has no children without Elsewhere, and is not listed where it cannot be.
func TestChildren_ClusterScopedKindsAreNotListedInANamespace(t *testing.T) {
	parent := newWidget()
	counter := newListCounter(newFakeServer(parent))
	children := newChildren(t, ChildrenConfig{Client: counter})
	if _, err := children.Reconcile(t.Context(), first, parent, Desired{Kinds: []schema.GroupVersionKind{newObject("v1", "Namespace", "", "").GroupVersionKind()}}); err != nil {
		t.Fatal(err)
	}
	if all, _ := counter.took(); all > 0 {
		t.Errorf("%d lists", all)
	}
}

// Ignored entries are logged once, until they change.
func TestChildren_IgnoredKindsAreLoggedOnce(t *testing.T) {
	parent := newWidget()
	forge(parent)
	var lines []string
	log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{Verbosity: 1})
	children := newChildren(t, ChildrenConfig{Client: newFakeServer(parent), Kinds: []ChildKind{configMapKind}})
	reconcile := func(want int) {
		t.Helper()
		for range 3 {
			if _, err := children.Reconcile(logr.NewContext(t.Context(), log), first, parent, stages(newConfigMap("a", "x"))); err != nil {
				t.Fatal(err)
			}
		}
		if len(lines) != want || len(lines[0]) > 400 {
			t.Errorf("logged: %q", lines)
		}
	}
	reconcile(1)
	parent.SetAnnotations(map[string]string{children.inventoryKey(): "ConfigMap=v1/configmaps,Other"})
	parent.SetResourceVersion("1000")
	reconcile(2)
}
