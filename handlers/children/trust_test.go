package children

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
	"github.com/dynamic-controller/engine/handlers/children/internal/inventory"
	"github.com/dynamic-controller/engine/handlers/internal/live"
)

// forgedKinds is the approximate number of entries that fit into the annotations of one object.
const forgedKinds = 7500

// forge writes an inventory of unknown kinds and the finalizer to a parent. Anyone who can update the parent could do
// the same.
func forge(parent *unstructured.Unstructured) {
	entries := []string{"ConfigMap=v1/configmaps:0", ",,=,=/:0,ConfigMap=v1/../../secrets:0"}
	for i := range forgedKinds {
		entries = append(entries, fmt.Sprintf("K%d.x.io=v1/k%d:0", i, i))
	}
	parent.SetAnnotations(map[string]string{"platform.example.com/inventory": strings.Join(entries, ",")})
	parent.SetFinalizers([]string{"platform.example.com/children"})
}

// listCounter is a client that counts lists. Like an API server, it responds with 404 to lists of unknown types.
type listCounter struct {
	dynamic.Interface

	mu             sync.Mutex // guards the fields below
	lists          map[schema.GroupVersionResource]int
	crossNamespace int // lists of all namespaces
}

func newListCounter(server *controllertest.Server) *listCounter {
	return &listCounter{Interface: server, lists: map[schema.GroupVersionResource]int{}}
}

func (c *listCounter) Resource(gvr schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return &countedResource{NamespaceableResourceInterface: c.Interface.Resource(gvr), counter: c, gvr: gvr}
}

// take returns the number of lists since the last call, and the number of those across all namespaces.
func (c *listCounter) take() (all, crossNamespace int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.lists {
		all += n
	}
	crossNamespace = c.crossNamespace
	clear(c.lists)
	c.crossNamespace = 0
	return all, crossNamespace
}

func (c *listCounter) list(
	ctx context.Context, gvr schema.GroupVersionResource, objects dynamic.ResourceInterface, crossNamespace bool,
	options metav1.ListOptions,
) (*unstructured.UnstructuredList, error) {
	c.mu.Lock()
	c.lists[gvr]++
	if crossNamespace {
		c.crossNamespace++
	}
	c.mu.Unlock()
	if gvr != widgets && gvr != configMaps && gvr != namespaces {
		return nil, apierrors.NewGenericServerResponse(404, "list", gvr.GroupResource(), "", "404 page not found", 0, true)
	}
	return objects.List(ctx, options)
}

type countedResource struct {
	dynamic.NamespaceableResourceInterface
	counter *listCounter
	gvr     schema.GroupVersionResource
}

func (r *countedResource) List(
	ctx context.Context, options metav1.ListOptions,
) (*unstructured.UnstructuredList, error) {
	return r.counter.list(ctx, r.gvr, r.NamespaceableResourceInterface, true, options)
}

func (r *countedResource) Namespace(namespace string) dynamic.ResourceInterface {
	return &countedNamespace{ResourceInterface: r.NamespaceableResourceInterface.Namespace(namespace), resource: r}
}

type countedNamespace struct {
	dynamic.ResourceInterface
	resource *countedResource
}

func (n *countedNamespace) List(
	ctx context.Context, options metav1.ListOptions,
) (*unstructured.UnstructuredList, error) {
	return n.resource.counter.list(ctx, n.resource.gvr, n.ResourceInterface, false, options)
}

