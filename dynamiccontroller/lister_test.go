package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

func TestSecondaryLister_OwnedBy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, child := f.types[0], f.types[1]
		a, b := f.id(parent, "a"), f.id(parent, "b")
		f.put(parent, "a")
		f.put(child, "one", a)
		f.put(child, "two", b, a)
		stop := f.run()
		c := newCalls(succeed)
		full := []dynamiccontroller.OwnsOption{
			dynamiccontroller.WithCache(dynamiccontroller.CacheFull), dynamiccontroller.EveryOwner(),
		}
		f.serve(parent, c.handle, dynamiccontroller.Owns(child), dynamiccontroller.Owns(child, full...))
		list := func(opts ...dynamiccontroller.OwnsOption) (names []string) {
			lister := must(f.controller.SecondaryLister(parent, dynamiccontroller.Owns(child, opts...).Key()))
			for _, owned := range must(lister.OwnedBy(f.uid(parent, "a"))) {
				_, whole := owned.Object().(*unstructured.Unstructured)
				if whole != (len(opts) > 0) {
					t.Errorf("got an object of type %T", owned.Object())
				}
				names = append(names, owned.GetName())
			}
			slices.Sort(names)
			return names
		}
		if got := list(); !slices.Equal(got, []string{"one"}) {
			t.Errorf("OwnedBy returned %v, want only the child that a controls", got)
		}
		if got := list(full...); !slices.Equal(got, []string{"one", "two"}) {
			t.Errorf("OwnedBy with EveryOwner returned %v, want both children", got)
		}
		f.put(child, "one", b)
		f.put(child, "three", a)
		if got := list(); !slices.Equal(got, []string{"three"}) {
			t.Errorf("after the change, OwnedBy returned %v, want only the new child", got)
		}
		f.delete(child, "three")
		if got := list(); len(got) != 0 {
			t.Errorf("after the deletion, OwnedBy returned %v, want no children", got)
		}
		lister := must(f.controller.SecondaryLister(parent, dynamiccontroller.Owns(child).Key()))
		object := must(lister.ByNamespace("default").Get("one"))
		if m, ok := object.(*metav1.PartialObjectMetadata); !ok || m.UID != f.uid(child, "one") {
			t.Errorf("Get returned %+v, want metadata with the child's UID", object)
		}
		absent := dynamiccontroller.Owns(f.types[2]).Key()
		if _, err := f.controller.SecondaryLister(parent, absent); !errors.Is(err, dynamiccontroller.ErrNotServed) {
			t.Errorf("for a type that is not watched, SecondaryLister returned %v, want ErrNotServed", err)
		}
		stop()
	})
}

// Each registration reads objects in its own cache mode, even if it shares a watch that stores more.
func TestS6_ListersUseTheirOwnCacheMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		f.put(gvr, "w")
		stop := f.run()
		f.serve(f.types[1], succeed, dynamiccontroller.Owns(gvr, dynamiccontroller.WithCache(dynamiccontroller.CacheFull)))
		var seen any
		predicate := func(_ context.Context, _, now dynamiccontroller.Object) bool {
			seen = now.Object()
			return true
		}
		f.serve(gvr, succeed, dynamiccontroller.WithCache(dynamiccontroller.CacheMetadata),
			dynamiccontroller.WithPredicate(predicate))
		f.put(gvr, "w")
		if _, ok := seen.(*metav1.PartialObjectMetadata); !ok {
			t.Errorf("the predicate was called with a %T", seen)
		}
		lister := must(f.controller.Lister(gvr))
		if object, ok := must(lister.Get("default/w")).(*metav1.PartialObjectMetadata); !ok || object.UID != f.uid(gvr, "w") {
			t.Errorf("Get returned %+v, want metadata with the object's UID", object)
		}
		all := must(lister.List(labels.Everything()))
		if object, ok := all[0].(*metav1.PartialObjectMetadata); !ok || object.Name != "w" {
			t.Errorf("List returned %+v, want metadata with the object's name", object)
		}
		f.serve(gvr, succeed, dynamiccontroller.WithCache(dynamiccontroller.CacheKeys))
		if _, err := f.controller.Lister(gvr); err == nil || !strings.Contains(err.Error(), "CacheKeys") {
			t.Errorf("Lister returned %v, want an error that names CacheKeys", err)
		}
		if _, err := lister.List(labels.Everything()); err == nil || !strings.Contains(err.Error(), "CacheKeys") {
			t.Errorf("List returned %v, want an error that names CacheKeys", err)
		}
		stop()
	})
}

