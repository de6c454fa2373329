package children

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/dynamic-controller/engine/handlers"
)

// stored is the content of a file in testdata/formats: the objects of a parent, as one version has stored them.
func stored(t *testing.T, name string) (objects []*unstructured.Unstructured) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", "formats", name))
	if err != nil {
		t.Fatal(err)
	}
	for text := range bytes.SplitSeq(content, []byte("---\n")) {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(text, &object.Object); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
	return objects
}

// everyKind returns children of every kind: with an owner reference, adopted, in a later stage, in another namespace,
// and retained.
func everyKind() Desired {
	adopted := Child{Object: newConfigMap("adopted", "x"), Adopt: true, OnImmutable: OnImmutableRecreate}
	remote := Child{Object: newRemoteConfigMap("remote")}
	retained := Child{Object: newConfigMap("retained", "x"), Retain: true}
	desired := Desired{Stages: [][]Child{{{Object: newConfigMap("near", "x")}, adopted}, {remote, retained}}}
	desired.As.Name = "tenant"
	return desired
}

// What is stored must not change without a new format, which all programs that can run at the same time can read. If
// this test fails, see formats.go.
func TestFormats_WrittenAsBefore(t *testing.T) {
	_, namespace := restored("namespace")
	existing := newConfigMap("adopted", "old")
	existing.SetNamespace("default")
	server := newReconciling(t, newWidget(), namespace, existing)
	if _, err := server.reconciler.Reconcile(t.Context(), first, server.parent, everyKind()); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, want := range stored(t, "1.yaml") {
		gvr := configMaps
		if want.GetKind() == "Widget" {
			gvr = widgets
		}
		now, err := handlers.Live(server.Server).Get(t.Context(), gvr, want.GetNamespace(), want.GetName())
		if err != nil {
			t.Fatal(err)
		}
		for _, field := range []string{"managedFields", "resourceVersion", "generation", "creationTimestamp"} {
			unstructured.RemoveNestedField(now.Object, "metadata", field)
		}
		if now.GetKind() != "Widget" {
			unstructured.RemoveNestedField(now.Object, "metadata", "uid")
		}
		text, err := yaml.Marshal(now.Object)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(text))
	}
	want, err := os.ReadFile(filepath.Join("testdata", "formats", "1.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(got, "---\n"); got != string(want) {
		t.Errorf("this version stores other objects than testdata/formats/1.yaml:\n%s", got)
	}
}

// Objects in all formats belong to their parent: they are neither conflicts nor created again, and are deleted when
// they are no longer desired, and with their parent.
func TestFormats_AllCanBeRead(t *testing.T) {
	// reconcile returns the writes, except those to the parent.
	reconcile := func(t *testing.T, server reconciling, desired Desired) (result Result, writes []string) {
		t.Helper()
		for range 3 {
			var err error
			result, err = server.reconciler.Reconcile(t.Context(), first, server.parent, desired)
			failUnlessRequeued(t, err)
			writes = append(writes, server.TakeWrites()...)
		}
		return result, slices.DeleteFunc(writes, func(write string) bool { return strings.HasPrefix(write, "patch widgets") })
	}
	all := []string{"delete configmaps remote", "delete configmaps adopted", "delete configmaps near"}
	_, namespace := restored("namespace")
	for _, name := range []string{"0.yaml", "1.yaml"} {
		t.Run(name, func(t *testing.T) {
			server := newReconciling(t, append(stored(t, name), namespace)...)
			result, writes := reconcile(t, server, everyKind())
			for _, child := range result.Children {
				if child.Outcome != OutcomeUnchanged {
					t.Errorf("%s is %s", child.NamespacedKey, child.Outcome)
				}
			}
			if i := slices.IndexFunc(writes, func(write string) bool { return strings.HasPrefix(write, "delete") }); i >= 0 {
				t.Errorf("wrote %q", writes)
			}
			remote, key := getConfigMap(t, server.Server, "other", "remote"), "platform.example.com/parent"
			if want := stored(t, "1.yaml")[3]; remote.GetAnnotations()[key] != want.GetAnnotations()[key] {
				t.Errorf("the mark is %s", remote.GetAnnotations()[key])
			}
			server.parent.SetDeletionTimestamp(ptr.To(metav1.Now()))
			if _, writes = reconcile(t, server, Desired{}); !slices.Contains(writes, "delete configmaps remote") {
				t.Errorf("the deletion of the parent wrote %q", writes)
			}

			server = newReconciling(t, append(stored(t, name), namespace)...)
			if _, writes = reconcile(t, server, Desired{}); !slices.Equal(writes, all) {
				t.Errorf("pruning wrote %q, want %q", writes, all)
			}
		})
	}
}

