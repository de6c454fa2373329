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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
)

// Without a witness, the parent's marked children could not be kept if its dependents are orphaned. Existing children
// are still repaired.
func TestReconcile_WithoutPermissionForTheWitness(t *testing.T) {
	server := newReconciling(t, newWidget())
	created := oneStage(newRemoteConfigMap("a"))
	if _, err := server.reconciler.Reconcile(t.Context(), first, server.parent, created); err != nil {
		t.Fatal(err)
	}
	denied := apierrors.NewForbidden(configMaps.GroupResource(), "children-of-widget-uid-1017ff7e", errors.New("test"))
	server.PrependReactor("get", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return action.(clienttesting.GetAction).GetName() == "children-of-widget-uid-1017ff7e", nil, denied
	})
	restarted := newReconciler(t, Config{Client: server})
	server.TakeWrites()
	changed := newRemoteConfigMap("a")
	changed.Object["data"] = map[string]any{"key": "changed"}
	_, err := restarted.Reconcile(t.Context(), first, server.parent, oneStage(changed, newRemoteConfigMap("b")))
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "default/children-of-widget-uid-1017ff7e") {
		t.Errorf("got %v", err)
	}
	if writes := server.TakeWrites(); !slices.Equal(writes, []string{"apply configmaps a"}) {
		t.Errorf("wrote %q", writes)
	}
}

// The references of the witness, or of another child, show how the parent was deleted. test/integration tests the same
// with the garbage collector.
func TestReconcile_WitnessesOfAnOrphaningDeletion(t *testing.T) {
	local, remote := newConfigMap("local", "x"), newRemoteConfigMap("remote")
	const witness = "children-of-widget-uid-1017ff7e"
	orphan := func(object *unstructured.Unstructured) { object.SetOwnerReferences(nil) }
	for name, test := range map[string]struct {
		stages [][]Child
		change func(t *testing.T, change func(name string, f func(*unstructured.Unstructured)), remove func(name string))
		want   bool // whether the marked child is kept
	}{
		"a child has its owner reference": {
			[][]Child{Stage(remote, local)},
			func(*testing.T, func(string, func(*unstructured.Unstructured)), func(string)) {}, false,
		},
		"a child has lost its owner reference": {
			[][]Child{Stage(remote, local)},
			func(_ *testing.T, change func(string, func(*unstructured.Unstructured)), _ func(string)) {
				change("local", orphan)
			},
			true,
		},
		"one of two children has lost its owner reference": { // the garbage collector has not watched the other type
			[][]Child{Stage(remote, local, newConfigMap("late", "x"))},
			func(_ *testing.T, change func(string, func(*unstructured.Unstructured)), _ func(string)) {
				change("local", orphan)
			},
			true,
		},
		"the children are gone": { // a deletion in the foreground
			[][]Child{Stage(remote, local)},
			func(_ *testing.T, _ func(string, func(*unstructured.Unstructured)), remove func(string)) {
				remove("local")
			}, false,
		},
		"the witness has lost its owner reference": {
			[][]Child{Stage(remote), Stage(local)},
			func(_ *testing.T, change func(string, func(*unstructured.Unstructured)), _ func(string)) {
				change(witness, orphan)
			},
			true,
		},
		"the witness is gone": {
			[][]Child{Stage(remote)},
			func(_ *testing.T, _ func(string, func(*unstructured.Unstructured)), remove func(string)) {
				remove(witness)
			}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := newReconciling(t, newWidget())
			desired := Desired{Stages: test.stages}
			if _, err := server.reconciler.Reconcile(t.Context(), first, server.parent, desired); err != nil {
				t.Fatal(err)
			}
			objects := server.Resource(configMaps).Namespace("default")
			test.change(t, func(name string, f func(*unstructured.Unstructured)) {
				object := getConfigMap(t, server.Server, "default", name)
				f(object)
				if _, err := objects.Update(t.Context(), object, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}, func(name string) {
				if err := objects.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			})
			now := metav1.Now()
			server.parent.SetDeletionTimestamp(&now)
			for range 3 {
				_, err := newReconciler(t, Config{Client: server}).Reconcile(t.Context(), first, server.parent, Desired{})
				failUnlessRequeued(t, err)
			}
			if kept := getConfigMap(t, server.Server, "other", "remote") != nil; kept != test.want {
				t.Errorf("kept: %t", kept)
			}
			if finalizers := getParent(t, server.Server).GetFinalizers(); len(finalizers) > 0 {
				t.Errorf("the parent has the finalizers %q", finalizers)
			}
		})
	}
}

// A child in another namespace is created after a child that can be the witness, even within a stage.
func TestReconcile_CreatesMarkedChildrenAfterAWitness(t *testing.T) {
	server := newReconciling(t, newWidget())
	server.PrependReactor("patch", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return action.(clienttesting.PatchAction).GetName() == "local", nil, errors.New("a quota")
	})
	desired := oneStage(newRemoteConfigMap("remote"), newConfigMap("local", "x"))
	_, err := server.reconciler.Reconcile(t.Context(), first, server.parent, desired)
	if !errors.Is(err, errNoWitness) || !strings.Contains(err.Error(), "a quota") {
		t.Errorf("got %v", err)
	}
	if writes := server.TakeWrites(); !slices.Equal(writes, []string{"patch widgets first"}) {
		t.Errorf("wrote %q", writes)
	}
}