// typed is a Go type for the objects in a fixture.
type typed struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Size int `json:"size"`
	} `json:"spec"`
}

func TestLister_DecodesObjectsThatTheCallerOwns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		f.put(gvr, "a")
		f.put(gvr, "b")
		stop := f.run()
		f.serve(gvr, succeed)
		lister := must(f.controller.Lister(gvr))
		first := must(lister.Get("default/a")).(*unstructured.Unstructured)
		first.SetName("changed")
		if again := must(lister.Get("default/a")).(*unstructured.Unstructured); again.GetName() != "a" {
			t.Errorf("a change to a returned object has changed the cache: %v", again)
		}
		if status := f.status(gvr); status.Bytes <= 0 || status.Objects != 2 {
			t.Errorf("the status reports %d bytes for %d objects", status.Bytes, status.Objects)
		}
		stop()
	})
}

// namesOf returns the sorted names of the objects.
func namesOf[T any](objects iter.Seq2[T, error]) (names []string) {
	for object, err := range objects {
		names = append(names, must(meta.Accessor(must(object, err))).GetName())
	}
	slices.Sort(names)
	return names
}

// decoded returns an iterator that decodes the objects.
func decoded(objects []dynamiccontroller.Object) iter.Seq2[runtime.Object, error] {
	return func(yield func(runtime.Object, error) bool) {
		for _, object := range objects {
			if !yield(object.Object(), nil) {
				return
			}
		}
	}
}

func TestLister_IteratesOverMatchingObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		for _, name := range []string{"a", "b", "c"} {
			f.put(gvr, name)
		}
		label := func(obj any) (any, error) {
			m := obj.(metav1.Object)
			m.SetLabels(map[string]string{"name": m.GetName()})
			return obj, nil
		}
		stop := f.run()
		f.serve(gvr, succeed, dynamiccontroller.WithTransform(label))
		lister := must(f.controller.Lister(gvr))
		typedLister := must(dynamiccontroller.NewTypedLister[typed](lister))
		for name, test := range map[string]struct {
			namespace, selector string
			want                []string
		}{
			"all objects":            {"", "", []string{"a", "b", "c"}},
			"a namespace":            {"default", "", []string{"a", "b", "c"}},
			"another namespace":      {"other", "", nil},
			"a selector":             {"default", "name in (a,c)", []string{"a", "c"}},
			"a selector for nothing": {"", "name=d", nil},
		} {
			selector := must(labels.Parse(test.selector))
			untyped, typed := namesOf(lister.All(test.namespace, selector)), namesOf(typedLister.All(test.namespace, selector))
			if !slices.Equal(untyped, test.want) || !slices.Equal(typed, test.want) {
				t.Errorf("%s: the untyped All returned %v, the typed All %v, want %v", name, untyped, typed, test.want)
			}
			if listed := must(typedLister.List(test.namespace, selector)); len(listed) != len(test.want) {
				t.Errorf("%s: List returned %v, want %v", name, listed, test.want)
			}
			undecoded := namesOf(decoded(must(lister.Objects(test.namespace, selector))))
			if !slices.Equal(undecoded, test.want) {
				t.Errorf("%s: Objects returned %v, want %v", name, undecoded, test.want)
			}
		}
		for _, err := range lister.All("", nil) {
			if err != nil {
				t.Error(err)
			}
			break
		}
		stop()
		for _, err := range lister.All("", nil) {
			if !errors.Is(err, dynamiccontroller.ErrNotSynced) {
				t.Errorf("after the run ended, All returned %v, want ErrNotSynced", err)
			}
		}
	})
}

func TestLister_ReadsOneNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		for name, namespace := range map[string]string{"a": "default", "b": "other", "c": ""} {
			object := &unstructured.Unstructured{}
			object.SetGroupVersionKind(gvr.GroupVersion().WithKind("Type"))
			object.SetNamespace(namespace)
			object.SetName(name)
			object.SetResourceVersion("1")
			_ = must(f.client.Resource(gvr).Namespace(namespace).Create(t.Context(), object, metav1.CreateOptions{}))
		}
		stop := f.run()
		f.serve(gvr, succeed)
		lister := must(f.controller.Lister(gvr))
		for namespace, want := range map[string][]string{"default": {"a"}, "other": {"b"}, "": {"a", "b", "c"}} {
			var names []string
			for _, object := range must(lister.ByNamespace(namespace).List(labels.Everything())) {
				names = append(names, object.(metav1.Object).GetName())
			}
			if slices.Sort(names); !slices.Equal(names, want) {
				t.Errorf("namespace %q: got %v, want %v", namespace, names, want)
			}
		}
		for name, namespace := range map[string]string{"a": "default", "b": "other", "c": ""} {
			object := must(lister.ByNamespace(namespace).Get(name)).(metav1.Object)
			if object.GetName() != name || object.GetNamespace() != namespace {
				t.Errorf("Get returned %v, want the object %s in the namespace %q", object, name, namespace)
			}
		}
		_, err := lister.ByNamespace("default").Get("b")
		if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `"b"`) {
			t.Errorf("for an object of another namespace, Get returned %v, want NotFound with its name", err)
		}
		stop()
	})
}

