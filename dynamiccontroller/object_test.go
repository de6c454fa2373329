package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// metadataOf returns those metadata fields that both an Object and an object from a lister provide.
func metadataOf(m interface {
	GetNamespace() string
	GetName() string
	GetUID() types.UID
	GetResourceVersion() string
	GetGeneration() int64
	GetCreationTimestamp() metav1.Time
	GetDeletionTimestamp() *metav1.Time
	GetLabels() map[string]string
	GetAnnotations() map[string]string
	GetFinalizers() []string
	GetOwnerReferences() []metav1.OwnerReference
}) []any {
	return []any{
		m.GetNamespace(), m.GetName(), m.GetUID(), m.GetResourceVersion(), m.GetGeneration(), m.GetCreationTimestamp(),
		m.GetDeletionTimestamp(), m.GetLabels(), m.GetAnnotations(), m.GetFinalizers(), m.GetOwnerReferences(),
	}
}

// An Object can be passed to functions that need a metav1.Object. They cannot change the cache.
func TestObject_IsAReadOnlyMetadataObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		stop := f.run()
		f.serve(f.types[0], succeed)
		f.put(f.types[0], "child", f.id(f.types[1], "owner"))
		all, err := must(f.controller.Lister(f.types[0])).Objects("", nil)
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		if owner := metav1.GetControllerOf(all[0]); owner == nil || owner.Name != "owner" {
			t.Errorf("the controller is %v", owner)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("a setter changed the cached object")
				}
			}()
			all[0].SetName("changed")
		}()
		stop()
	})
}

// kinds is a mapper that knows the kind of one type, and panics for the type "panics".
type kinds struct {
	meta.RESTMapper
	known schema.GroupVersionResource
}

func (k kinds) KindFor(gvr schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	if gvr != k.known {
		panic("on purpose")
	}
	return gvr.GroupVersion().WithKind("Known"), nil
}

func TestWithRESTMapper_MetadataHasTheKindOfItsType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mapper := &kinds{}
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1},
			dynamiccontroller.WithRESTMapper(mapper))
		mapper.known = f.types[0]
		stop := f.run()
		for gvr, want := range map[schema.GroupVersionResource]string{
			f.types[0]: "Known", f.types[1]: "PartialObjectMetadata",
		} {
			f.put(gvr, "w")
			var predicate string
			f.serve(gvr, succeed, dynamiccontroller.WithCache(dynamiccontroller.CacheMetadata),
				dynamiccontroller.WithPredicate(func(_ context.Context, _, o dynamiccontroller.Object) bool {
					predicate = o.Object().GetObjectKind().GroupVersionKind().Kind
					return true
				}))
			f.put(gvr, "w")
			object, err := must(f.controller.Lister(gvr)).Get("default/w")
			if err != nil {
				t.Fatal(err)
			}
			if got := object.GetObjectKind().GroupVersionKind().Kind; got != want || predicate != want {
				t.Errorf("got the kinds %q and %q, want %q", got, predicate, want)
			}
		}
		stop()
	})
}

