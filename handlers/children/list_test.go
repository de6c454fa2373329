package children

import (
	"context"
	"errors"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/internal/fakeserver"
	"github.com/dynamic-controller/engine/handlers/internal/live"
)

// objectCache is a Cache that holds objects.
type objectCache []*unstructured.Unstructured

func (c objectCache) Get(
	_ context.Context, gvr schema.GroupVersionResource, namespace, name string,
) (*unstructured.Unstructured, error) {
	for _, object := range c {
		if object.GetNamespace() == namespace && object.GetName() == name {
			return object, nil
		}
	}
	return nil, apierrors.NewNotFound(gvr.GroupResource(), name)
}

func (c objectCache) Lister(schema.GroupVersionResource) (dynamiccontroller.Lister, error) {
	return fakeserver.Lister{Found: c}, nil
}

// drawObject returns a config map with any combination of the metadata that determines whether it is a child.
func drawObject(r *rapid.T, name string) *unstructured.Unstructured {
	pick := func(label string, values ...string) string { return rapid.SampledFrom(values).Draw(r, label) }
	object := newConfigMap(name, "x")
	object.SetNamespace(pick("namespace", "default", "other", "unrecorded"))
	if rapid.Bool().Draw(r, "marked") {
		uid := pick("UID in the mark", "widget-uid", "another-uid")
		setMark(object, pick("parent in the mark", "first", "second"), types.UID(uid), "namespace")
	}
	if value := pick("label", "", "widget-uid", "another-uid"); value != "" {
		object.SetLabels(map[string]string{"platform.example.com/parent": value})
	}
	if rapid.Bool().Draw(r, "retained") {
		object.SetAnnotations(with(object.GetAnnotations(), "platform.example.com/retained-by", "x"))
	}
	if uid := pick("controller", "", "widget-uid", "another-uid"); uid != "" {
		owner := newWidget()
		owner.SetUID(types.UID(uid))
		object.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.GroupVersionKind())})
	}
	return object
}

// The API server, the cache and the lister contain the same children.
func TestListKind_AllSourcesFindTheSameChildren(t *testing.T) {
	found := 0
	rapid.Check(t, func(r *rapid.T) {
		namespace := newObject("v1", "Namespace", "", "default")
		namespace.SetUID("namespace")
		objects := []*unstructured.Unstructured{newWidget(), namespace}
		for _, name := range []string{"a", "b", "c", "d"} {
			objects = append(objects, drawObject(r, name))
		}
		cache := objectCache(objects[2:])
		parent := newWidget()
		parent.SetAnnotations(map[string]string{"platform.example.com/inventory": "ConfigMap=v1/configmaps:0@other"})
		if rapid.Bool().Draw(r, "finalizer") { // children can be in other namespaces
			parent.SetFinalizers([]string{"platform.example.com/children"})
		}
		var want []string
		for source, config := range map[string]Config{
			"the API server": {}, "the cache": {Cache: cache},
		} {
			config.Client = newFakeServer(objects...)
			call := callFor(t, newReconciler(t, config), parent)
			recorded, _ := call.inventoryOf(parent, call.isListed)
			mapping, err := call.mappingOf(recorded[0])
			if err != nil {
				r.Fatal(err)
			}
			_, children, err := call.listKind(t.Context(), recorded[0], mapping)
			if err != nil {
				r.Fatal(err)
			}
			names := []string{} // not nil
			for _, child := range children {
				names = append(names, live.Identify(configMaps, child).NamespacedKey)
			}
			slices.Sort(names)
			if want == nil {
				want = names
			}
			if !slices.Equal(names, want) {
				r.Fatalf("%s: found %q, and %q in another source", source, names, want)
			}
			found += len(children)
		}
	})
	if found == 0 && !testing.Short() { // then, there are too few objects
		t.Error("no object was a child")
	}
}

// sameParent returns a config map that another controller created for the same parent.
func sameParent(name string) *unstructured.Unstructured {
	object := newConfigMap(name, "theirs")
	object.SetNamespace("default")
	object.SetOwnerReferences([]metav1.OwnerReference{
		*metav1.NewControllerRef(newWidget(), newWidget().GroupVersionKind()),
	})
	return object
}

// Several controllers can have children of the same parent.
func TestReconcile_ChildrenOfOtherControllersOfTheParentAreKept(t *testing.T) {
	theirs := sameParent("theirs")
	cache := objectCache{theirs}
	for name, config := range map[string]Config{
		"the API server": {}, "the cache": {Cache: cache},
	} {
		server := newFakeServer(newWidget(), theirs)
		config.Client, config.Kinds = server, []Kind{configMapKind}
		reconciler, parent := newReconciler(t, config), newWidget()
		stages := [][]Child{Stage(newConfigMap("a", "x")), Stage(newConfigMap("b", "x"))}
		for _, desired := range []Desired{{Stages: stages}, {Stages: stages[:1]}, {}} {
			_, err := reconciler.Reconcile(t.Context(), first, parent, desired)
			failUnlessRequeued(t, err)
		}
		now := metav1.Now()
		parent.SetDeletionTimestamp(&now)
		_, err := reconciler.Reconcile(t.Context(), first, parent, Desired{})
		failUnlessRequeued(t, err)
		if slices.Contains(server.TakeWrites(), "delete configmaps theirs") {
			t.Errorf("%s: deleted the child of another controller", name)
		}
	}
}

