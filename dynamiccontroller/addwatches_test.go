package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A new watch causes reconciles of the owners of the objects in its list. If AddWatches replaced a watch because of its
// transform, each reconcile would cause the next one.
func TestAddWatches_WithATransformCausesNoReconcileLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		parent, child := f.types[0], f.types[1]
		f.put(parent, "a")
		f.put(child, "c", f.id(parent, "a"))
		stop := f.run()
		n := 0
		c := newCalls(func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			if n++; n > 100 {
				return nil // the test has failed: end the loop
			}
			transform := dynamiccontroller.WithTransform(annotating("a"))
			return f.controller.AddWatches(ctx, parent, dynamiccontroller.Owns(child, transform))
		})
		f.serve(parent, c.handle)
		time.Sleep(10 * time.Second)
		c.want(t, "one reconcile for the type's initial list, and one for the children's", map[string]int{"a": 2})
		f.put(child, "c", f.id(parent, "a"))
		time.Sleep(10 * time.Second)
		c.want(t, "after a change", named("a"))
		stop()
	})
}

func TestAddWatches_KeepsTheTransformOfAWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, child := f.types[0], f.types[1]
		f.put(child, "c")
		stop := f.run()
		c := newCalls(succeed)
		f.serve(parent, c.handle)
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
			f.client.ClearActions()
			if err := f.controller.AddWatches(context.Background(), parent, watch); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			object := must(must(f.controller.SecondaryLister(parent, key)).Get("default/c")).(metav1.Object)
			if got := object.GetAnnotations()["letters"]; got != wantLetters {
				t.Errorf("the transforms left %q, want %q", got, wantLetters)
			}
			if lists := len(f.lists(child)); lists != wantLists {
				t.Errorf("the children were listed with %d different selectors, want %d", lists, wantLists)
			}
		}
		add(watch("none"), "", 1)
		add(watch("a", a), "a", 1)
		add(watch("b", b), "a", 0)
		f.put(child, "c")
		if seen != "b" {
			t.Errorf("the MapFunc with the name %q was called, want the one from the last call to AddWatches", seen)
		}
		add(watch("none again"), "a", 0)
		add(watch("b again", b), "a", 0)
		add(watch("whole objects", b, dynamiccontroller.WithCache(dynamiccontroller.CacheFull)), "b", 1)
		if err := f.controller.RemoveWatches(context.Background(), parent, key); err != nil {
			t.Fatal(err)
		}
		add(watch("a", a), "a", 1)
		stop()
	})
}

// StartServingGVK changes the transform of a watch, even if AddWatches was called without one in the meantime.
func TestS2_SwapRemovesTheTransformOfAWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, child := f.types[0], f.types[1]
		f.put(child, "c")
		stop := f.run()
		owns := dynamiccontroller.Owns(child)
		f.serve(parent, succeed, dynamiccontroller.Owns(child, dynamiccontroller.WithTransform(annotating("a"))))
		for _, want := range []string{"a", "", "a"} {
			if want == "a" {
				f.serve(parent, succeed, dynamiccontroller.Owns(child, dynamiccontroller.WithTransform(annotating("a"))))
			} else if err := f.controller.AddWatches(context.Background(), parent, owns); err != nil {
				t.Fatal(err)
			} else {
				f.serve(parent, succeed, owns)
			}
			object := must(must(f.controller.SecondaryLister(parent, owns.Key())).Get("default/c")).(metav1.Object)
			if got := object.GetAnnotations()["letters"]; got != want {
				t.Errorf("the transforms left %q, want %q", got, want)
			}
		}
		stop()
	})
}

func TestS1_LateAddWatchesStartsNoWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{ResyncPeriod: -1})
		parent, child := f.types[0], f.types[1]
		stop := f.run()
		f.serve(parent, succeed)
		stopServing := func() {
			if err := f.controller.StopServiceGVK(context.Background(), parent); err != nil {
				t.Error(err)
			}
		}
		if err := f.controller.AddWatchesLate(parent, stopServing, dynamiccontroller.Owns(child)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if lists := f.lists(child); len(lists) > 0 {
			t.Errorf("the children were listed after the type was stopped: %v", lists)
		}
		stop()
	})
}