// Object.Object returns an object in the same form as the subscription's lister, even if a shared watch stores more.
func TestObject_EqualsTheListersObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		child := f.types[2]
		stop := f.run()
		var mu sync.Mutex
		seen := map[string]runtime.Object{}
		watch := func(name string, mode dynamiccontroller.CacheMode) dynamiccontroller.Watch {
			return dynamiccontroller.Watches(child, func(_ context.Context, object dynamiccontroller.Object) []string {
				mu.Lock()
				defer mu.Unlock()
				seen[name] = object.Object()
				if diff := cmp.Diff(metadataOf(seen[name].(metav1.Object)), metadataOf(object)); diff != "" {
					t.Errorf("%s: the metadata differ: %s", name, diff)
				}
				return nil
			}, dynamiccontroller.WithCache(mode))
		}
		full, metadata := watch("full", dynamiccontroller.CacheFull), watch("metadata", dynamiccontroller.CacheMetadata)
		f.serve(f.types[0], succeed, full)
		f.serve(f.types[1], succeed, metadata)
		object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"a": "b"}}}
		object.SetGroupVersionKind(child.GroupVersion().WithKind("Type"))
		object.SetNamespace("default")
		object.SetName("c")
		object.SetUID("uid")
		object.SetResourceVersion("7")
		object.SetGeneration(3)
		now := metav1.NewTime(time.Now().Truncate(time.Second))
		object.SetCreationTimestamp(now)
		object.SetDeletionTimestamp(&now)
		object.SetLabels(map[string]string{"l": "1"})
		object.SetAnnotations(map[string]string{"a": "1"})
		object.SetFinalizers([]string{"f"})
		object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Owner", Name: "o", UID: "u"}})
		children := f.client.Resource(child).Namespace("default")
		if _, err := children.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for i, watch := range []dynamiccontroller.Watch{full, metadata} {
			lister := must(f.controller.SecondaryLister(f.types[i], watch.Key()))
			if diff := cmp.Diff(must(lister.Get("default/c")), seen[[]string{"full", "metadata"}[i]]); diff != "" {
				t.Errorf("the objects differ: %s", diff)
			}
		}
		if _, ok := seen["full"].(*unstructured.Unstructured); !ok {
			t.Errorf("with CacheFull, the object is a %T, want *unstructured.Unstructured", seen["full"])
		}
		if _, ok := seen["metadata"].(*metav1.PartialObjectMetadata); !ok {
			t.Errorf("with CacheMetadata, the object is a %T, want *metav1.PartialObjectMetadata", seen["metadata"])
		}
		stop()
	})
}

func TestPredicate_ReceivesNilForNewAndDeletedObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, child := f.types[0], f.types[1]
		stop := f.run()
		var got []string
		note := func(what string) dynamiccontroller.CommonOption {
			return dynamiccontroller.WithPredicate(func(_ context.Context, old, updated dynamiccontroller.Object) bool {
				version := func(o dynamiccontroller.Object) string {
					if o == nil {
						return "nil"
					}
					return o.GetResourceVersion()
				}
				got = append(got, fmt.Sprintf("%s %s %s", what, version(old), version(updated)))
				return true
			})
		}
		f.serve(parent, succeed, note("primary"), dynamiccontroller.Owns(child, note("secondary")))
		f.put(parent, "w")
		f.put(parent, "w")
		f.delete(parent, "w")
		f.put(child, "w")
		f.put(child, "w")
		f.delete(child, "w")
		want := []string{
			"primary nil 2", "primary 2 3", "primary 3 nil", "secondary nil 2", "secondary 2 3", "secondary 3 nil",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		stop()
	})
}