// While a watch with CacheKeys is being replaced by one with CacheFull, there are no cached objects to list.
func TestLister_HasNotSyncedBeforeObjectsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		stop := f.run()
		f.serve(gvr, succeed, dynamiccontroller.WithCache(dynamiccontroller.CacheKeys))
		f.failLists(gvr, errors.New("on purpose"))
		f.serve(gvr, succeed)
		lister := must(f.controller.Lister(gvr))
		if _, err := lister.List(labels.Everything()); !errors.Is(err, dynamiccontroller.ErrNotSynced) {
			t.Errorf("List returned %v, want ErrNotSynced", err)
		}
		stop()
	})
}

// A typed lister decodes only the fields that its cache mode includes, even if its shared watch keeps more.
func TestS6_TypedListersUseTheirOwnCacheMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"size": int64(3)}}}
		object.SetGroupVersionKind(gvr.GroupVersion().WithKind("Type"))
		object.SetNamespace("default")
		object.SetName("a")
		object.SetResourceVersion("1")
		object.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "test"}})
		_ = must(f.client.Resource(gvr).Namespace("default").Create(t.Context(), object, metav1.CreateOptions{}))
		stop := f.run()
		complete := []dynamiccontroller.OwnsOption{
			dynamiccontroller.WithCache(dynamiccontroller.CacheFull), dynamiccontroller.WithManagedFields(),
		}
		f.serve(f.types[1], succeed, dynamiccontroller.Owns(gvr, complete...))
		full, metadata := dynamiccontroller.CacheFull, dynamiccontroller.CacheMetadata
		for _, mode := range []dynamiccontroller.CacheMode{full, metadata} {
			f.serve(gvr, succeed, dynamiccontroller.WithCache(mode))
			lister := must(dynamiccontroller.NewTypedLister[typed](must(f.controller.Lister(gvr))))
			objects := append(must(lister.List("", nil)), must(lister.Get("default/a")))
			for object, err := range lister.All("default", nil) {
				objects = append(objects, must(object, err))
			}
			for _, object := range objects {
				if object.Name != "a" || len(object.ManagedFields) > 0 || (object.Spec.Size == 3) != (mode == full) {
					t.Errorf("with the cache mode %d, the lister returned %+v", mode, object)
				}
			}
		}
		secondary := must(f.controller.SecondaryLister(f.types[1], dynamiccontroller.Owns(gvr).Key()))
		whole := must(must(dynamiccontroller.NewTypedLister[typed](secondary)).Get("default/a"))
		if len(whole.ManagedFields) != 1 || whole.Spec.Size != 3 {
			t.Errorf("with managed fields, the lister returned %+v", whole)
		}
		stop()
	})
}

func TestTypedLister_ReportsErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		f.put(gvr, "a")
		stop := f.run()
		owns := dynamiccontroller.Owns(gvr, dynamiccontroller.WithCache(dynamiccontroller.CacheFull))
		f.serve(f.types[1], succeed, owns)
		secondary := must(f.controller.SecondaryLister(f.types[1], owns.Key()))
		lister := must(dynamiccontroller.NewTypedLister[typed](secondary))
		if object := must(lister.Get("default/a")); object.Name != "a" || object.UID != f.uid(gvr, "a") {
			t.Errorf("Get returned %+v, want an object with the name and the UID of a", object)
		}
		if _, err := lister.Get("default/b"); !apierrors.IsNotFound(err) {
			t.Errorf("for an unknown object, Get returned %v, want NotFound", err)
		}
		type other struct {
			Metadata string `json:"metadata"`
		}
		_, err := must(dynamiccontroller.NewTypedLister[other](secondary)).Get("default/a")
		if err == nil || !strings.Contains(err.Error(), "default/a") {
			t.Errorf("for a field of a different type, Get returned %v, want an error with the object's key", err)
		}
		stop()
	})
}