func TestAddWatches_ReplacesThePredicate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, child := f.types[0], f.types[1]
		f.put(parent, "a")
		stop := f.run()
		c := newCalls(succeed)
		f.serve(parent, c.handle)
		c.take()
		for _, accepts := range []bool{true, false, true} {
			predicate := func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool { return accepts }
			watch := dynamiccontroller.Owns(child,
				dynamiccontroller.WithTransform(annotating("a")), dynamiccontroller.WithPredicate(predicate))
			if err := f.controller.AddWatches(context.Background(), parent, watch); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			f.put(child, "c", f.id(parent, "a"))
			if accepts {
				c.want(t, "a change that the predicate accepts", named("a"))
			} else {
				c.want(t, "a change that the predicate rejects", named())
			}
		}
		stop()
	})
}

// Handlers call AddWatches and RemoveWatches in every reconcile.
func TestAddWatchesAndRemoveWatches_AreCheapWhenNothingChanges(t *testing.T) {
	f := newFixture(t, 3, dynamiccontroller.Config{ResyncPeriod: -1})
	parent := f.types[0]
	owned := dynamiccontroller.Owns(f.types[1], dynamiccontroller.WithTransform(annotating("a")))
	mapped := dynamiccontroller.Watches(f.types[2], mapTo())
	if err := f.controller.StartServingGVK(context.Background(), parent, succeed, owned, mapped); err != nil {
		t.Fatal(err)
	}
	absent := dynamiccontroller.Owns(f.types[2]).Key()
	ctx := context.Background()
	call := func() {
		if err := f.controller.AddWatches(ctx, parent, owned, mapped); err != nil {
			t.Error(err)
		}
		if err := f.controller.RemoveWatches(ctx, parent, absent); err != nil {
			t.Error(err)
		}
	}
	if n := testing.AllocsPerRun(100, call); n > 0 {
		t.Errorf("the calls made %v allocations, want none", n)
	}
	unlock := f.controller.HoldReadLock()
	defer unlock()
	called := make(chan struct{})
	go func() {
		defer close(called)
		call()
	}()
	select {
	case <-called:
	case <-time.After(10 * time.Second):
		t.Error("AddWatches or RemoveWatches waits for the write lock, although nothing changes")
	}
}

func TestOptions_AreSeparateForServingOwningAndWatching(t *testing.T) {
	everywhere := []any{
		dynamiccontroller.WithNamespaces(), dynamiccontroller.WithCache(0),
		dynamiccontroller.WithLabelSelector(nil), dynamiccontroller.WithFieldSelector(nil),
		dynamiccontroller.WithTransform(nil), dynamiccontroller.WithPredicate(nil),
	}
	onlyServing := []any{
		dynamiccontroller.WithConcurrency(1), dynamiccontroller.WithWeight(1), dynamiccontroller.WithReconcileTimeout(1),
		dynamiccontroller.WithRateLimiter(nil), dynamiccontroller.WithFlow(nil), dynamiccontroller.WithFlowConcurrency(1),
		dynamiccontroller.KeepRequeues(), dynamiccontroller.KeepWatches(), dynamiccontroller.Watch{},
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
				t.Errorf("%T is a ServeOption: %t, an OwnsOption: %t, a WatchesOption: %t", option, serve, owns, watches)
			}
		}
	}
}

