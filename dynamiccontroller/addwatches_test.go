package dynamiccontroller_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A new watch reconciles the owners in its list. If AddWatches replaced a watch because of its transform, each
// reconcile would cause the next one.
func TestAddWatches_WithTransformCalledByTheHandlerConverges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		parent, child := w.types[0], w.types[1]
		w.put(parent, "a")
		w.put(child, "c", w.id(parent, "a"))
		stop := w.run()
		n := 0
		c := newCalls(func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			if n++; n > 100 {
				return nil // the test has failed: end the loop
			}
			transform := dynamiccontroller.WithTransform(annotating("a"))
			return w.controller.AddWatches(ctx, parent, dynamiccontroller.Owns(child, transform))
		})
		w.serve(parent, c.handle)
		time.Sleep(10 * time.Second)
		c.want(t, "10 s: the initial lists of the type and of its children", map[string]int{"a": 2})
		w.put(child, "c", w.id(parent, "a"))
		time.Sleep(10 * time.Second)
		c.want(t, "after a change", named("a"))
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestAddWatches_KeepsTheTransformOfAWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, child := w.types[0], w.types[1]
		w.put(child, "c")
		stop := w.run()
		c := newCalls(succeed)
		w.serve(parent, c.handle)
		seen := ""
		watch := func(name string, opts ...dynamiccontroller.WatchesOption) dynamiccontroller.Watch {
			return dynamiccontroller.Watches(child, func(context.Context, dynamiccontroller.Object) []string {
				seen = name
				return nil
			}, opts...)
		}
		a, b := dynamiccontroller.WithTransform(annotating("a")), dynamiccontroller.WithTransform(annotating("b"))
		key := watch("").Key()
		add := func(watch dynamiccontroller.Watch, wantLetters string, wantLists int) {
			t.Helper()
			w.client.ClearActions()
			if err := w.controller.AddWatches(context.Background(), parent, watch); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			object := must(must(w.controller.SecondaryLister(parent, key)).Get("default/c")).(metav1.Object)
			if got := object.GetAnnotations()["letters"]; got != wantLetters {
				t.Errorf("the transforms left %q, want %q", got, wantLetters)
			}
			if lists := len(w.lists(child)); lists != wantLists {
				t.Errorf("%d different lists, want %d", lists, wantLists)
			}
		}
		add(watch("none"), "", 1)
		add(watch("a", a), "a", 1)
		add(watch("b", b), "a", 0)
		w.put(child, "c")
		if seen != "b" {
			t.Errorf("the MapFunc of %q was called, want that of the last AddWatches", seen)
		}
		add(watch("none again"), "a", 0)
		add(watch("whole objects", b, dynamiccontroller.WithCache(dynamiccontroller.CacheFull)), "b", 1)
		if err := w.controller.RemoveWatches(context.Background(), parent, key); err != nil {
			t.Fatal(err)
		}
		add(watch("a", a), "a", 1)
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestAddWatches_ReplacesThePredicate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, child := w.types[0], w.types[1]
		w.put(parent, "a")
		stop := w.run()
		c := newCalls(succeed)
		w.serve(parent, c.handle)
		c.take()
		for _, accepts := range []bool{true, false, true} {
			predicate := func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool { return accepts }
			watch := dynamiccontroller.Owns(child,
				dynamiccontroller.WithTransform(annotating("a")), dynamiccontroller.WithPredicate(predicate))
			if err := w.controller.AddWatches(context.Background(), parent, watch); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			w.put(child, "c", w.id(parent, "a"))
			if accepts {
				c.want(t, "accepted", named("a"))
			} else {
				c.want(t, "rejected", named())
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// Handlers call AddWatches and RemoveWatches in every reconcile.
func TestAddWatchesAndRemoveWatches_AreCheapWhenNothingChanges(t *testing.T) {
	w := newWorld(t, 3, dynamiccontroller.Config{ResyncPeriod: -1})
	parent := w.types[0]
	owned := dynamiccontroller.Owns(w.types[1], dynamiccontroller.WithTransform(annotating("a")))
	mapped := dynamiccontroller.Watches(w.types[2], func(context.Context, dynamiccontroller.Object) []string { return nil })
	if err := w.controller.StartServingGVK(context.Background(), parent, succeed, owned, mapped); err != nil {
		t.Fatal(err)
	}
	absent := dynamiccontroller.Owns(w.types[2]).Key()
	ctx := context.Background()
	call := func() {
		if err := w.controller.AddWatches(ctx, parent, owned, mapped); err != nil {
			t.Error(err)
		}
		if err := w.controller.RemoveWatches(ctx, parent, absent); err != nil {
			t.Error(err)
		}
	}
	if n := testing.AllocsPerRun(100, call); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
	unlock := w.controller.HoldReadLock()
	defer unlock()
	called := make(chan struct{})
	go func() {
		defer close(called)
		call()
	}()
	select {
	case <-called:
	case <-time.After(10 * time.Second):
		t.Error("AddWatches or RemoveWatches waits for the write lock")
	}
}

func TestOptions_AreSeparateForServingOwningAndWatching(t *testing.T) {
	everywhere := []any{
		dynamiccontroller.WithNamespace(""), dynamiccontroller.WithCache(0),
		dynamiccontroller.WithLabelSelector(nil), dynamiccontroller.WithFieldSelector(nil),
		dynamiccontroller.WithTransform(nil), dynamiccontroller.WithPredicate(nil),
	}
	onlyServing := []any{
		dynamiccontroller.WithConcurrency(1), dynamiccontroller.WithWeight(1), dynamiccontroller.WithReconcileTimeout(1),
		dynamiccontroller.WithRateLimiter(nil), dynamiccontroller.Watch{},
	}
	onlyOwning := []any{dynamiccontroller.EveryOwner()}
	for _, test := range []struct {
		options              []any
		serve, owns, watches bool
	}{
		{everywhere, true, true, true}, {onlyServing, true, false, false}, {onlyOwning, false, true, false},
	} {
		for _, option := range test.options {
			_, serve := option.(dynamiccontroller.ServeOption)
			_, owns := option.(dynamiccontroller.OwnsOption)
			_, watches := option.(dynamiccontroller.WatchesOption)
			if serve != test.serve || owns != test.owns || watches != test.watches {
				t.Errorf("%T is an option of serving: %t, owning: %t, watching: %t", option, serve, owns, watches)
			}
		}
	}
}

func TestWatchKey(t *testing.T) {
	w := newWorld(t, 1, dynamiccontroller.Config{})
	gvr := w.types[0]
	mapFunc := func(context.Context, dynamiccontroller.Object) []string { return nil }
	ab := dynamiccontroller.WithFieldSelector(fields.AndSelectors(
		fields.OneTermEqualSelector("metadata.namespace", "a"), fields.OneTermEqualSelector("metadata.name", "b")))
	keys := map[dynamiccontroller.WatchKey]dynamiccontroller.WatchKey{
		dynamiccontroller.Owns(gvr).Key():                                        {GVR: gvr, Owned: true},
		dynamiccontroller.Owns(gvr, dynamiccontroller.EveryOwner()).Key():        {GVR: gvr, Owned: true, EveryOwner: true},
		dynamiccontroller.Watches(gvr, mapFunc).Key():                            {GVR: gvr},
		dynamiccontroller.Owns(gvr, dynamiccontroller.WithNamespace("ns")).Key(): {GVR: gvr, Owned: true, Namespace: "ns"},
		dynamiccontroller.Owns(gvr, ab).Key(): {
			GVR: gvr, Owned: true, FieldSelector: "metadata.name=b,metadata.namespace=a",
		},
		dynamiccontroller.Owns(gvr, dynamiccontroller.WithLabelSelector(labels.Nothing())).Key(): {
			GVR: gvr, Owned: true, LabelSelector: "!nothing,nothing",
		},
		// The cache mode and functions are not part of the key.
		dynamiccontroller.Watches(gvr, nil,
			dynamiccontroller.WithCache(dynamiccontroller.CacheFull), dynamiccontroller.WithNamespace("x"),
			dynamiccontroller.WithTransform(annotating("a"))).Key(): {GVR: gvr, Namespace: "x"},
		dynamiccontroller.Watch{}.Key(): {},
	}
	for got, want := range keys {
		if got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

func TestStatus_ListsWatchesByKey(t *testing.T) {
	w := newWorld(t, 3, dynamiccontroller.Config{})
	watches := []dynamiccontroller.Watch{
		dynamiccontroller.Owns(w.types[1]), dynamiccontroller.Owns(w.types[1], dynamiccontroller.EveryOwner()),
		dynamiccontroller.Owns(w.types[1], dynamiccontroller.WithNamespace("ns")), dynamiccontroller.Owns(w.types[2]),
		dynamiccontroller.Watches(w.types[2], func(context.Context, dynamiccontroller.Object) []string { return nil }),
	}
	var options []dynamiccontroller.ServeOption
	for _, i := range []int{3, 1, 4, 0, 2} {
		options = append(options, watches[i])
	}
	if err := w.controller.StartServingGVK(context.Background(), w.types[0], succeed, options...); err != nil {
		t.Fatal(err)
	}
	secondaries := w.status(w.types[0]).Secondaries
	if len(secondaries) != len(watches) {
		t.Fatalf("%d watches, want %d", len(secondaries), len(watches))
	}
	for i, s := range secondaries {
		if s.WatchKey != watches[i].Key() || s.State != dynamiccontroller.TypeStopped || s.Replacement != nil {
			t.Errorf("%d: %+v", i, s)
		}
	}
}
