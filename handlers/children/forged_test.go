package children

import (
	"errors"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
	"github.com/dynamic-controller/engine/handlers/internal/live"
)

// denyDelete makes the server reject deletions of matching config maps.
func denyDelete(server *controllertest.Server, matches func(namespace, name string) bool) {
	server.PrependReactor("delete", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		name := action.(clienttesting.DeleteAction).GetName()
		if !matches(action.GetNamespace(), name) {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(configMaps.GroupResource(), name, errors.New("test"))
	})
}

// createForged creates a copy of a child with a forged mark and stage.
func createForged(
	t *testing.T, server *controllertest.Server, child *unstructured.Unstructured, namespace, stage string,
) *unstructured.Unstructured {
	t.Helper()
	forged := child.DeepCopy()
	forged.SetNamespace(namespace)
	forged.SetName("forged")
	forged.SetUID("")
	forged.SetResourceVersion("")
	forged.SetAnnotations(map[string]string{
		"platform.example.com/stage": stage, "platform.example.com/self": namespace + "/forged",
	})
	created, err := server.Resource(configMaps).Namespace(namespace).Create(t.Context(), forged, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// inNamespace returns a config map in a namespace.
func inNamespace(namespace, name string) *unstructured.Unstructured {
	child := newConfigMap(name, "x")
	child.SetNamespace(namespace)
	return child
}

// A user who can create objects in a namespace where the identity cannot delete them must not be able to block the
// parent.
func TestTrust_IgnoresForgedChildrenInOtherNamespaces(t *testing.T) {
	clusterScoped := newObject("v1", "Namespace", "", "first")
	clusterScoped.SetUID("namespace-uid")
	clusterScoped.SetResourceVersion("1")
	for name, parent := range map[string]*unstructured.Unstructured{
		"cluster-scoped parent": clusterScoped, "namespaced parent": newWidget(),
	} {
		t.Run(name, func(t *testing.T) {
			server := newFakeServer(parent)
			id := live.Identify(namespaces, parent)
			if parent.GetNamespace() != "" {
				id = first
			}
			reconciler := newReconciler(t, Config{Client: server})
			a, b := inNamespace("other", "a"), inNamespace("other", "b")
			result, err := reconciler.Reconcile(t.Context(), id, parent,
				Desired{Stages: [][]Child{Stage(a), Stage(b)}})
			children := result.Existing()
			if err != nil {
				t.Fatal(err)
			}
			createForged(t, server, children[0], "theirs", "9")
			denyDelete(server, func(namespace, _ string) bool { return namespace == "theirs" })
			server.TakeWrites()
			if _, err := reconciler.Reconcile(t.Context(), id, parent, Desired{Stages: [][]Child{Stage(a)}}); err != nil {
				t.Errorf("prune: %v", err)
			}
			if writes := server.TakeWrites(); !slices.Equal(writes, []string{"delete configmaps b"}) {
				t.Errorf("pruning wrote %q", writes)
			}
			now := metav1.Now()
			parent.SetDeletionTimestamp(&now)
			for range 2 {
				_, err := reconciler.Reconcile(t.Context(), id, parent, Desired{})
				failUnlessRequeued(t, err)
			}
			current, err := live.Get(t.Context(), server, id)
			if err != nil || len(current.GetFinalizers()) > 0 {
				t.Errorf("the finalizers are %q, %v", current.GetFinalizers(), err)
			}
			if slices.Contains(server.TakeWrites(), "delete configmaps forged") {
				t.Error("the cleanup deleted the forged child")
			}
		})
	}
}

func TestTrust_ForgedStageIsLimitedByTheInventory(t *testing.T) {
	for _, stage := range []string{"9", "99999999999999999999", "-1"} {
		server := newFakeServer(newWidget())
		reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
		result, err := reconciler.Reconcile(t.Context(), first, parent,
			Desired{Stages: [][]Child{Stage(newConfigMap("a", "x")), Stage(newConfigMap("b", "x"))}})
		children := result.Existing()
		if err != nil {
			t.Fatal(err)
		}
		createForged(t, server, children[0], "default", stage)
		block(t, server, "forged")
		_, err = reconciler.Reconcile(t.Context(), first, parent, Desired{})
		want := []string{"b!", "forged!", "a"}
		if stage == "-1" {
			want = []string{"b!", "a", "forged!"}
		}
		if pending := pendingOf(t, err); !slices.Equal(pending, want) {
			t.Errorf("stage %s: pending: %q, want %q", stage, pending, want)
		}
		if writes := server.TakeWrites(); !slices.Contains(writes, "delete configmaps b") {
			t.Errorf("stage %s: wrote %q", stage, writes)
		}
	}
}

func TestReconcile_PruneContinuesAfterForbidden(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
	all := Desired{Stages: [][]Child{
		Stage(newConfigMap("a", "x")), Stage(newConfigMap("b", "x")),
		Stage(newConfigMap("c", "x"), newConfigMap("d", "x")),
	}}
	if _, err := reconciler.Reconcile(t.Context(), first, parent, all); err != nil {
		t.Fatal(err)
	}
	server.TakeWrites()
	denyDelete(server, func(_, name string) bool { return name == "c" || name == "d" })
	for _, want := range []string{"delete configmaps b", "delete configmaps a"} {
		// The undeletable object in Desired.Absent does not delay the others either.
		_, err := reconciler.Reconcile(t.Context(), first, parent,
			Desired{Absent: []*unstructured.Unstructured{newConfigMap("d", "x")}})
		if !apierrors.IsForbidden(err) || strings.Count(err.Error(), "default/c") != 1 ||
			strings.Count(err.Error(), "default/d") != 1 {
			t.Errorf("got %v", err)
		}
		if writes := server.TakeWrites(); !slices.Equal(writes, []string{want}) {
			t.Errorf("wrote %q, want %q", writes, want)
		}
	}
	// When the parent is deleted, the order is kept.
	if _, err := reconciler.Reconcile(t.Context(), first, parent, all); err != nil {
		t.Fatal(err)
	}
	server.TakeWrites()
	now := metav1.Now()
	parent.SetDeletionTimestamp(&now)
	_, err := reconciler.Reconcile(t.Context(), first, parent, Desired{})
	if writes := server.TakeWrites(); !apierrors.IsForbidden(err) || len(writes) > 0 {
		t.Errorf("got %v, wrote %q", err, writes)
	}
}

// Another process finds the children through the inventory.
func TestReconcile_RecordsNamespacesWhileTheyHaveChildren(t *testing.T) {
	server := newFakeServer(newWidget())
	parent := newWidget()
	for _, step := range []struct {
		desired   Desired
		writes    []string
		inventory string
	}{
		{
			oneStage(inNamespace("far", "a")),
			[]string{"apply configmaps " + witnessName, "patch widgets first", "apply configmaps a"},
			"ConfigMap=v1/configmaps:0@far",
		},
		{
			oneStage(inNamespace("near", "a")), []string{"patch widgets first", "apply configmaps a", "delete configmaps a"},
			"ConfigMap=v1/configmaps:0@far@near",
		},
		{oneStage(inNamespace("near", "a")), []string{"patch widgets first"}, "ConfigMap=v1/configmaps:0@near"},
		{oneStage(inNamespace("near", "a")), nil, "ConfigMap=v1/configmaps:0@near"},
		{oneStage(), []string{"delete configmaps a"}, "ConfigMap=v1/configmaps:0@near"},
		{oneStage(), []string{"patch widgets first"}, ""},
	} {
		reconciler := newReconciler(t, Config{Client: server})
		_, err := reconciler.Reconcile(t.Context(), first, parent, step.desired)
		failUnlessRequeued(t, err)
		if writes := server.TakeWrites(); !slices.Equal(writes, step.writes) {
			t.Errorf("wrote %q, want %q", writes, step.writes)
		}
		if got := parent.GetAnnotations()[reconciler.names.Inventory()]; got != step.inventory {
			t.Errorf("the inventory is %q, want %q", got, step.inventory)
		}
	}
}

func TestRecorded(t *testing.T) {
	reconciler, parent := newReconciler(t, Config{Client: newFakeServer()}), newWidget()
	parent.SetAnnotations(map[string]string{
		reconciler.names.Inventory(): "ConfigMap=v1/configmaps:0@far,Pod=v1/pods:0@near",
	})
	for namespace, want := range map[string]bool{"default": true, "far": true, "": true, "near": false} {
		if got := reconciler.Recorded(parent)(configMapKind.GroupKind, namespace); got != want {
			t.Errorf("%q: got %t", namespace, got)
		}
	}
	if reconciler.Recorded(parent)(widgetKind.GroupKind, "far") {
		t.Error("a kind without an entry has children in another namespace")
	}
}