func TestWatchKey(t *testing.T) {
	f := newFixture(t, 1, dynamiccontroller.Config{})
	gvr := f.types[0]
	mapFunc := mapTo()
	ab := dynamiccontroller.WithFieldSelector(fields.AndSelectors(
		fields.OneTermEqualSelector("metadata.namespace", "a"), fields.OneTermEqualSelector("metadata.name", "b")))
	keys := map[dynamiccontroller.WatchKey]dynamiccontroller.WatchKey{
		dynamiccontroller.Owns(gvr).Key():                                         {GVR: gvr, Owned: true},
		dynamiccontroller.Owns(gvr, dynamiccontroller.EveryOwner()).Key():         {GVR: gvr, Owned: true, EveryOwner: true},
		dynamiccontroller.Watches(gvr, mapFunc).Key():                             {GVR: gvr},
		dynamiccontroller.Owns(gvr, dynamiccontroller.WithNamespaces("ns")).Key(): {GVR: gvr, Owned: true, Namespaces: "ns"},
		dynamiccontroller.Owns(gvr, ab).Key(): {
			GVR: gvr, Owned: true, FieldSelector: "metadata.name=b,metadata.namespace=a",
		},
		dynamiccontroller.Owns(gvr, dynamiccontroller.WithLabelSelector(labels.Nothing())).Key(): {
			GVR: gvr, Owned: true, LabelSelector: "!nothing,nothing",
		},
		// The cache mode and functions are not part of the key.
		dynamiccontroller.Watches(gvr, nil,
			dynamiccontroller.WithCache(dynamiccontroller.CacheFull), dynamiccontroller.WithNamespaces("x"),
			dynamiccontroller.WithTransform(annotating("a"))).Key(): {GVR: gvr, Namespaces: "x"},
		dynamiccontroller.Watch{}.Key(): {},
	}
	for got, want := range keys {
		if got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

func TestStatus_ListsWatchesByKey(t *testing.T) {
	f := newFixture(t, 3, dynamiccontroller.Config{})
	watches := []dynamiccontroller.Watch{
		dynamiccontroller.Owns(f.types[1]), dynamiccontroller.Owns(f.types[1], dynamiccontroller.EveryOwner()),
		dynamiccontroller.Owns(f.types[1], dynamiccontroller.WithNamespaces("ns")), dynamiccontroller.Owns(f.types[2]),
		dynamiccontroller.Watches(f.types[2], mapTo()),
	}
	var options []dynamiccontroller.ServeOption
	for _, i := range []int{3, 1, 4, 0, 2} {
		options = append(options, watches[i])
	}
	if err := f.controller.StartServingGVK(context.Background(), f.types[0], succeed, options...); err != nil {
		t.Fatal(err)
	}
	secondaries := f.status(f.types[0]).Secondaries
	if len(secondaries) != len(watches) {
		t.Fatalf("the status contains %d watches, want %d", len(secondaries), len(watches))
	}
	for i, s := range secondaries {
		if s.WatchKey != watches[i].Key() || s.State != dynamiccontroller.TypeStopped || s.Replacement != nil {
			t.Errorf("the status of watch %d is %+v, want a stopped watch with the key %+v", i, s, watches[i].Key())
		}
	}
}

// A handler that was called before a swap can call AddWatches after the swap. It must not change the new options.
func TestAddWatches_HasNoEffectInAReplacedHandler(t *testing.T) {
	for name, blocked := range map[string]bool{"after the swap": false, "while the swap waits for other changes": true} {
		t.Run(name, func(t *testing.T) { testAddWatchesInReplacedHandler(t, blocked) })
	}
}

func testAddWatchesInReplacedHandler(t *testing.T, blocked bool) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr, watched, other := f.types[0], f.types[1], f.types[2]
		var calls []string
		watch := func(name string) dynamiccontroller.Watch {
			return dynamiccontroller.Watches(watched, func(context.Context, dynamiccontroller.Object) []string {
				calls = append(calls, name)
				return nil
			})
		}
		f.put(gvr, "a")
		stop := f.run()
		hang := make(chan struct{})
		f.serve(gvr, func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			<-hang
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return f.controller.AddWatches(ctx, gvr, watch("old"), dynamiccontroller.Owns(other))
		}, watch("old"))
		unblock := func() {}
		if blocked {
			unblock = f.controller.BlockChanges(gvr)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := f.controller.StartServingGVK(ctx, gvr, succeed, watch("new")); err != nil {
			t.Error(err)
		}
		close(hang)
		time.Sleep(time.Minute)
		unblock()
		synctest.Wait()
		f.put(watched, "w")
		if want := []string{"new"}; !slices.Equal(calls, want) {
			t.Errorf("calls to MapFuncs: %v, want %v", calls, want)
		}
		if secondaries := f.status(gvr).Secondaries; len(secondaries) != 1 {
			t.Errorf("watches: %+v, want the one of the new options", secondaries)
		}
		stop()
	})
}