func TestReconcile_DesiredChildOfAnotherControllerOfTheParent(t *testing.T) {
	for name, test := range map[string]struct {
		change      func(object *unstructured.Unstructured)
		adopt, want bool
	}{
		"another controller's": {func(*unstructured.Unstructured) {}, false, false},
		"adopted":              {func(*unstructured.Unstructured) {}, true, true},
		"a user removed the label": {func(object *unstructured.Unstructured) {
			object.SetAnnotations(map[string]string{"platform.example.com/applied": "hash"})
		}, false, true},
		"a user removed the annotation": {func(object *unstructured.Unstructured) {
			object.SetLabels(map[string]string{"platform.example.com/parent": "widget-uid"})
		}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			theirs := sameParent("a")
			test.change(theirs)
			server := newReconciling(t, newWidget(), theirs)
			desired := Desired{Stages: [][]Child{{{Object: newConfigMap("a", "mine"), Adopt: test.adopt}}}}
			_, err := server.reconciler.Reconcile(t.Context(), first, server.parent, desired)
			if (err == nil) != test.want || err != nil && !errors.Is(err, ErrAdoptionNotEnabled) {
				t.Errorf("got %v", err)
			}
			value, _, _ := unstructured.NestedString(getConfigMap(t, server.Server, "default", "a").Object, "data", "key")
			if (value == "mine") != test.want {
				t.Errorf("got the value %s", value)
			}
		})
	}
}

// The content of a foreign object must not reach handlers, even while the object is being deleted.
func TestReconcile_ForeignObjectThatIsBeingDeleted(t *testing.T) {
	of := func(uid types.UID) *unstructured.Unstructured {
		object := sameParent("a")
		refs := object.GetOwnerReferences()
		refs[0].UID = uid
		object.SetOwnerReferences(refs)
		object.SetAnnotations(map[string]string{"of": "the foreign object"})
		return object
	}
	free := of("")
	free.SetOwnerReferences(nil)
	for name, test := range map[string]struct {
		object  *unstructured.Unstructured
		adopt   bool
		pending bool // whether Reconcile waits for the deletion
	}{
		"of another parent":                   {of("another-uid"), true, false},
		"of another controller":               {sameParent("a"), false, false},
		"without a controller":                {free, false, false},
		"without a controller, to be adopted": {free, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			now := metav1.Now()
			test.object.SetDeletionTimestamp(&now)
			test.object.SetFinalizers([]string{"example.com/hold"})
			server := newReconciling(t, newWidget(), test.object)
			desired := Desired{Stages: [][]Child{{{Object: newConfigMap("a", "mine"), Adopt: test.adopt}}}}
			result, err := server.reconciler.Reconcile(t.Context(), first, server.parent, desired)
			children := result.Existing()
			if len(children) > 0 {
				t.Errorf("returned %v", children)
			}
			var pending *pendingError
			if errors.As(err, &pending) != test.pending || !test.pending && !errors.Is(err, ErrNotOwned) {
				t.Errorf("got %v", err)
			}
			if test.pending && pending.pending[0].Annotations["of"] != "" {
				t.Errorf("returned the annotations %v", pending.pending[0].Annotations)
			}
		})
	}
}

// Objects that are not children must not occupy memory, because anyone can set the label.
func TestReconcile_ReservesMemoryForListedChildren(t *testing.T) {
	forged := newConfigMap("forged", "x")
	forged.SetNamespace("default")
	forged.SetLabels(map[string]string{"platform.example.com/parent": "widget-uid"})
	for name, lister := range map[string]bool{"the lister": true, "the API server": false} {
		t.Run(name, func(t *testing.T) {
			server := newFakeServer(newWidget(), forged)
			var reserved []string
			var full error
			config := Config{
				Client: server, Kinds: []Kind{configMapKind},
				Reserve: func(_ context.Context, child *unstructured.Unstructured) error {
					reserved = append(reserved, child.GetName())
					return full
				},
			}
			cached := &fakeserver.Lister{Found: []*unstructured.Unstructured{forged}}
			if lister {
				config.Cache = &listing{lister: cached}
			}
			reconciler, parent := newReconciler(t, config), newWidget()
			result, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(newConfigMap("a", "x")))
			children := result.Existing()
			cached.Found = append(cached.Found, children...)
			failUnlessRequeued(t, err)
			reserved, full = nil, errors.New("no memory")
			if _, err := reconciler.Reconcile(t.Context(), first, parent, Desired{}); !errors.Is(err, full) {
				t.Errorf("got %v", err)
			}
			if !slices.Equal(reserved, []string{"a"}) {
				t.Errorf("reserved memory for %q", reserved)
			}
			getConfigMap(t, server, "default", "a")
		})
	}
}