// A child that a later version has marked is neither changed nor deleted, and does not prevent the deletion of others
// that are no longer desired. Its parent remains until the child can be deleted.
func TestFormats_NewerMarkIsKept(t *testing.T) {
	const key = "platform.example.com/parent"
	newer := func(objects []*unstructured.Unstructured) reconciling {
		for _, object := range objects {
			if object.GetName() == "remote" {
				record := strings.Replace(object.GetAnnotations()[key], "{", `{"format":2,`, 1)
				object.SetAnnotations(with(object.GetAnnotations(), key, record))
			}
		}
		return newReconciling(t, objects...)
	}
	server := newer(stored(t, "1.yaml"))
	desired := everyKind()
	desired.Stages[1][0].Object.Object["data"] = map[string]any{"key": "changed"}
	result, err := server.reconciler.Reconcile(t.Context(), first, server.parent, desired)
	if child := result.Children[2]; child.Outcome != OutcomeConflict || child.Reason != ReasonNewerFormat {
		t.Errorf("got %s, %s", child.Outcome, child.Reason)
	}
	if !errors.Is(err, ErrNewerFormat) || !errors.Is(err, ErrNotOwned) || !strings.Contains(err.Error(), "format 2") {
		t.Errorf("got %v", err)
	}
	if writes := server.TakeWrites(); slices.Contains(writes, "apply configmaps remote") {
		t.Errorf("wrote %q", writes)
	}

	none := Desired{As: everyKind().As}
	for range 3 {
		_, err = server.reconciler.Reconcile(t.Context(), first, server.parent, none)
	}
	writes := server.TakeWrites()
	if !slices.Contains(writes, "delete configmaps near") || slices.Contains(writes, "delete configmaps remote") ||
		!errors.Is(err, ErrNewerFormat) {
		t.Errorf("wrote %q, error %v", writes, err)
	}
	kinds := RecordedKinds(server.parent, "platform.example.com")
	if !slices.Equal(kinds[0].Namespaces, []string{"other"}) {
		t.Errorf("the inventory contains %v", kinds)
	}

	server = newer(stored(t, "1.yaml"))
	server.parent.SetDeletionTimestamp(ptr.To(metav1.Now()))
	if _, err = server.reconciler.Reconcile(t.Context(), first, server.parent, none); !errors.Is(err, ErrNewerFormat) {
		t.Errorf("got %v", err)
	}
	if writes := server.TakeWrites(); len(writes) > 0 {
		t.Errorf("the deletion of the parent wrote %q", writes)
	}

	// In a namespace that the inventory does not contain, the object is forged.
	objects := stored(t, "1.yaml")
	forged := newConfigMap("forged", "x")
	forged.SetNamespace("attacker")
	setMark(forged, "first", "widget-uid", "namespace")
	forged.SetAnnotations(with(forged.GetAnnotations(), key, `{"format":2}`))
	server = newReconciling(t, append(objects, forged)...)
	server.parent.SetDeletionTimestamp(ptr.To(metav1.Now()))
	_, err = server.reconciler.Reconcile(t.Context(), first, server.parent, none)
	failUnlessRequeued(t, err)
	if writes := server.TakeWrites(); !slices.Contains(writes, "delete configmaps remote") {
		t.Errorf("with a forged object, the deletion of the parent wrote %q", writes)
	}
}

// While the inventory cannot be read, nothing is written.
func TestFormats_NewerInventoryIsKept(t *testing.T) {
	for _, deleting := range []bool{false, true} {
		objects := stored(t, "1.yaml")
		parent := objects[0]
		key := "platform.example.com/inventory"
		parent.SetAnnotations(with(parent.GetAnnotations(), key, "v2:"+parent.GetAnnotations()[key]))
		server := newReconciling(t, objects...)
		if deleting {
			server.parent.SetDeletionTimestamp(ptr.To(metav1.Now()))
		}
		result, err := server.reconciler.Reconcile(t.Context(), first, server.parent, oneStage(newConfigMap("new", "x")))
		if !errors.Is(err, ErrNewerFormat) || !errors.Is(result.Failure, ErrNewerFormat) {
			t.Errorf("got %v", err)
		}
		if writes := server.TakeWrites(); len(writes) > 0 {
			t.Errorf("wrote %q", writes)
		}
	}
}

// The cache can hold a parent from before the inventory was written.
func TestFormats_NewerInventoryIsReadAfterAConflict(t *testing.T) {
	objects := stored(t, "1.yaml")
	outdated, key := objects[0].DeepCopy(), "platform.example.com/inventory"
	objects[0].SetAnnotations(with(objects[0].GetAnnotations(), key, "v2:x"))
	server := newReconciling(t, objects...)
	server.PrependReactor("patch", "widgets", failWith(apierrors.NewConflict(widgets.GroupResource(), "first", nil)))
	far := newConfigMap("new", "x")
	far.SetNamespace("third")
	_, err := server.reconciler.Reconcile(t.Context(), first, outdated, oneStage(far))
	if writes := server.TakeWrites(); !errors.Is(err, ErrNewerFormat) || len(writes) > 0 {
		t.Errorf("got %v, wrote %q", err, writes)
	}
}

// The error for an object that can be a child of the parent differs from the one for objects of others, so that nobody
// is advised to delete it.
func TestReconcile_DistinguishesObjectsThatNameTheParent(t *testing.T) {
	for want, change := range map[error]func(object *unstructured.Unstructured){
		ErrInvalidMark: func(object *unstructured.Unstructured) {
			object.SetAnnotations(with(object.GetAnnotations(), "platform.example.com/parent", "{"))
		},
		ErrRetained: func(object *unstructured.Unstructured) {
			object.SetAnnotations(with(object.GetAnnotations(), "platform.example.com/retained-by", "x"))
		},
		ErrAdoptionNotEnabled: func(object *unstructured.Unstructured) { object.SetLabels(nil) },
	} {
		object := newRemoteConfigMap("a")
		setMark(object, "first", "earlier-uid", "")
		change(object)
		server := newReconciling(t, newWidget(), object)
		_, err := server.reconciler.Reconcile(t.Context(), first, server.parent, oneStage(newRemoteConfigMap("a")))
		others := slices.DeleteFunc([]error{ErrInvalidMark, ErrRetained}, func(other error) bool { return other == want })
		if !errors.Is(err, want) || !errors.Is(err, ErrNotOwned) ||
			slices.ContainsFunc(others, func(other error) bool { return errors.Is(err, other) }) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
}