// A handler adds a watch and then reads a child from the API server, for example to adopt it. The child is deleted
// before the first list of the watch, so that neither the list nor an event contains it.
func TestAddWatches_ReconcilesTheCallerOnceMoreAfterTheSync(t *testing.T) {
	for name, test := range map[string]struct {
		callers []string // in the order of their calls
		synced  bool     // the watch syncs before the last caller's call
		remains bool     // the child is not deleted
		want    []string // reconciles after the list
	}{
		"the handler adds the watch":                   {callers: []string{"a"}, want: []string{"a"}},
		"another object's handler has just added it":   {callers: []string{"b", "a"}, want: []string{"a", "b"}},
		"the list contains a child of the caller":      {callers: []string{"a"}, remains: true, want: []string{"a"}},
		"the watch has already synced":                 {callers: []string{"b", "a"}, synced: true},
		"the same handler calls again before the sync": {callers: []string{"a", "a", "a"}, want: []string{"a"}},
		"the list contains a child of the second caller": {
			callers: []string{"b", "a"}, remains: true, want: []string{"a", "b"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
				parent, child := f.types[0], f.types[1]
				lists := f.gateListsOf(child)
				owns := dynamiccontroller.Owns(child)
				c := newCalls(func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
					return f.controller.AddWatches(ctx, parent, owns)
				})
				f.serve(parent, c.handle)
				stop := f.run()
				if !test.synced {
					f.put(child, "c", f.id(parent, "a"))
					lists.close()
				}
				for i, caller := range test.callers {
					f.put(parent, caller)
					if test.synced && i == 0 { // the first caller is called once more
						c.want(t, "the first caller", map[string]int{caller: 2})
					} else {
						c.want(t, "the caller", named(caller))
					}
				}
				if !test.remains && !test.synced {
					f.delete(child, "c")
				}
				lists.open()
				synctest.Wait()
				c.want(t, "after the list", named(test.want...))
				time.Sleep(time.Hour)
				c.want(t, "later", named())
				f.put(parent, "a")
				c.want(t, "a call that changes nothing", named("a"))
				stop()
			})
		})
	}
}

// The next run reconciles all objects, so that nothing is remembered about the callers of the earlier one.
func TestAddWatches_ReconcilesTheCallerOnceIfTheRunEndsBeforeTheSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		parent, child := f.types[0], f.types[1]
		lists := f.gateListsOf(child)
		adds := true
		c := newCalls(func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			if !adds {
				return nil
			}
			return f.controller.AddWatches(ctx, parent, dynamiccontroller.Owns(child))
		})
		f.put(parent, "a")
		lists.close()
		f.serve(parent, c.handle)
		stopWatches := f.runWatches()
		stop := f.run()
		c.want(t, "the first run", named("a"))
		stop()
		adds = false
		stop = f.run()
		lists.open()
		c.want(t, "the second run", named("a"))
		stop()
		stopWatches()
	})
}