// If the witness cannot be read, nothing is deleted, because the children may have to be kept. Dependents of a parent
// in a terminating namespace are not orphaned.
func TestReconcile_UnreadableWitness(t *testing.T) {
	for _, terminating := range []bool{false, true} {
		namespace := newObject("v1", "Namespace", "", "default")
		now := metav1.Now()
		if terminating {
			namespace.SetDeletionTimestamp(&now)
		}
		server := newReconciling(t, newWidget(), namespace)
		created := oneStage(newRemoteConfigMap("a"))
		if _, err := server.reconciler.Reconcile(t.Context(), first, server.parent, created); err != nil {
			t.Fatal(err)
		}
		server.PrependReactor("get", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
			return action.(clienttesting.GetAction).GetName() == "children-of-widget-uid-1017ff7e", nil, errDenied
		})
		server.parent.SetDeletionTimestamp(&now)
		server.TakeWrites()
		_, err := server.reconciler.Reconcile(t.Context(), first, server.parent, Desired{})
		var unreadable *UnknownPropagationError
		if isUnreadable := errors.As(err, &unreadable); isUnreadable == terminating {
			t.Errorf("terminating: %t: got %v", terminating, err)
		} else if isUnreadable && !strings.HasPrefix(err.Error(), "cannot delete configmaps other/a: ") {
			t.Errorf("got %v", err)
		}
		if writes := server.TakeWrites(); slices.Contains(writes, "delete configmaps a") != terminating {
			t.Errorf("terminating: %t: wrote %q", terminating, writes)
		}
	}
}

// Several controllers can have children of the same parent.
func TestWitnessName_DependsOnTheController(t *testing.T) {
	server := newFakeServer(newWidget())
	a, b := newReconciler(t, Config{Client: server}), newReconciler(t, Config{Client: server})
	b.config.Name = "other.example.com"
	if name := callFor(t, a, newWidget()).witnessName(); name == callFor(t, b, newWidget()).witnessName() {
		t.Errorf("two controllers have the witness %s", name)
	}
}

// The cleanup does not find children of kinds that are not in Config.Kinds, so they cannot be witnesses.
func TestReconcile_ChildOfAnUnlistedKindIsNoWitness(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler := newReconciler(t, Config{Client: server, Kinds: []Kind{configMapKind, {
		GroupKind: schema.GroupKind{Kind: "Namespace"}, CrossNamespace: true,
	}}})
	route := newObject("example.com/v1", "Widget", "", "route")
	desired := oneStage(route, newObject("v1", "Namespace", "", "remote"))
	if _, err := reconciler.Reconcile(t.Context(), first, newWidget(), desired); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(server.TakeWrites(), func(write string) bool {
		return strings.HasPrefix(write, "apply configmaps children-of-")
	}) {
		t.Error("the parent has no witness")
	}
}

func TestReconcile_OrphanedParentWithoutTheFinalizerKeepsAbsentChildren(t *testing.T) {
	server := newReconciling(t, newWidget())
	created := oneStage(newConfigMap("a", "x"))
	if _, err := server.reconciler.Reconcile(t.Context(), first, server.parent, created); err != nil {
		t.Fatal(err)
	}
	now := metav1.Now()
	server.parent.SetDeletionTimestamp(&now)
	server.parent.SetFinalizers([]string{metav1.FinalizerOrphanDependents})
	server.TakeWrites()
	desired := Desired{Absent: []*unstructured.Unstructured{newConfigMap("a", "x")}}
	if _, err := server.reconciler.Reconcile(t.Context(), first, server.parent, desired); err != nil {
		t.Fatal(err)
	}
	if writes := server.TakeWrites(); len(writes) > 0 {
		t.Errorf("wrote %q", writes)
	}
}

// The confirmation of a restore remains until the child has been written.
func TestReconcile_ConfirmationRemainsIfTheWriteFails(t *testing.T) {
	parent, namespace := restored("another")
	child := newRemoteConfigMap("a")
	setMark(child, "first", "widget-uid", "namespace")
	child.SetAnnotations(with(child.GetAnnotations(), "platform.example.com/restored", "true"))
	server := newReconciling(t, parent, namespace, child)
	server.PrependReactor("patch", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		isApply := action.(clienttesting.PatchAction).GetPatchType() == types.ApplyPatchType
		return isApply && action.GetNamespace() == "other", nil, errors.New("a quota")
	})
	if _, err := server.reconciler.Reconcile(t.Context(), first, parent, oneStage(newRemoteConfigMap("a"))); err == nil {
		t.Error("got no error")
	}
	now := getConfigMap(t, server.Server, "other", "a")
	if now.GetAnnotations()["platform.example.com/restored"] != "true" {
		t.Errorf("the annotations are %v", now.GetAnnotations())
	}
}
