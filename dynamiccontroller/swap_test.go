package dynamiccontroller_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A swap waits for the first list of its new watch. A type event empties the cache of the new watch, but does not count
// as a list.
func TestS2_TypeEventDoesNotCompleteASwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &events{}
		w := newFixture(t, 1, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1},
			dynamiccontroller.WithTypeEvents(e.subscribe))
		gvr := w.types[0]
		w.put(gvr, "a")
		stop := w.run()
		old, next := newCalls(succeed), newCalls(succeed)
		w.serve(gvr, old.handle, metadataOnly)
		old.take()
		w.failLists(gvr, errors.New("the new selector is refused"))
		w.serve(gvr, next.handle, metadataOnly, withoutLabel)
		time.Sleep(time.Minute)
		synctest.Wait()
		if w.status(gvr).Replacement == nil {
			t.Fatal("no swap is pending")
		}
		e.notify(gvr, false)
		synctest.Wait()
		t.Logf("after the type vanished: %+v", w.status(gvr))
		old.want(t, "old handler: last reconcile", named("a"))
		next.want(t, "new handler, whose watch has never synced", named())
		stop()
	})
}

// The new options take precedence over those that the old handler, which is still running, passes to AddWatches.
func TestS2_OldHandlerDoesNotChangeTheWatchesOfThePendingSwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr, watched, added := f.types[0], f.types[1], f.types[2]
		stop := f.run()
		var calls []string
		watch := func(name string) dynamiccontroller.Watch {
			return dynamiccontroller.Watches(watched, func(context.Context, dynamiccontroller.Object) []string {
				calls = append(calls, name)
				return nil
			})
		}
		f.serve(gvr, func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			return f.controller.AddWatches(ctx, gvr, watch("old"), dynamiccontroller.Owns(added))
		}, metadataOnly)
		f.failLists(gvr, errors.New("the new selector is refused"))
		f.serve(gvr, succeed, metadataOnly, withoutLabel, watch("new"))
		f.put(gvr, "a") // the old handler is called
		f.put(watched, "w")
		f.failLists(gvr, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		f.put(watched, "w")
		if want := []string{"old", "new", "new"}; !slices.Equal(calls, want) { // one call for each state of the object
			t.Errorf("calls to MapFuncs: %v, want %v", calls, want)
		}
		if secondaries := f.status(gvr).Secondaries; len(secondaries) != 1 {
			t.Errorf("watches: %+v, want the one of the new options", secondaries)
		}
		stop()
	})
}

func TestS2_ListerReadsWholeObjectsUntilTheSwapToKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		f.put(gvr, "a")
		stop := f.run()
		f.serve(gvr, succeed)
		f.failLists(gvr, errors.New("the new selector is refused"))
		keysOnly := dynamiccontroller.WithCache(dynamiccontroller.CacheKeys)
		f.serve(gvr, succeed, keysOnly, withoutLabel)
		lister, err := f.controller.Lister(gvr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := lister.Get("default/a"); err != nil {
			t.Error(err)
		}
		f.failLists(gvr, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, err := f.controller.Lister(gvr); err == nil {
			t.Error("after the swap, Lister returned no error")
		}
		stop()
	})
}

// A call to RemoveWatches while a swap is pending removes the watch from the new options.
func TestRemoveWatches_RemovesAWatchOfThePendingSwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr, child := f.types[0], f.types[1]
		stop := f.run()
		f.serve(gvr, succeed)
		f.failLists(gvr, errors.New("the new selector is refused"))
		owns := dynamiccontroller.Owns(child)
		f.serve(gvr, succeed, withoutLabel, owns)
		if err := f.controller.RemoveWatches(context.Background(), gvr, owns.Key()); err != nil {
			t.Fatal(err)
		}
		f.failLists(gvr, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if status := f.status(gvr); status.Replacement != nil || len(status.Secondaries) != 0 {
			t.Errorf("after the swap, the status is %+v, want no watch of the children", status)
		}
		stop()
	})
}