func TestTrust_ForgedInventoryCausesNoRequests(t *testing.T) {
	parent := newWidget()
	forge(parent)
	server := newFakeServer(parent)
	counter := newListCounter(server)
	reconciler := newReconciler(t, Config{Client: counter, Kinds: []Kind{configMapKind}})
	for call := range 3 { // each call lists the config maps of the namespace
		if _, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(newConfigMap("a", "x"))); err != nil {
			t.Fatal(err)
		}
		if all, crossNamespace := counter.take(); all > 1 || crossNamespace > 0 {
			t.Errorf("call %d sent %d lists, %d of them across all namespaces", call, all, crossNamespace)
		}
	}
	if writes := server.TakeWrites(); len(writes) != 1 {
		t.Errorf("wrote %q", writes)
	}
	now := metav1.Now()
	parent.SetDeletionTimestamp(&now)
	if _, err := reconciler.Reconcile(t.Context(), first, parent, Desired{}); err != nil {
		t.Fatal(err)
	}
	if all, crossNamespace := counter.take(); all > 1 || crossNamespace > 0 {
		t.Errorf("the cleanup sent %d lists, %d of them across all namespaces", all, crossNamespace)
	}
	if finalizers := getParent(t, server).GetFinalizers(); len(finalizers) > 0 {
		t.Errorf("got the finalizers %q", finalizers)
	}
}

// Each time a user overwrites the inventory, the Reconciler writes it at most once.
func TestTrust_ForgedInventoryCausesNoWriteLoop(t *testing.T) {
	parent := newWidget()
	server := newFakeServer(parent)
	reconciler := newReconciler(t, Config{Client: server, Kinds: []Kind{configMapKind}})
	for round := range 3 {
		forge(parent)
		forged := strings.TrimPrefix(parent.GetAnnotations()[reconciler.names.Inventory()], "ConfigMap=v1/configmaps:0,")
		parent.SetAnnotations(map[string]string{reconciler.names.Inventory(): forged})
		parent.SetResourceVersion(server.Get(server.Add(parent)).GetResourceVersion())
		server.TakeWrites()
		for call, limit := range []int{2, 0, 0} { // the first round also writes the child
			if _, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(newConfigMap("a", "x"))); err != nil {
				t.Fatal(err)
			}
			if writes := server.TakeWrites(); len(writes) > limit {
				t.Errorf("round %d, call %d: wrote %q", round, call, writes)
			}
		}
		text := parent.GetAnnotations()[reconciler.names.Inventory()]
		if !strings.HasPrefix(text, "ConfigMap=v1/configmaps:0,") || len(text) > inventory.MaxBytes {
			t.Errorf("round %d: the inventory has %d bytes and begins with %.60s", round, len(text), text)
		}
	}
	if cached := entriesOf(cacheOf(t, reconciler))[first].inventory.String(); cached != "ConfigMap=v1/configmaps:0" {
		t.Errorf("the apply cache holds the inventory %.100s", cached)
	}
}

// Children of a kind that is not in Config.Kinds are kept. A version of the controller that lists the kind can prune
// them.
func TestTrust_UnlistedKindsAreKeptForALaterVersion(t *testing.T) {
	parent := newWidget()
	server := newFakeServer(parent)
	counter := newListCounter(server)
	reconcile := func(reconciler *Reconciler, desired Desired, want string) {
		t.Helper()
		for range 2 {
			_, err := reconciler.Reconcile(t.Context(), first, parent, desired)
			failUnlessRequeued(t, err)
		}
		if got := parent.GetAnnotations()[reconciler.names.Inventory()]; got != want {
			t.Errorf("the inventory is %q, want %q", got, want)
		}
	}
	a, b := newConfigMap("a", "x"), newObject("example.com/v1", "Widget", "", "b")
	both := newReconciler(t, Config{Client: counter, Kinds: []Kind{configMapKind, widgetKind}})
	reconcile(both, oneStage(a, b), "ConfigMap=v1/configmaps:0,Widget.example.com=v1/widgets:0")
	counter.take()
	server.TakeWrites()

	other := newReconciler(t, Config{Client: counter, Kinds: []Kind{widgetKind, namespaceKind}})
	reconcile(other, oneStage(b), "ConfigMap=v1/configmaps:0,Widget.example.com=v1/widgets:0")
	if writes := server.TakeWrites(); len(writes) > 0 || counter.lists[configMaps] > 0 {
		t.Errorf("wrote %q and sent %d lists", writes, counter.lists[configMaps])
	}
	other = newReconciler(t, Config{Client: counter, Kinds: []Kind{namespaceKind}})
	namespace := newObject("v1", "Namespace", "", "").GroupVersionKind()
	reconcile(other, Desired{Kinds: []schema.GroupVersionKind{namespace}},
		"Namespace=v1/namespaces:0,ConfigMap=v1/configmaps:0,Widget.example.com=v1/widgets:0")
	server.TakeWrites()

	last := newReconciler(t, Config{Client: counter, Kinds: []Kind{configMapKind, widgetKind}})
	reconcile(last, oneStage(b), "Widget.example.com=v1/widgets:0,Namespace=v1/namespaces:0")
	if writes := server.TakeWrites(); !slices.Equal(writes, []string{"delete configmaps a", "patch widgets first"}) {
		t.Errorf("wrote %q", writes)
	}
}

