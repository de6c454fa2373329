package children

import (
	"slices"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

const bucketLabel = "platform.example.com/bucket"

// newBucketed returns a new server with a Reconciler that labels children with the bucket of their parent's type.
func newBucketed(t *testing.T, objects ...*unstructured.Unstructured) reconciling {
	t.Helper()
	server := newReconciling(t, append([]*unstructured.Unstructured{newWidget()}, objects...)...)
	server.reconciler = newReconciler(t, Config{Client: server, LabelBuckets: true})
	return server
}

// reconcile calls Reconcile, and compares the writes.
func (r reconciling) reconcile(t *testing.T, what string, desired Desired, writes ...string) {
	t.Helper()
	_, err := r.reconciler.Reconcile(t.Context(), first, r.parent, desired)
	failUnlessRequeued(t, err)
	if got := r.TakeWrites(); !slices.Equal(got, writes) {
		t.Errorf("%s: wrote %q, want %q", what, got, writes)
	}
}

// The bucket of the type is a constant, because children must not be labelled again by a later release.
func TestLabelBuckets_AllChildrenHaveTheBucketOfTheirParentsType(t *testing.T) {
	const want = "127"
	if got := dynamiccontroller.BucketOf(first.GVR.GroupResource()); got != want || BucketLabel("a.b") != "a.b/bucket" {
		t.Errorf("the bucket is %s, want %s, and the label is %s", got, want, BucketLabel("a.b"))
	}
	adopted, chosen := newConfigMap("adopted", "x"), newConfigMap("chosen", "x")
	adopted.SetNamespace("default")
	chosen.SetLabels(map[string]string{bucketLabel: "1", "other": "kept"})
	server := newBucketed(t, adopted)
	desired := Desired{Stages: [][]Child{{
		{Object: newConfigMap("plain", "x")}, {Object: chosen}, {Object: newConfigMap("adopted", "x"), Adopt: true},
		{Object: newConfigMap("retained", "x"), Retain: true}, {Object: newRemoteConfigMap("remote")},
	}}}
	if _, err := server.reconciler.Reconcile(t.Context(), first, server.parent, desired); err != nil {
		t.Fatal(err)
	}
	for name, namespace := range map[string]string{
		"plain": "default", "chosen": "default", "adopted": "default", "retained": "default", "remote": "other",
	} {
		labels := getConfigMap(t, server.Server, namespace, name).GetLabels()
		if labels[bucketLabel] != want || name == "chosen" && labels["other"] != "kept" {
			t.Errorf("%s has the labels %v", name, labels)
		}
	}
	server.TakeWrites()
	server.reconcile(t, "without a change", desired)
}

func TestLabelBuckets_ChildrenAreLabelledOnceAndNotByDefault(t *testing.T) {
	server := newReconciling(t, newWidget())
	desired := oneStage(newConfigMap("a", "x"))
	server.reconcile(t, "by default", desired, "patch widgets first", "apply configmaps a")
	if labels := getConfigMap(t, server.Server, "default", "a").GetLabels(); labels[bucketLabel] != "" {
		t.Errorf("by default, the child has the labels %v", labels)
	}
	server.reconciler = newReconciler(t, Config{Client: server, LabelBuckets: true})
	server.reconcile(t, "with LabelBuckets", desired, "apply configmaps a")
	server.reconcile(t, "with LabelBuckets, again", desired)
	server.reconciler = newReconciler(t, Config{Client: server, LabelBuckets: true})
	server.reconcile(t, "in the next run", desired)
}

// Caches do not find a child with another bucket. Such corrections therefore have a larger budget.
func TestLabelBuckets_ChangedLabelIsPutBackAtOnce(t *testing.T) {
	server := newBucketed(t)
	desired := oneStage(newConfigMap("a", "x"))
	server.reconcile(t, "the creation", desired, "patch widgets first", "apply configmaps a")
	objects := server.Resource(configMaps).Namespace("default")
	for i := range 10 {
		child := getConfigMap(t, server.Server, "default", "a")
		labels := child.GetLabels()
		if labels[bucketLabel] = strconv.Itoa(i); i%2 == 0 {
			delete(labels, bucketLabel)
		}
		child.SetLabels(labels)
		if _, err := objects.Update(t.Context(), child, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		server.TakeWrites()
		server.reconcile(t, "a changed label", desired, "apply configmaps a")
		if labels := getConfigMap(t, server.Server, "default", "a").GetLabels(); labels[bucketLabel] != "127" {
			t.Fatalf("the child has the labels %v", labels)
		}
	}
}

// Kubernetes keeps the other labels of orphaned children. Those that belong to the mark are removed.
func TestLabelBuckets_LabelOfAnOrphanedChildIsRemoved(t *testing.T) {
	for name, test := range map[string]struct{ label, want string }{
		"the bucket": {label: "127"}, "a label of a user": {label: "theirs", want: "theirs"},
	} {
		t.Run(name, func(t *testing.T) {
			server := newReconciling(t, newWidget(), newObject("v1", "Namespace", "", "default"))
			remote := newRemoteConfigMap("remote")
			remote.SetLabels(map[string]string{bucketLabel: test.label})
			desired := oneStage(remote)
			if _, err := server.reconciler.Reconcile(t.Context(), first, server.parent, desired); err != nil {
				t.Fatal(err)
			}
			orphanWitness(t, server)
			now := metav1.Now()
			server.parent.SetDeletionTimestamp(&now)
			for range 3 {
				_, err := server.reconciler.Reconcile(t.Context(), first, server.parent, Desired{})
				failUnlessRequeued(t, err)
			}
			wantReleased(t, server, true)
			if got := getConfigMap(t, server.Server, "other", "remote").GetLabels()[bucketLabel]; got != test.want {
				t.Errorf("the orphaned child has the label %q, want %q", got, test.want)
			}
		})
	}
}