// Functions with a typed lister can be tested with listers that do not belong to a controller.
func TestTypedLister_ReadsFromAnyLister(t *testing.T) {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{
		cache.NamespaceIndex: cache.MetaNamespaceIndexFunc,
	})
	whole := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"namespace": "default", "name": "a", "labels": map[string]any{"x": "y"}},
		"data":     map[string]any{"key": "a"},
	}}
	decoded := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "b"}, Data: map[string]string{"key": "b"},
	}
	for _, object := range []any{whole, decoded} {
		if err := indexer.Add(object); err != nil {
			t.Fatal(err)
		}
	}
	inMemory := cache.NewGenericLister(indexer, schema.GroupResource{Resource: "configmaps"})
	lister := must(dynamiccontroller.NewTypedLister[corev1.ConfigMap](inMemory))
	for key, want := range map[string]string{"default/a": "a", "other/b": "b"} {
		object := must(lister.Get(key))
		if object.Data["key"] != want {
			t.Errorf("Get(%q) returned %v, want the data %q", key, object, want)
		}
		object.Data["key"] = "modified"
		if again := must(lister.Get(key)); again.Data["key"] != want {
			t.Errorf("the objects that Get(%q) returns share memory", key)
		}
	}
	if _, err := lister.Get("default/b"); !apierrors.IsNotFound(err) {
		t.Errorf("for an unknown object, Get returned %v, want NotFound", err)
	}
	for _, test := range []struct {
		namespace string
		selector  labels.Selector
		want      []string
	}{
		{"", nil, []string{"a", "b"}},
		{"other", nil, []string{"b"}},
		{"", labels.SelectorFromSet(labels.Set{"x": "y"}), []string{"a"}},
		{"other", labels.SelectorFromSet(labels.Set{"x": "y"}), nil},
	} {
		if names := namesOf(lister.All(test.namespace, test.selector)); !slices.Equal(names, test.want) {
			t.Errorf("All(%q, %v) returned %v, want %v", test.namespace, test.selector, names, test.want)
		}
		if all := must(lister.List(test.namespace, test.selector)); len(all) != len(test.want) {
			t.Errorf("List(%q, %v) returned %v, want %v", test.namespace, test.selector, all, test.want)
		}
	}
}

func TestTypedLister_ReportsTheErrorsOfAnyLister(t *testing.T) {
	lister := must(dynamiccontroller.NewTypedLister[typed](failingLister{}))
	for key, want := range map[string]string{"fails": "on purpose", "nil": "the object is nil", "invalid": "size"} {
		if object, err := lister.Get(key); object != nil || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("Get(%q) returned %v and the error %v, want %q", key, object, err, want)
		}
	}
	if _, err := lister.List("", nil); !errors.Is(err, errOnPurpose) {
		t.Errorf("List returned %v", err)
	}
	for object, err := range lister.All("", nil) {
		if object != nil || !errors.Is(err, errOnPurpose) {
			t.Errorf("All returned %v, %v", object, err)
		}
	}
	if _, err := dynamiccontroller.NewTypedLister[typed](nil); err == nil {
		t.Error("NewTypedLister accepted nil")
	}
}

// failingLister returns errors and invalid objects.
type failingLister struct{ dynamiccontroller.Lister }

func (failingLister) List(labels.Selector) ([]runtime.Object, error) { return nil, errOnPurpose }

func (failingLister) Get(key string) (runtime.Object, error) {
	switch key {
	case "fails":
		return nil, errOnPurpose
	case "invalid":
		return &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"size": "large"}}}, nil
	default:
		return nil, nil // a mistake of a fake
	}
}

func TestTransform_IsCalledOncePerEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		f.put(gvr, "listed")
		calls := 0
		withoutVersion := func(obj any) (any, error) {
			calls++
			obj.(metav1.Object).SetResourceVersion("")
			return obj, nil
		}
		stop := f.run()
		f.serve(gvr, succeed, dynamiccontroller.WithTransform(withoutVersion))
		version := f.put(gvr, "added")
		synctest.Wait()
		if calls != 2 {
			t.Errorf("the transform was called %d times for two objects", calls)
		}
		object := must(must(f.controller.Lister(gvr)).Get("default/added"))
		if got := object.(metav1.Object).GetResourceVersion(); got != version {
			t.Errorf("version %q is stored, want %q", got, version)
		}
		stop()
	})
}