// A call to AddWatches that changes nothing does not wait for a hung MapFunc of another type. Other calls take effect
// in their order.
func TestAddWatches_DoesNotWaitIfNothingChanges(t *testing.T) {
	w := newFixture(t, 4, dynamiccontroller.Config{Workers: 4, ResyncPeriod: -1, ShutdownTimeout: time.Second})
	gvr, child, shared, hanging := w.types[0], w.types[1], w.types[2], w.types[3]
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- w.controller.Run(ctx) }()
	owns := dynamiccontroller.Owns(child)
	for _, listed := range []schema.GroupVersionResource{shared, child} {
		w.create(listed, "x")
	}
	if err := w.controller.StartServingGVK(ctx, gvr, succeed, owns); err != nil {
		t.Fatal(err)
	}
	hang, hung := make(chan struct{}), make(chan struct{})
	within := func(d time.Duration) context.Context {
		short, end := context.WithTimeout(ctx, d)
		t.Cleanup(end)
		return short
	}
	mapFunc := func(context.Context, dynamiccontroller.Object) []string {
		close(hung)
		<-hang
		return nil
	}
	_ = w.controller.StartServingGVK(within(time.Second), hanging, succeed, dynamiccontroller.Watches(shared, mapFunc))
	<-hung
	_ = w.controller.AddWatches(within(time.Second/2), gvr, dynamiccontroller.Owns(shared))
	began := time.Now()
	err := w.controller.AddWatches(within(3*time.Second), gvr, owns)
	if took := time.Since(began); took > time.Second {
		t.Errorf("a call to AddWatches that changes nothing took %s and returned %v", took, err)
	}
	whole := dynamiccontroller.Owns(child, dynamiccontroller.WithCache(dynamiccontroller.CacheFull))
	for _, watch := range []dynamiccontroller.Watch{whole, owns} {
		if err := w.controller.AddWatches(within(time.Second/2), gvr, watch); err != nil {
			t.Error(err)
		}
	}
	close(hang)
	// This call waits for the earlier ones.
	if err := w.controller.RemoveWatches(within(time.Minute), gvr, dynamiccontroller.Owns(shared).Key()); err != nil {
		t.Fatal(err)
	}
	isPending := func(s dynamiccontroller.SecondaryStatus) bool { return s.Replacement != nil || !s.Synced }
	for deadline := time.Now().Add(time.Minute); slices.ContainsFunc(w.status(gvr).Secondaries, isPending); {
		if time.Now().After(deadline) {
			t.Fatalf("a replacement is pending, or the watch has not synced: %+v", w.status(gvr))
		}
		time.Sleep(time.Millisecond)
	}
	listed, err := must(w.controller.SecondaryLister(gvr, owns.Key())).List(labels.Everything())
	if err != nil || len(listed) != 1 {
		t.Fatalf("got %v, %v", listed, err)
	}
	if _, isMetadata := listed[0].(*metav1.PartialObjectMetadata); !isMetadata {
		t.Errorf("the cache holds a %T, want the metadata that the last AddWatches requested", listed[0])
	}
	cancel()
	t.Log("the run returned", <-ended)
}

// A call to RemoveWatches that changes nothing does not wait for a hung MapFunc, of this type or of another one.
func TestRemoveWatches_DoesNotWaitIfNothingChanges(t *testing.T) {
	w := newFixture(t, 3, dynamiccontroller.Config{Workers: 4, ResyncPeriod: -1, ShutdownTimeout: time.Second})
	shared := w.types[2]
	w.create(shared, "x")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- w.controller.RunWatches(ctx) }()
	hang, hung := make(chan struct{}), make(chan struct{}, 1)
	watch := dynamiccontroller.Watches(shared, func(context.Context, dynamiccontroller.Object) []string {
		hung <- struct{}{}
		<-hang
		return nil
	})
	for _, gvr := range w.types[:2] {
		if err := w.controller.StartServingGVK(ctx, gvr, succeed, watch); err != nil {
			t.Fatal(err)
		}
		lister := must(w.controller.SecondaryLister(gvr, watch.Key()))
		listed, deadline := []apiruntime.Object(nil), time.Now().Add(time.Minute)
		for ; len(listed) == 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			listed, _ = lister.List(labels.Everything())
		}
		if len(listed) == 0 {
			t.Fatal("the watch has not synced")
		}
	}
	go func() { ended <- w.controller.Run(ctx) }()
	<-hung
	for _, gvr := range w.types[:2] {
		short, end := context.WithTimeout(ctx, 3*time.Second)
		began := time.Now()
		err := w.controller.RemoveWatches(short, gvr, dynamiccontroller.Owns(shared).Key())
		if took := time.Since(began); took > time.Second || err != nil {
			t.Errorf("a call to RemoveWatches that changes nothing took %s and returned %v", took, err)
		}
		end()
	}
	close(hang)
	cancel()
	t.Log("the runs returned", <-ended, <-ended)
}

// create creates an object. Unlike put, it can be used outside of a synctest bubble.
func (f *fixture) create(gvr schema.GroupVersionResource, name string) {
	f.t.Helper()
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gvr.GroupVersion().WithKind("Type"))
	object.SetName(name)
	_, err := f.client.Resource(gvr).Namespace("default").Create(f.t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
}

// slowForget is a rate limiter whose Forget takes some time.
type slowForget struct{ took time.Duration }

func (slowForget) When(dynamiccontroller.ObjectIdentifiers) time.Duration { return time.Second }

func (f slowForget) Forget(dynamiccontroller.ObjectIdentifiers) { time.Sleep(f.took) }

func (slowForget) NumRequeues(dynamiccontroller.ObjectIdentifiers) int { return 0 }

// A requeue must not be lost if the run ends while the outcome of the reconcile is being settled.
func TestRequeueAfter_IsNotLostWhenTheRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 1, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr := w.types[0]
		stop := w.run()
		c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			return dynamiccontroller.RequeueAfter(time.Hour)
		})
		w.serve(gvr, c.handle, dynamiccontroller.WithRateLimiter(slowForget{time.Second}))
		w.controller.Enqueue(w.id(gvr, "ghost"))
		synctest.Wait()
		c.want(t, "first run", named("ghost"))
		stop()
		stop = w.run()
		time.Sleep(time.Minute)
		c.want(t, "after the second run began", named("ghost"))
		stop()
	})
}

