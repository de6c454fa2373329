package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// metadataOf returns everything that Object and a lister's object have in common.
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

// Object.Object returns the same as the lister of its own subscription, even if the shared watch stores more.
func TestObject_IsTheListersObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		child := w.types[2]
		stop := w.run()
		seen := map[string]runtime.Object{}
		watch := func(name string, mode dynamiccontroller.CacheMode) dynamiccontroller.Watch {
			return dynamiccontroller.Watches(child, func(_ context.Context, object dynamiccontroller.Object) []string {
				seen[name] = object.Object()
				if diff := cmp.Diff(metadataOf(seen[name].(metav1.Object)), metadataOf(object)); diff != "" {
					t.Errorf("%s: the metadata differ: %s", name, diff)
				}
				return nil
			}, dynamiccontroller.WithCache(mode))
		}
		full, metadata := watch("full", dynamiccontroller.CacheFull), watch("metadata", dynamiccontroller.CacheMetadata)
		w.serve(w.types[0], succeed, full)
		w.serve(w.types[1], succeed, metadata)
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
		children := w.client.Resource(child).Namespace("default")
		if _, err := children.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for i, watch := range []dynamiccontroller.Watch{full, metadata} {
			lister := must(w.controller.SecondaryLister(w.types[i], watch.Key()))
			if diff := cmp.Diff(must(lister.Get("default/c")), seen[[]string{"full", "metadata"}[i]]); diff != "" {
				t.Errorf("the objects differ: %s", diff)
			}
		}
		if _, ok := seen["full"].(*unstructured.Unstructured); !ok {
			t.Errorf("a %T with CacheFull", seen["full"])
		}
		if _, ok := seen["metadata"].(*metav1.PartialObjectMetadata); !ok {
			t.Errorf("a %T with CacheMetadata", seen["metadata"])
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestPredicate_GetsNilForTheStateThatDoesNotExist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, child := w.types[0], w.types[1]
		stop := w.run()
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
		w.serve(parent, succeed, note("primary"), dynamiccontroller.Owns(child, note("secondary")))
		w.put(parent, "w")
		w.put(parent, "w")
		w.delete(parent, "w")
		w.put(child, "w")
		w.put(child, "w")
		w.delete(child, "w")
		want := []string{
			"primary nil 2", "primary 2 3", "primary 3 nil", "secondary nil 2", "secondary 2 3", "secondary 3 nil",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// The listers are those of the own watch, which already shows the change, and of the served type.
func TestMapFuncsAndPredicates_CanReadListers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, child := w.types[0], w.types[1]
		for _, name := range []string{"a", "b"} {
			w.put(parent, name)
		}
		w.put(child, "early")
		stop := w.run()
		defer func() {
			if err := stop(); err != nil {
				t.Error(err)
			}
		}()
		c := newCalls(succeed)
		w.serve(parent, c.handle)
		c.take()

		key := dynamiccontroller.WatchKey{GVR: child}
		check := func(caller string, object dynamiccontroller.Object) {
			lister := must(w.controller.SecondaryLister(parent, key))
			listed, err := lister.ByNamespace(object.GetNamespace()).Get(object.GetName())
			if err != nil || listed.(metav1.Object).GetResourceVersion() != object.GetResourceVersion() {
				t.Errorf("the lister of its own watch returned %v, %v to a %s", listed, err, caller)
			}
			if _, err := lister.OwnedBy("unknown"); err != nil {
				t.Errorf("OwnedBy returned %v to a %s", err, caller)
			}
		}
		parents := func(caller string) (names []string) {
			objects, err := must(w.controller.Lister(parent)).List(labels.Everything())
			if err != nil {
				t.Errorf("the lister of the served type returned %v to a %s", err, caller)
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
		if err := w.controller.AddWatches(context.Background(), parent, watch); err != nil {
			t.Fatal(err)
		}
		c.want(t, "the initial list maps to all parents", named("a", "b"))
		w.put(child, "late")
		c.want(t, "a new object", named("a", "b"))
		if predicates != 1 {
			t.Errorf("%d calls of the predicate, want 1", predicates)
		}

		// The predicate of the served type reads the same listers.
		predicate := func(_ context.Context, _, updated dynamiccontroller.Object) bool {
			_, err := must(w.controller.SecondaryLister(parent, key)).List(labels.Everything())
			listed, getErr := must(w.controller.Lister(parent)).Get("default/c")
			if err != nil || getErr != nil || listed.(metav1.Object).GetUID() != updated.GetUID() {
				t.Errorf("listers returned %v, %v to the predicate of the served type", err, getErr)
			}
			predicates++
			return true
		}
		w.serve(parent, c.handle, watch, dynamiccontroller.WithPredicate(predicate))
		c.take()
		w.put(parent, "c")
		c.want(t, "a new parent", named("c"))
		if predicates != 2 {
			t.Errorf("%d calls of predicates, want 2", predicates)
		}
	})
}

// A MapFunc or predicate that waits for its context does not delay the end of a run.
func TestMapFuncsAndPredicates_ContextIsCancelledWhenTheRunEnds(t *testing.T) {
	for _, name := range []string{"MapFunc, initial list", "MapFunc, event", "predicate", "predicate of a watch"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
				parent, child := w.types[0], w.types[1]
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
					w.put(child, "c")
					w.serve(parent, succeed, mapped)
				case "MapFunc, event":
					w.serve(parent, succeed, mapped)
				case "predicate":
					w.serve(parent, succeed, waiting)
				default:
					w.serve(parent, succeed, dynamiccontroller.Owns(child, waiting))
				}
				stop := w.run()
				if name == "predicate" {
					w.put(parent, "w")
				} else {
					w.put(child, "c")
				}
				began = time.Now()
				if err := stop(); err != nil || time.Since(began) != 0 {
					t.Errorf("Run returned %v after %s", err, time.Since(began))
				}
				if len(causes) == 0 || !errors.Is(causes[0], dynamiccontroller.ErrRunEnded) {
					t.Errorf("the contexts ended with %v", causes)
				}
			})
		})
	}
}
