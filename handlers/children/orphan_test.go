package children

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
)

// Without a witness, the parent's marked children could not be kept if its dependents are orphaned. Existing children
// are still repaired and pruned.
func TestReconcile_WithoutPermissionForTheWitness(t *testing.T) {
	server := newReconciling(t, newWidget())
	created := oneStage(newRemoteConfigMap("a"), newRemoteConfigMap("z"))
	if _, err := server.reconciler.Reconcile(t.Context(), first, server.parent, created); err != nil {
		t.Fatal(err)
	}
	denied := apierrors.NewForbidden(configMaps.GroupResource(), witnessName, errors.New("test"))
	server.PrependReactor("get", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return action.(clienttesting.GetAction).GetName() == witnessName, nil, denied
	})
	restarted := newReconciler(t, Config{Client: server})
	server.TakeWrites()
	changed := newRemoteConfigMap("a")
	changed.Object["data"] = map[string]any{"key": "changed"}
	_, err := restarted.Reconcile(t.Context(), first, server.parent, oneStage(changed, newRemoteConfigMap("b")))
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "default/"+witnessName) {
		t.Errorf("got %v", err)
	}
	if writes := server.TakeWrites(); !slices.Equal(writes, []string{"apply configmaps a"}) {
		t.Errorf("wrote %q", writes)
	}
	// If all desired children exist, the error is still returned, and other children are pruned.
	_, err = restarted.Reconcile(t.Context(), first, server.parent, oneStage(newRemoteConfigMap("a")))
	if !apierrors.IsForbidden(err) {
		t.Errorf("got %v", err)
	}
	if writes := server.TakeWrites(); !slices.Equal(writes, []string{"apply configmaps a", "delete configmaps z"}) {
		t.Errorf("wrote %q", writes)
	}
}

// No child is marked without a witness: not a new one, not an adopted one, and not the child of a restored parent.
func TestReconcile_MarksNoChildWithoutAWitness(t *testing.T) {
	parent, namespace := restored("another")
	ofEarlier, unmarked := newRemoteConfigMap("restored"), newRemoteConfigMap("adopted")
	setMark(ofEarlier, "first", "widget-uid", "namespace")
	confirm("another")(ofEarlier)
	server := newReconciling(t, parent, namespace, ofEarlier, unmarked)
	quota := errors.New("a quota")
	server.PrependReactor("patch", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return strings.HasPrefix(action.(clienttesting.PatchAction).GetName(), "children-of-"), nil, quota
	})
	desired := oneStage(ofEarlier, unmarked, newRemoteConfigMap("new"), newConfigMap("local", "x"))
	desired.Stages[0][0].Object = newRemoteConfigMap("restored")
	desired.Stages[0][1].Adopt = true
	_, err := server.reconciler.Reconcile(t.Context(), first, server.parent, desired)
	if !errors.Is(err, quota) {
		t.Errorf("got %v", err)
	}
	if writes := server.TakeWrites(); !slices.Equal(writes, []string{"patch widgets first", "apply configmaps local"}) {
		t.Errorf("wrote %q", writes)
	}
	if uid, has := server.parent.GetAnnotations()["platform.example.com/witness"]; has {
		t.Errorf("the annotation contains %q", uid)
	}
}