// A run can end while a swap waits for the lists of its new watches.
func TestS2_SwapThatAddsWatchesContinuesInTheNextRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr, child := w.types[0], w.types[1]
		g := w.gateListsOf(child)
		w.put(gvr, "a")
		stopWatches := w.runWatches()
		stop := w.run()
		c := newCalls(succeed)
		w.serve(gvr, c.handle)
		c.want(t, "the first handler", named("a"))
		g.close()
		w.serve(gvr, c.handle, dynamiccontroller.Owns(child))
		c.want(t, "while the swap waits for the new watch", named())
		stop()
		stop = w.run()
		time.Sleep(9 * time.Second)
		c.want(t, "while the next run waits for the new watch", named())
		time.Sleep(2 * time.Second)
		c.want(t, "ten seconds later", named("a"))
		g.open()
		synctest.Wait()
		w.put(gvr, "b")
		c.want(t, "a new object", named("b"))
		stop()
		stopWatches()
	})
}

// AddWatches keeps an existing watch that a pending swap would otherwise remove.
func TestAddWatches_KeepsTheWatchDuringAPendingSwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr, owns := w.types[0], dynamiccontroller.Owns(w.types[1])
		g := w.gateListsOf(gvr)
		stop := w.run()
		w.serve(gvr, succeed, metadataOnly, owns)
		g.close()
		w.serve(gvr, succeed, metadataOnly, withoutLabel)
		if err := w.controller.AddWatches(context.Background(), gvr, owns); err != nil {
			t.Fatal(err)
		}
		g.open()
		synctest.Wait()
		if got := w.status(gvr); got.Replacement != nil || len(got.Secondaries) != 1 {
			t.Errorf("the status is %+v, want one secondary and no replacement", got)
		}
		stop()
	})
}

// A swap that was requested on a standby can still be pending when the standby is promoted.
func TestS2_PromotionDuringAPendingSwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 1, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr := w.types[0]
		g := w.gateListsOf(gvr)
		w.put(gvr, "a")
		stopWatches := w.runWatches()
		old, next := newCalls(succeed), newCalls(succeed)
		w.serve(gvr, old.handle, metadataOnly)
		g.close()
		w.serve(gvr, next.handle, metadataOnly, withoutLabel)
		stop := w.run()
		time.Sleep(2 * time.Second)
		old.want(t, "old handler, initial list of the first run", named("a"))
		w.put(gvr, "b")
		old.want(t, "old handler, while the swap is pending", named("b"))
		stop()
		w.delete(gvr, "b")
		g.open()
		synctest.Wait()
		stop = w.run()
		next.want(t, "new handler, in the second run", named("a"))
		old.want(t, "old handler, in the second run", named())
		stop()
		stopWatches()
	})
}

// If another swap is requested while the difference is being delivered, the handler that has just taken effect gets its
// watches, because it stays in effect until the other swap takes effect.
func TestS2_SupersededSwapKeepsItsWatchesIfItHasTakenEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr, child := f.types[0], f.types[1]
		f.put(gvr, "a")
		stop := f.run()
		f.serve(gvr, succeed)
		c := newCalls(succeed)
		var once sync.Once
		begin, resume := make(chan struct{}), make(chan struct{})
		go func() {
			<-begin
			f.failLists(gvr, errors.New("the last selector is refused"))
			if err := f.controller.StartServingGVK(t.Context(), gvr, succeed, metadataOnly, withoutLabel); err != nil {
				t.Error(err)
			}
			close(resume)
		}()
		annotated := dynamiccontroller.WithTransform(annotating("a")) // changes the metadata of each object
		f.serve(gvr, c.handle, annotated, dynamiccontroller.Owns(child), dynamiccontroller.WithPredicate(
			func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool {
				once.Do(func() {
					close(begin)
					<-resume
				})
				return true
			}))
		time.Sleep(time.Minute)
		synctest.Wait()
		c.want(t, "after the swap", named("a"))
		f.put(child, "c", f.id(gvr, "a"))
		c.want(t, "after a change to a child", named("a"))
		stop()
	})
}

// A swap may have to wait for earlier changes to the watches, which another type can block.
func TestWaitForGVRSync_WaitsForASwapThatHasNotBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr := f.types[0]
		stop := f.run()
		f.serve(gvr, succeed)
		unblock := f.controller.BlockChanges(gvr)
		within := func(f func(ctx context.Context) error) error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			return f(ctx)
		}
		if err := within(func(ctx context.Context) error {
			return f.controller.StartServingGVK(ctx, gvr, succeed, metadataOnly)
		}); err != nil {
			t.Error(err)
		}
		wait := func(ctx context.Context) error { return f.controller.WaitForGVRSync(ctx, gvr) }
		if err := within(wait); !errors.Is(err, context.DeadlineExceeded) || f.controller.AllInformerHaveSynced() {
			t.Errorf("before the swap, WaitForGVRSync returned %v", err)
		}
		unblock()
		if err := within(wait); err != nil {
			t.Error(err)
		}
		stop()
	})
}