// The kind must be declared, and the parent must have the finalizer.
func TestTrust_OnlyCrossNamespaceKindsAreListedInAllNamespaces(t *testing.T) {
	for name, c := range map[string]struct {
		finalizer, crossNamespace bool
		want                      int
	}{
		"neither":                      {false, false, 0},
		"forged finalizer":             {true, false, 0},
		"declared without a finalizer": {false, true, 0},
		"declared with a finalizer":    {true, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			parent := newWidget()
			if c.finalizer {
				parent.SetFinalizers([]string{"platform.example.com/children"})
			}
			counter := newListCounter(newFakeServer(parent))
			kinds := []Kind{{GroupKind: configMapKind.GroupKind, CrossNamespace: c.crossNamespace}}
			reconciler := newReconciler(t, Config{Client: counter, Kinds: kinds})
			if _, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(newConfigMap("a", "x"))); err != nil {
				t.Fatal(err)
			}
			if all, crossNamespace := counter.take(); all != 1 || crossNamespace != c.want {
				t.Errorf("sent %d lists, %d of them across all namespaces", all, crossNamespace)
			}
		})
	}
}

// Without the declaration, nothing would find the child again.
func TestTrust_CrossNamespaceChildrenMustBeDeclared(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler := newReconciler(t, Config{Client: server, Kinds: []Kind{configMapKind}})
	_, err := reconciler.Reconcile(t.Context(), first, newWidget(), oneStage(newRemoteConfigMap("a")))
	if err == nil || !strings.Contains(err.Error(), "CrossNamespace") {
		t.Errorf("got %v", err)
	}
	if writes := server.TakeWrites(); len(writes) > 0 {
		t.Errorf("wrote %q", writes)
	}
}

func TestTrust_ClusterScopedKindsAreNotListedInANamespace(t *testing.T) {
	parent := newWidget()
	counter := newListCounter(newFakeServer(parent))
	reconciler := newReconciler(t, Config{Client: counter, Kinds: []Kind{namespaceKind}})
	namespace := newObject("v1", "Namespace", "", "").GroupVersionKind()
	desired := Desired{Kinds: []schema.GroupVersionKind{namespace}}
	if _, err := reconciler.Reconcile(t.Context(), first, parent, desired); err != nil {
		t.Fatal(err)
	}
	if all, _ := counter.take(); all > 0 {
		t.Errorf("sent %d lists", all)
	}
}

