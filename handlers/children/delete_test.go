package children

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/internal/fakeserver"
)

// pendingOf returns the names of the children in a pendingError. A "!" marks children whose deletion has been
// requested.
func pendingOf(t *testing.T, err error) (names []string) {
	t.Helper()
	var pending *pendingError
	if !errors.As(err, &pending) {
		failUnlessRequeued(t, err)
		return nil
	}
	if _, requeued := dynamiccontroller.RequeueDelay(err); !requeued {
		t.Errorf("%v is not a RequeueAfter", err)
	}
	for _, child := range pending.pending {
		name := child.Name()
		if child.Deleting {
			name += "!"
		}
		names = append(names, name)
	}
	return names
}

// block marks a child on the server as being deleted and adds a finalizer. If the child is already blocked, it removes
// the child.
func block(t *testing.T, server *controllertest.Server, name string) {
	t.Helper()
	id := dynamiccontroller.ObjectIdentifiers{GVR: configMaps, NamespacedKey: "default/" + name}
	object := server.Get(id)
	if object.GetDeletionTimestamp() == nil {
		object.SetFinalizers([]string{"example.com/backup"})
		server.Add(object)
		server.Delete(id)
	} else {
		object.SetFinalizers(nil)
		objects := server.Resource(configMaps).Namespace("default")
		if _, err := objects.Update(t.Context(), object, metav1.UpdateOptions{FieldManager: "test"}); err != nil {
			t.Fatal(err)
		}
	}
	server.TakeWrites()
}

func TestReconcile_DeletesStagesInReverseOrder(t *testing.T) {
	stages := Desired{Stages: [][]Child{
		Stage(newConfigMap("database", "x")), Stage(newConfigMap("app", "x"), newConfigMap("job", "x")),
		Stage(newObject("example.com/v1", "Widget", "", "route")),
	}}
	now := metav1.Now()
	for name, c := range map[string]reverseOrder{
		"prune": {
			func(*unstructured.Unstructured) Desired { return Desired{} },
			[]string{"delete configmaps database", "patch widgets first"},
		},
		"absent": {func(*unstructured.Unstructured) Desired {
			desired := Desired{Partial: true}
			for _, stage := range stages.Stages {
				for _, child := range stage {
					desired.Absent = append(desired.Absent, child.Object)
				}
			}
			return desired
		}, []string{"delete configmaps database"}},
		"cleanup": {func(parent *unstructured.Unstructured) Desired {
			parent.SetDeletionTimestamp(&now)
			return Desired{}
		}, []string{"delete configmaps database", "patch widgets first"}},
	} {
		t.Run(name, func(t *testing.T) { c.run(t, stages) })
	}
}

// reverseOrder describes one way to delete the children of a parent.
type reverseOrder struct {
	delete func(parent *unstructured.Unstructured) Desired
	last   []string // the writes from the last deletion on
}

func (c reverseOrder) run(t *testing.T, stages Desired) {
	t.Helper()
	server := newFakeServer(newWidget())
	reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
	if _, err := reconciler.Reconcile(t.Context(), first, parent, stages); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(parent.GetFinalizers(), reconciler.names.Finalizer()) {
		t.Error("the parent has no finalizer")
	}
	server.TakeWrites()
	var desired Desired
	reconcile := func(writes ...string) []string {
		t.Helper()
		desired = c.delete(parent)
		_, err := reconciler.Reconcile(t.Context(), first, parent, desired)
		isPatch := func(write string) bool { return strings.HasPrefix(write, "patch") }
		if got := slices.DeleteFunc(server.TakeWrites(), isPatch); !slices.Equal(got, writes) {
			t.Errorf("wrote %q, want %q", got, writes)
		}
		return pendingOf(t, err)
	}
	if pending := reconcile("delete widgets route"); len(pending) < 3 || pending[0] != "route!" || pending[1] != "app" {
		t.Errorf("pending: %q", pending)
	}
	block(t, server, "app")
	if pending := reconcile("delete configmaps job"); len(pending) < 2 || pending[0] != "app!" {
		t.Errorf("pending: %q", pending)
	}
	_, err := reconciler.Reconcile(t.Context(), first, parent, desired)
	if err == nil || !strings.Contains(err.Error(), "ConfigMap default/app (finalizers: example.com/backup)") {
		t.Errorf("got %v", err)
	}
	block(t, server, "app")
	var all []string
	for range 3 {
		if err == nil {
			break
		}
		_, err = reconciler.Reconcile(t.Context(), first, parent, desired)
		failUnlessRequeued(t, err)
		all = append(all, server.TakeWrites()...)
	}
	if !slices.Equal(all, c.last) {
		t.Errorf("wrote %q, want %q", all, c.last)
	}
}