// The new handler reconciles the object once, and the interruption is not a failure.
func TestAddWatches_ReturnsErrHandlerReplacedToAReplacedHandler(t *testing.T) {
	for name, opts := range map[string][]dynamiccontroller.ServeOption{
		"the swap uses the same watch": nil,
		"the swap needs a new watch":   {metadataOnly, withoutLabel},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1, QueueMaxRetries: -1})
				gvr, owns := f.types[0], dynamiccontroller.Owns(f.types[1])
				hang := make(chan struct{})
				var got error
				f.put(gvr, "a")
				f.serve(gvr, func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
					<-hang
					got = f.controller.AddWatches(ctx, gvr, owns)
					return got
				})
				stop := f.run()
				next := newCalls(succeed)
				f.serve(gvr, next.handle, opts...)
				time.Sleep(time.Second)
				close(hang)
				synctest.Wait()
				if !errors.Is(got, dynamiccontroller.ErrHandlerReplaced) {
					t.Errorf("AddWatches returned %v, want ErrHandlerReplaced", got)
				}
				time.Sleep(time.Hour)
				next.want(t, "the new handler", named("a"))
				if status := f.status(gvr); status.Failing+status.Parked != 0 || len(status.Secondaries) != 0 {
					t.Errorf("the status is %+v, want no failure and no watch", status)
				}
				stop()
			})
		})
	}
}

// ErrHandlerReplaced is an interruption, also if a handler wraps it.
func TestErrHandlerReplaced_DoesNotCountAsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1, QueueMaxRetries: 1})
		returned := 0
		c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			if returned++; returned > 10 {
				return nil
			}
			return fmt.Errorf("reconcile: %w", dynamiccontroller.ErrHandlerReplaced)
		})
		f.serve(f.types[0], c.handle)
		stop := f.run()
		f.put(f.types[0], "a")
		time.Sleep(time.Minute)
		synctest.Wait()
		if status := f.status(f.types[0]); status.Failing+status.Parked != 0 || returned != 11 {
			t.Errorf("after %d calls, the status is %+v, want 11 calls and no failure", returned, status)
		}
		stop()
	})
}

func TestKeepWatches_KeepsTheAddedWatchesOverASwap(t *testing.T) {
	newWatch := []dynamiccontroller.ServeOption{metadataOnly, withoutLabel}
	for name, test := range map[string]struct {
		keep bool
		opts []dynamiccontroller.ServeOption
	}{
		"kept, with the same watch":    {keep: true},
		"kept, with a new watch":       {keep: true, opts: newWatch},
		"removed, with the same watch": {},
		"removed, with a new watch":    {opts: newWatch},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, 3, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
				parent, child, other := f.types[0], f.types[1], f.types[2]
				f.put(parent, "a")
				f.put(child, "c", f.id(parent, "a"))
				old, next := newCalls(succeed), newCalls(succeed)
				f.serve(parent, old.handle, dynamiccontroller.Watches(other, mapTo("default/old")))
				stop := f.run()
				if err := f.controller.AddWatches(t.Context(), parent, dynamiccontroller.Owns(child)); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				old.take()
				f.client.ClearActions()
				opts := append(slices.Clone(test.opts), dynamiccontroller.Watches(other, mapTo("default/new")))
				if test.keep {
					opts = append(opts, dynamiccontroller.KeepWatches())
				}
				f.serve(parent, next.handle, opts...)
				time.Sleep(time.Minute)
				next.want(t, "the swap", named("a"))
				f.put(other, "x")
				next.want(t, "the watch that both handlers have", named("new"))
				f.put(child, "c", f.id(parent, "a"))
				want := named()
				if test.keep {
					want = named("a")
				}
				next.want(t, "an event of the added watch", want)
				if n := len(f.status(parent).Secondaries); (n == 2) != test.keep {
					t.Errorf("%d watches after the swap", n)
				}
				if lists := f.lists(child); len(lists) != 0 {
					t.Errorf("the swap listed the children: %v", lists)
				}
				f.serve(parent, next.handle, test.opts...)
				time.Sleep(time.Minute)
				if n := len(f.status(parent).Secondaries); n != 0 {
					t.Errorf("%d watches after a swap without KeepWatches, want none", n)
				}
				old.want(t, "the old handler", named())
				stop()
			})
		})
	}
}