// A copy of a child has the same labels and annotations but not the same controller. Anyone can create such a copy.
func TestTrust_IgnoresLabelledObjectsWithoutController(t *testing.T) {
	copied := newObject("v1", "ConfigMap", "default", "copy")
	copied.SetLabels(map[string]string{"platform.example.com/parent": "widget-uid"})
	stolen := copied.DeepCopy()
	stolen.SetName("of-another-controller")
	isController := true
	stolen.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: "example.com/v1", Kind: "Widget", Name: "second", UID: "other-uid", Controller: &isController,
	}})
	server := newFakeServer(newWidget(), copied, stolen)
	reconciler := newReconciler(t, Config{Client: server})
	parent := newWidget()
	parent.SetAnnotations(map[string]string{"platform.example.com/inventory": "ConfigMap=v1/configmaps:0"})
	if _, err := reconciler.Reconcile(t.Context(), first, parent, Desired{}); err != nil {
		t.Errorf("got %v", err)
	}
	for _, object := range []*unstructured.Unstructured{copied, stolen} {
		id := live.Identify(configMaps, object)
		// The object can lose its controller between the list and the delete.
		if err := callFor(t, reconciler, parent).delete(t.Context(), target{id: id, object: object}, false); err != nil {
			t.Errorf("delete %s: %v", id, err)
		}
	}
	if writes := server.TakeWrites(); !slices.Equal(writes, []string{"patch widgets first"}) {
		t.Errorf("wrote %q, want only the inventory", writes)
	}
}

// The API server responds with 404 to a list while it starts or stops serving a type. If the mapper knows the type,
// children of the type can still exist.
func TestReconcile_NotFoundForKnownKindIsError(t *testing.T) {
	server := newFakeServer(newWidget())
	notFound := apierrors.NewGenericServerResponse(
		404, "list", configMaps.GroupResource(), "", "404 page not found", 0, true)
	server.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, notFound
	})
	reconciler := newReconciler(t, Config{Client: server})
	parent := newWidget()
	parent.SetAnnotations(map[string]string{"platform.example.com/inventory": "ConfigMap=v1/configmaps:0"})
	if _, err := reconciler.Reconcile(t.Context(), first, parent, Desired{}); !apierrors.IsNotFound(err) {
		t.Errorf("got the error %v, want that of the list", err)
	}
	now := metav1.Now()
	parent.SetDeletionTimestamp(&now)
	parent.SetFinalizers([]string{"platform.example.com/children"})
	if _, err := reconciler.Reconcile(t.Context(), first, parent, Desired{}); !apierrors.IsNotFound(err) {
		t.Errorf("the cleanup returned the error %v, want that of the list", err)
	}
	if writes := server.TakeWrites(); len(writes) > 0 {
		t.Errorf("wrote %q", writes)
	}
}

// Outside the parent's namespace, an object is a child only if it has both the label and the annotation but no
// controller.
func TestTrust_IgnoresObjectsWithPartialMark(t *testing.T) {
	label := map[string]string{"platform.example.com/parent": "widget-uid"}
	self := map[string]string{"platform.example.com/self": "other/a"}
	isController := true
	controller := []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "ConfigMap", Name: "second", UID: "other-uid", Controller: &isController,
	}}
	for name, mark := range map[string]func(*unstructured.Unstructured){
		"only the label":      func(o *unstructured.Unstructured) { o.SetLabels(label) },
		"only the annotation": func(o *unstructured.Unstructured) { o.SetAnnotations(self) },
		"another controller": func(o *unstructured.Unstructured) {
			o.SetLabels(label)
			o.SetAnnotations(self)
			o.SetOwnerReferences(controller)
		},
	} {
		t.Run(name, func(t *testing.T) {
			object := newRemoteConfigMap("a")
			mark(object)
			server := newFakeServer(newWidget(), object)
			reconciler := newReconciler(t, Config{Client: server})
			parent := newWidget()
			_, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(newRemoteConfigMap("a")))
			if !errors.Is(err, ErrNotOwned) {
				t.Errorf("got the error %v", err)
			}
			server.TakeWrites()
			now := metav1.Now()
			parent.SetDeletionTimestamp(&now)
			if _, err := reconciler.Reconcile(t.Context(), first, parent, Desired{}); err != nil {
				t.Errorf("the cleanup returned the error %v", err)
			}
			if writes := server.TakeWrites(); !slices.Equal(writes, []string{"patch widgets first"}) {
				t.Errorf("the cleanup wrote %q, want only the finalizer", writes)
			}
		})
	}
}