func TestReconcile_AbsentChildrenOfUnlistedKindsArePending(t *testing.T) {
	server := newFakeServer(newWidget())
	earlier := newReconciler(t, Config{Client: server, Kinds: []Kind{configMapKind}})
	reconciler := newReconciler(t, Config{Client: server, Kinds: []Kind{widgetKind}})
	parent, a, b := newWidget(), newConfigMap("a", "x"), newConfigMap("b", "x")
	desired := Desired{Stages: [][]Child{Stage(a), Stage(b)}}
	if _, err := earlier.Reconcile(t.Context(), first, parent, desired); err != nil {
		t.Fatal(err)
	}
	absent := Desired{Absent: []*unstructured.Unstructured{a, b}}
	_, err := reconciler.Reconcile(t.Context(), first, parent, absent)
	if pending := pendingOf(t, err); !slices.Equal(pending, []string{"b!", "a"}) {
		t.Errorf("pending: %q, %v", pending, err)
	}
}

func TestPendingError_MessageIsShort(t *testing.T) {
	var finalizers []string
	for i := range 1000 {
		finalizers = append(finalizers, fmt.Sprintf("example.com/%0200d", i))
	}
	child := PendingChild{Finalizers: finalizers}
	child.NamespacedKey = strings.Repeat("x", 63) + "/" + strings.Repeat("x", 253)
	err := &pendingError{pending: slices.Repeat([]PendingChild{child}, 1000)}
	if message := err.Error(); len(message) > 8<<10 || !strings.Contains(message, "997 more") {
		t.Errorf("the message has %d bytes", len(message))
	}
}

// Later stages may be known only once children in earlier stages exist. They need no second write to the parent.
func TestReconcile_EmptyStagesAddTheFinalizerEarly(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
	widget := newObject("example.com/v1", "Widget", "", "b")
	kinds := []schema.GroupVersionKind{widget.GroupVersionKind()}
	for _, desired := range []Desired{
		{Stages: [][]Child{Stage(newConfigMap("a", "x")), nil}, Partial: true, Kinds: kinds},
		{Stages: [][]Child{Stage(newConfigMap("a", "x")), Stage(widget)}, Kinds: kinds},
	} {
		if _, err := reconciler.Reconcile(t.Context(), first, parent, desired); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"patch widgets first", "apply configmaps a", "apply widgets b"}
	if writes := server.TakeWrites(); !slices.Equal(writes, want) {
		t.Errorf("wrote %q, want %q", writes, want)
	}
}