// orphanWitness removes the owner reference of the witness, like the garbage collector.
func orphanWitness(t *testing.T, server reconciling) {
	t.Helper()
	witness := getConfigMap(t, server.Server, "default", witnessName)
	witness.SetOwnerReferences(nil)
	objects := server.Resource(configMaps).Namespace("default")
	if _, err := objects.Update(t.Context(), witness, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func deleteWitness(t *testing.T, server reconciling) {
	t.Helper()
	objects := server.Resource(configMaps).Namespace("default")
	if err := objects.Delete(t.Context(), witnessName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// terminate sets the time at which the parent's namespace was deleted, if at is not nil.
func terminate(t *testing.T, server reconciling, at *metav1.Time) {
	t.Helper()
	namespace := newObject("v1", "Namespace", "", "default")
	namespace.SetDeletionTimestamp(at)
	if at != nil {
		namespace.SetFinalizers([]string{"example.com/hold"})
	}
	server.Add(namespace)
}

// The witness and the times of deletions show whether the dependents of a deleted parent were orphaned. If they do not,
// the marked child is kept. test/integration tests the same with the garbage collector.
func TestReconcile_DeletionWithMarkedChildren(t *testing.T) {
	now := metav1.Now().Rfc3339Copy()
	before, after := metav1.NewTime(now.Add(-5*time.Second)), metav1.NewTime(now.Add(time.Second))
	shortlyBefore := metav1.NewTime(now.Add(-3 * time.Second))
	setWitness := func(uid string) func(*unstructured.Unstructured) {
		return func(parent *unstructured.Unstructured) {
			parent.SetAnnotations(with(parent.GetAnnotations(), "platform.example.com/witness", uid))
		}
	}
	finalize := func(finalizer string) func(*unstructured.Unstructured) {
		return func(parent *unstructured.Unstructured) {
			parent.SetFinalizers(append(parent.GetFinalizers(), finalizer))
		}
	}
	const present, orphaned, gone = "present", "orphaned", "gone"
	for name, test := range map[string]struct {
		witness   string
		parent    func(*unstructured.Unstructured) // changes the parent
		namespace *metav1.Time                     // when the namespace was deleted
		want      bool                             // whether the marked child is kept
	}{
		"in the background":                         {present, nil, nil, false},
		"in the foreground":                         {gone, finalize(metav1.FinalizerDeleteDependents), nil, false},
		"in the foreground, without the finalizer":  {gone, nil, nil, false},
		"orphaned":                                  {orphaned, nil, nil, true},
		"orphaned, with the finalizer":              {present, finalize(metav1.FinalizerOrphanDependents), nil, true},
		"by the namespace's deletion":               {gone, nil, &before, false},
		"in the second of the namespace's deletion": {gone, nil, &now, true},
		"shortly after the namespace's deletion":    {gone, nil, &shortlyBefore, true},
		"before the namespace's deletion":           {gone, nil, &after, true},
		"before it, with the witness":               {present, nil, &after, false},
		"orphaned, before the namespace's deletion": {orphaned, nil, &after, true},
		"orphaned, in a terminating namespace":      {orphaned, nil, &before, true},
		"before it, in the foreground":              {gone, finalize(metav1.FinalizerDeleteDependents), &after, false},
		"restored and deleted":                      {gone, setWitness("another"), nil, true},
		"restored and deleted in the foreground": {gone, func(parent *unstructured.Unstructured) {
			setWitness("another")(parent)
			finalize(metav1.FinalizerDeleteDependents)(parent)
		}, nil, false},
		"restored and deleted by the namespace":     {gone, setWitness("another"), &before, false},
		"restored and deleted before the namespace": {gone, setWitness("another"), &after, true},
		"without the annotation":                    {present, setWitness(""), nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			server := newReconciling(t, newWidget(), newObject("v1", "Namespace", "", "default"))
			desired := oneStage(newRemoteConfigMap("remote"), newConfigMap("local", "x"))
			if _, err := server.reconciler.Reconcile(t.Context(), first, server.parent, desired); err != nil {
				t.Fatal(err)
			}
			if uid := server.parent.GetAnnotations()["platform.example.com/witness"]; uid != "widget-uid" {
				t.Errorf("the annotation contains %q", uid)
			}
			switch test.witness {
			case orphaned:
				orphanWitness(t, server)
			case gone:
				deleteWitness(t, server)
			}
			if test.parent != nil {
				test.parent(server.parent)
			}
			server.parent.SetDeletionTimestamp(&now)
			terminate(t, server, test.namespace)
			for range 3 {
				_, err := newReconciler(t, Config{Client: server}).Reconcile(t.Context(), first, server.parent, Desired{})
				failUnlessRequeued(t, err)
			}
			wantReleased(t, server, test.want)
		})
	}
}

// wantReleased expects that a deleted parent has no finalizer, and whether its marked child is kept without the mark.
func wantReleased(t *testing.T, server reconciling, want bool) {
	t.Helper()
	child := getConfigMap(t, server.Server, "other", "remote")
	if kept := child != nil; kept != want {
		t.Errorf("kept: %t", kept)
	}
	if child != nil && child.GetLabels()["platform.example.com/parent"] != "" {
		t.Errorf("the child still has the labels %v", child.GetLabels())
	}
	finalizers := getParent(t, server.Server).GetFinalizers()
	if slices.Contains(finalizers, "platform.example.com/children") {
		t.Errorf("the parent has the finalizers %q", finalizers)
	}
}

// A witness is written only for a parent that has not been deleted. Afterwards, the missing owner reference is the only
// evidence of an orphaning deletion.
func TestReconcile_DoesNotRepairTheWitnessOfADeletedParent(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		server := newReconciling(t, newWidget())
		desired := oneStage(newRemoteConfigMap("a"))
		if _, err := server.reconciler.Reconcile(t.Context(), first, server.parent, desired); err != nil {
			t.Fatal(err)
		}
		witness := getConfigMap(t, server.Server, "default", witnessName)
		witness.SetOwnerReferences(nil)
		objects := server.Resource(configMaps).Namespace("default")
		if _, err := objects.Update(t.Context(), witness, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		outdated := server.parent.DeepCopy()
		if deleted {
			server.Delete(first)
		}
		restarted := newReconciler(t, Config{Client: server})
		if _, err := restarted.Reconcile(t.Context(), first, outdated, desired); err != nil {
			t.Fatal(err)
		}
		witness = getConfigMap(t, server.Server, "default", witnessName)
		if repaired := len(witness.GetOwnerReferences()) > 0; repaired == deleted {
			t.Errorf("deleted: %t: the owners are %v", deleted, witness.GetOwnerReferences())
		}
	}
}

// The deletion of an absent child in a partial call must not remove what shows how the parent is deleted.
func TestReconcile_AbsentChildIsNoWitness(t *testing.T) {
	server := newReconciling(t, newWidget())
	local, remote := newConfigMap("local", "x"), newRemoteConfigMap("remote")
	for _, desired := range []Desired{oneStage(local, remote), withAbsent(local, remote)} {
		if _, err := server.reconciler.Reconcile(t.Context(), first, server.parent, desired); err != nil {
			t.Fatal(err)
		}
	}
	if getConfigMap(t, server.Server, "default", "local") != nil {
		t.Error("the absent child exists")
	}
	if getConfigMap(t, server.Server, "default", witnessName) == nil {
		t.Error("the parent has no witness")
	}
}

// A deletion takes several reconciles. It can be followed by another deletion, which orphans the dependents, or by the
// deletion of the namespace.
func TestReconcile_DeletionFollowedByAnother(t *testing.T) {
	for name, test := range map[string]struct {
		change func(t *testing.T, server reconciling)
		want   bool // whether the child in the first stage is kept
	}{
		"of the dependents' references": {orphanWitness, true},
		"of the namespace": {func(t *testing.T, server reconciling) {
			now := metav1.Now()
			terminate(t, server, &now)
			deleteWitness(t, server)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			server := newReconciling(t, newWidget(), newObject("v1", "Namespace", "", "default"))
			desired := Desired{Stages: [][]Child{Stage(newRemoteConfigMap("first")), Stage(newRemoteConfigMap("second"))}}
			_, err := server.reconciler.Reconcile(t.Context(), first, server.parent, desired)
			failUnlessRequeued(t, err)
			now := metav1.Now()
			server.parent.SetDeletionTimestamp(&now)
			_, err = server.reconciler.Reconcile(t.Context(), first, server.parent, Desired{})
			failUnlessRequeued(t, err)
			kept, deleted := getConfigMap(t, server.Server, "other", "first"), getConfigMap(t, server.Server, "other", "second")
			if kept == nil || deleted != nil {
				t.Fatal("the first reconcile must delete only the last stage")
			}
			test.change(t, server)
			for range 2 {
				_, err = server.reconciler.Reconcile(t.Context(), first, server.parent, Desired{})
				failUnlessRequeued(t, err)
			}
			if kept := getConfigMap(t, server.Server, "other", "first") != nil; kept != test.want {
				t.Errorf("kept: %t", kept)
			}
		})
	}
}

// If the witness cannot be read, nothing is deleted, because the children may have to be kept. In a terminating
// namespace, the permissions can have been deleted. A parent that was deleted with its namespace has no orphans.
func TestReconcile_UnreadableWitness(t *testing.T) {
	now := metav1.Now()
	before, after := metav1.NewTime(now.Add(-5*time.Second)), metav1.NewTime(now.Add(5*time.Second))
	for name, test := range map[string]struct {
		namespace *metav1.Time // when the namespace was deleted
		write     string
	}{
		"the namespace exists":                        {nil, ""},
		"the parent was deleted with its namespace":   {&before, "delete configmaps a"},
		"the parent was deleted before its namespace": {&after, "patch configmaps a"},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := newObject("v1", "Namespace", "", "default")
			namespace.SetDeletionTimestamp(test.namespace)
			server := newReconciling(t, newWidget(), namespace)
			created := oneStage(newRemoteConfigMap("a"))
			if _, err := server.reconciler.Reconcile(t.Context(), first, server.parent, created); err != nil {
				t.Fatal(err)
			}
			server.PrependReactor("get", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
				return action.(clienttesting.GetAction).GetName() == witnessName, nil, errDenied
			})
			server.parent.SetDeletionTimestamp(&now)
			server.TakeWrites()
			_, err := server.reconciler.Reconcile(t.Context(), first, server.parent, Desired{})
			var unreadable *UnknownPropagationError
			if isUnreadable := errors.As(err, &unreadable); isUnreadable != (test.write == "") {
				t.Errorf("got %v", err)
			} else if isUnreadable && !strings.HasPrefix(err.Error(), "cannot delete configmaps other/a: ") {
				t.Errorf("got %v", err)
			}
			var written []string
			for _, write := range server.TakeWrites() {
				if strings.HasSuffix(write, "configmaps a") {
					written = append(written, write)
				}
			}
			if strings.Join(written, ", ") != test.write {
				t.Errorf("wrote %q", written)
			}
		})
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
	child.SetAnnotations(with(child.GetAnnotations(), "platform.example.com/restored", "another"))
	server := newReconciling(t, parent, namespace, child)
	server.PrependReactor("patch", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		isApply := action.(clienttesting.PatchAction).GetPatchType() == types.ApplyPatchType
		return isApply && action.GetNamespace() == "other", nil, errors.New("a quota")
	})
	if _, err := server.reconciler.Reconcile(t.Context(), first, parent, oneStage(newRemoteConfigMap("a"))); err == nil {
		t.Error("got no error")
	}
	now := getConfigMap(t, server.Server, "other", "a")
	if now.GetAnnotations()["platform.example.com/restored"] != "another" {
		t.Errorf("the annotations are %v", now.GetAnnotations())
	}
}