// Predicates and MapFuncs can read the lister of their own watch, which already shows the change, and the lister of the
// served type.
func TestMapFuncsAndPredicates_CanReadListers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, child := f.types[0], f.types[1]
		f.put(parent, "a")
		f.put(parent, "b")
		f.put(child, "early")
		stop := f.run()
		defer stop()
		c := newCalls(succeed)
		f.serve(parent, c.handle)
		c.take()

		key := dynamiccontroller.WatchKey{GVR: child}
		check := func(caller string, object dynamiccontroller.Object) {
			lister := must(f.controller.SecondaryLister(parent, key))
			listed, err := lister.ByNamespace(object.GetNamespace()).Get(object.GetName())
			if err != nil || listed.(metav1.Object).GetResourceVersion() != object.GetResourceVersion() {
				t.Errorf("when called by a %s, the lister of its own watch returned %v, %v", caller, listed, err)
			}
			if _, err := lister.OwnedBy("unknown"); err != nil {
				t.Errorf("when called by a %s, OwnedBy returned the error %v", caller, err)
			}
		}
		parents := func(caller string) (names []string) {
			objects, err := must(f.controller.Lister(parent)).List(labels.Everything())
			if err != nil {
				t.Errorf("when called by a %s, the lister of the served type returned the error %v", caller, err)
			}
			for _, object := range objects {
				m := object.(metav1.Object)
				names = append(names, m.GetNamespace()+"/"+m.GetName())
			}
			return names
		}
		predicates := 0
		watch := dynamiccontroller.Watches(child, func(_ context.Context, object dynamiccontroller.Object) []string {
			check("MapFunc", object)
			return parents("MapFunc")
		}, dynamiccontroller.WithPredicate(func(_ context.Context, old, updated dynamiccontroller.Object) bool {
			predicates++
			check("predicate", updated)
			return old == nil && len(parents("predicate")) == 2
		}))
		if err := f.controller.AddWatches(context.Background(), parent, watch); err != nil {
			t.Fatal(err)
		}
		c.want(t, "the initial list maps to all parents", named("a", "b"))
		f.put(child, "late")
		c.want(t, "a new object", named("a", "b"))
		if predicates != 1 {
			t.Errorf("%d calls to the predicate, want 1", predicates)
		}

		// The predicate of the served type can read these listers too.
		predicate := func(_ context.Context, _, updated dynamiccontroller.Object) bool {
			_, err := must(f.controller.SecondaryLister(parent, key)).List(labels.Everything())
			listed, getErr := must(f.controller.Lister(parent)).Get("default/c")
			if err != nil || getErr != nil || listed.(metav1.Object).GetUID() != updated.GetUID() {
				t.Errorf("when called by the predicate of the served type, the listers returned the errors %v, %v", err, getErr)
			}
			predicates++
			return true
		}
		f.serve(parent, c.handle, watch, dynamiccontroller.WithPredicate(predicate))
		c.take()
		f.put(parent, "c")
		c.want(t, "a new parent", named("c"))
		if predicates != 2 {
			t.Errorf("%d calls to predicates, want 2", predicates)
		}
	})
}

// A MapFunc or predicate that waits until its context is cancelled does not delay the end of a run.
func TestMapFuncsAndPredicates_ContextIsCancelledWhenTheRunEnds(t *testing.T) {
	for _, name := range []string{"MapFunc, initial list", "MapFunc, event", "predicate", "predicate of a watch"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
				parent, child := f.types[0], f.types[1]
				var causes []error
				began := time.Time{}
				wait := func(ctx context.Context) {
					<-ctx.Done()
					if began.IsZero() {
						t.Error("the context was cancelled before the run ended")
					}
					causes = append(causes, context.Cause(ctx))
				}
				waiting := dynamiccontroller.WithPredicate(func(ctx context.Context, _, _ dynamiccontroller.Object) bool {
					wait(ctx)
					return true
				})
				mapped := dynamiccontroller.Watches(child, func(ctx context.Context, _ dynamiccontroller.Object) []string {
					wait(ctx)
					return nil
				})
				switch name {
				case "MapFunc, initial list":
					f.put(child, "c")
					f.serve(parent, succeed, mapped)
				case "MapFunc, event":
					f.serve(parent, succeed, mapped)
				case "predicate":
					f.serve(parent, succeed, waiting)
				default:
					f.serve(parent, succeed, dynamiccontroller.Owns(child, waiting))
				}
				stop := f.start()
				if name == "predicate" {
					f.put(parent, "w")
				} else {
					f.put(child, "c")
				}
				began = time.Now()
				if err := stop(); err != nil || time.Since(began) != 0 {
					t.Errorf("Run returned %v after %s", err, time.Since(began))
				}
				if len(causes) == 0 || !errors.Is(causes[0], dynamiccontroller.ErrRunEnded) {
					t.Errorf("the contexts were cancelled with the causes %v, want ErrRunEnded", causes)
				}
			})
		})
	}
}