// Reconcile could not find such a child to prune it.
func TestReconcile_RejectsChildrenOfUnlistedKinds(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler := newReconciler(t, Config{Client: server, Kinds: []Kind{widgetKind}})
	for name, desired := range map[string]Desired{
		"a child": oneStage(newConfigMap("a", "x")),
		"a kind":  {Kinds: []schema.GroupVersionKind{newConfigMap("", "").GroupVersionKind()}},
	} {
		if _, err := reconciler.Reconcile(t.Context(), first, newWidget(), desired); !errors.Is(err, errKindNotListed) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if writes := server.TakeWrites(); len(writes) > 0 {
		t.Errorf("wrote %q", writes)
	}
}

// When a namespace is deleted, the permissions of an identity can be removed before the finalizer of the parent.
func TestReconcile_CleanUpIgnoresStagesInATerminatingNamespace(t *testing.T) {
	rejected := errors.New("the identity cannot be used")
	for name, c := range map[string]struct {
		terminating bool
		remote      bool // whether a child is in another namespace
		released    bool
	}{
		"all children are in the namespace":  {true, false, true},
		"a child is in another namespace":    {true, true, false},
		"the namespace is not being deleted": {false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := newObject("v1", "Namespace", "", "default")
			if now := metav1.Now(); c.terminating {
				namespace.SetDeletionTimestamp(&now)
			}
			server := newFakeServer(newWidget(), namespace)
			identity := newIdentityServer(server)
			reconciler, parent := newReconciler(t, Config{
				Client: server, Kinds: []Kind{{GroupKind: configMapKind.GroupKind, CrossNamespace: c.remote}},
			}), newWidget()
			desired := Desired{As: Identity{Name: "a", Client: identity}}
			desired.Stages = [][]Child{Stage(newConfigMap("a", "x")), Stage(newConfigMap("b", "x"))}
			if c.remote {
				desired.Stages[1] = append(desired.Stages[1], Stage(newRemoteConfigMap("c"))...)
			}
			if _, err := reconciler.Reconcile(t.Context(), first, parent, desired); err != nil {
				t.Fatal(err)
			}
			identity.PrependReactor("delete", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, rejected
			})
			now := metav1.Now()
			parent.SetDeletionTimestamp(&now)
			_, err := reconciler.Reconcile(t.Context(), first, parent, desired)
			finalizers := getParent(t, server).GetFinalizers()
			if (len(finalizers) == 0) != c.released || errors.Is(err, rejected) == c.released {
				t.Errorf("the finalizers are %q: %v", finalizers, err)
			}
		})
	}
}

// With a live list for each deleted parent, the cost to the API server would grow with the number of objects in the
// namespace.
func TestReconcile_CleanUpFindsChildrenInCache(t *testing.T) {
	server := newFakeServer(newWidget())
	cached := &fakeserver.Lister{}
	reconciler, parent := newReconciler(t, Config{
		Client: server, Kinds: []Kind{configMapKind}, Cache: &listing{lister: cached},
	}), newWidget()
	desired := Desired{Stages: [][]Child{Stage(newConfigMap("a", "x")), Stage(newConfigMap("b", "x"))}}
	result, err := reconciler.Reconcile(t.Context(), first, parent, desired)
	children := result.Existing()
	if err != nil {
		t.Fatal(err)
	}
	cached.Found = children
	server.TakeWrites()
	before := len(server.Actions())
	now := metav1.Now()
	parent.SetDeletionTimestamp(&now)
	_, err = reconciler.Reconcile(t.Context(), first, parent, Desired{})
	if pending := pendingOf(t, err); !slices.Equal(pending, []string{"b!", "a"}) {
		t.Errorf("pending: %q", pending)
	}
	cached.Found = children[:1]
	if _, err := reconciler.Reconcile(t.Context(), first, parent, Desired{}); err != nil {
		t.Error(err)
	}
	if writes := server.TakeWrites(); !slices.Equal(writes, []string{
		"delete configmaps b", "delete configmaps a", "patch widgets first",
	}) {
		t.Errorf("wrote %q", writes)
	}
	if n := len(server.Actions()) - before; n != 3 {
		t.Errorf("sent %d requests", n)
	}
}

func TestReconcile_OrphanedChildrenAreNotDeleted(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
	desired := Desired{Stages: [][]Child{nil, Stage(newConfigMap("a", "x"), newRemoteConfigMap("b"))}}
	if _, err := reconciler.Reconcile(t.Context(), first, parent, desired); err != nil {
		t.Fatal(err)
	}
	server.TakeWrites()
	now := metav1.Now()
	parent.SetDeletionTimestamp(&now)
	parent.SetFinalizers(append(parent.GetFinalizers(), metav1.FinalizerOrphanDependents))
	_, err := reconciler.Reconcile(t.Context(), first, parent, Desired{})
	failUnlessRequeued(t, err)
	writes := server.TakeWrites()
	want := []string{"patch configmaps b", "delete configmaps " + witnessName, "patch widgets first"}
	if !slices.Equal(writes, want) {
		t.Errorf("wrote %q", writes)
	}
	kept := getConfigMap(t, server, "other", "b")
	call := callFor(t, reconciler, parent)
	if mark, _ := call.rules.MarkOf(kept, call.namespaceUID); mark != decide.NoMark || len(kept.GetLabels()) > 0 {
		t.Errorf("the orphaned child has the metadata %v", kept.Object["metadata"])
	}
}

// API servers before 1.37 can store a negative deletionGracePeriodSeconds. They then keep a Namespace after its last
// finalizer has been removed, until it is deleted once more.
func TestReconcile_DeletesStuckChildrenOnceMore(t *testing.T) {
	for name, test := range map[string]struct {
		finalizers []string
		desired    Desired
		deleted    bool // whether the parent is being deleted
		want       bool
	}{
		"no longer desired":    {nil, oneStage(), false, true},
		"desired":              {nil, oneStage(newObject("v1", "Namespace", "", "a")), false, true},
		"the parent's cleanup": {nil, Desired{}, true, true},
		"with a finalizer":     {[]string{"example.com/hold"}, oneStage(), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			server, parent := newFakeServer(newWidget()), newWidget()
			kinds := []Kind{{GroupKind: schema.GroupKind{Kind: "Namespace"}, CrossNamespace: true}}
			reconciler := newReconciler(t, Config{Client: server, Kinds: kinds})
			desired := oneStage(newObject("v1", "Namespace", "", "a"))
			if _, err := reconciler.Reconcile(t.Context(), first, parent, desired); err != nil {
				t.Fatal(err)
			}
			child, err := server.Resource(namespaces).Get(t.Context(), "a", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			now, negative := metav1.Now(), int64(-1)
			child.SetDeletionTimestamp(&now)
			child.SetDeletionGracePeriodSeconds(&negative)
			child.SetFinalizers(test.finalizers)
			server.PrependReactor("*", "namespaces", func(action clienttesting.Action) (bool, runtime.Object, error) {
				list := &unstructured.UnstructuredList{Items: []unstructured.Unstructured{*child}}
				list.SetAPIVersion("v1")
				list.SetKind("NamespaceList")
				return action.GetVerb() == "list", list, nil
			})
			server.PrependReactor("*", "namespaces", func(action clienttesting.Action) (bool, runtime.Object, error) {
				return slices.Contains([]string{"get", "patch"}, action.GetVerb()), child.DeepCopy(), nil
			})
			if test.deleted {
				parent.SetDeletionTimestamp(&now)
			}
			server.TakeWrites()
			_, err = reconciler.Reconcile(t.Context(), first, parent, test.desired)
			failUnlessRequeued(t, err)
			if got := slices.Contains(server.TakeWrites(), "delete namespaces a"); got != test.want {
				t.Errorf("deleted: %t", got)
			}
		})
	}
}

// Kubernetes removes a child with finalizers only later. Until then, the caller can report it.
func TestReconcile_WaitsForPrunedChildrenWithFinalizers(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
	a, b := newConfigMap("a", "x"), newConfigMap("b", "x")
	if _, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(a, b)); err != nil {
		t.Fatal(err)
	}
	block(t, server, "b")
	_, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(a))
	if pending := pendingOf(t, err); !slices.Equal(pending, []string{"b!"}) {
		t.Errorf("pending: %q", pending)
	}
	block(t, server, "b")
	if _, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(a)); err != nil {
		t.Error(err)
	}
}

func TestReconcile_ReportsPendingDesiredChild(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
	desired := oneStage(newConfigMap("a", "x"))
	if _, err := reconciler.Reconcile(t.Context(), first, parent, desired); err != nil {
		t.Fatal(err)
	}
	block(t, server, "a")
	_, err := reconciler.Reconcile(t.Context(), first, parent, desired)
	if pending := pendingOf(t, err); !slices.Equal(pending, []string{"a!"}) {
		t.Errorf("pending: %q", pending)
	}
}
