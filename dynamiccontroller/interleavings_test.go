package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

func mapTo(keys ...string) dynamiccontroller.MapFunc {
	return func(context.Context, dynamiccontroller.Object) []string { return keys }
}

// The previous MapFunc stays in effect until the new watch has synced.
func TestS2_PendingSwapLeavesTheMapFuncInEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr, other := w.types[0], w.types[1]
		lists := w.gateListsOf(gvr)
		w.put(gvr, "a")
		stop := w.run()
		old, next := newCalls(succeed), newCalls(succeed)
		w.serve(gvr, old.handle, metadataOnly, dynamiccontroller.Watches(other, mapTo("default/old")))
		old.take()
		lists.close()
		w.serve(gvr, next.handle, metadataOnly, withoutLabel, dynamiccontroller.Watches(other, mapTo("default/new")))
		w.put(other, "x")
		old.want(t, "old handler, while the swap is pending", named("old"))
		lists.open()
		synctest.Wait()
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// Watches that only the pending options contain reconcile nothing.
func TestS2_PendingSwapAddsNoWatchForTheOldHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr, other := w.types[0], w.types[1]
		lists := w.gateListsOf(gvr)
		w.put(gvr, "a")
		w.put(other, "x")
		stop := w.run()
		old, next := newCalls(succeed), newCalls(succeed)
		w.serve(gvr, old.handle, metadataOnly)
		old.take()
		lists.close()
		w.serve(gvr, next.handle, metadataOnly, withoutLabel, dynamiccontroller.Watches(other, mapTo("default/new")))
		old.want(t, "old handler, while the swap is pending", named())
		lists.open()
		synctest.Wait()
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A handler that has outlived its run uses no worker of the next one.
func TestD11_HungHandlerOfThePreviousRunDoesNotBlockItsType(t *testing.T) {
	for _, workers := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, dynamiccontroller.Config{Workers: workers, ResyncPeriod: -1, ShutdownTimeout: time.Second})
				gvr := w.types[0]
				hang := make(chan struct{})
				var hung atomic.Bool
				c := newCalls(func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
					if id.Name() == "a" && !hung.Swap(true) {
						<-hang
					}
					return nil
				})
				w.put(gvr, "a")
				stop := w.run()
				w.serve(gvr, c.handle)
				if err := stop(); err == nil {
					t.Error("the handler is hung")
				}
				stop = w.run()
				w.put(gvr, "b")
				time.Sleep(time.Hour)
				synctest.Wait()
				if n := c.take()["b"]; n == 0 {
					t.Error("b was not reconciled for an hour")
				}
				close(hang)
				synctest.Wait()
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// The state of a watch can change while it is being added.
func TestAddWatches_WhileTheStateOfTheWatchChanges(t *testing.T) {
	for range 300 {
		w := newWorld(t, 3, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		w.failLists(w.types[0], errors.New("primary never syncs"))
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- w.controller.Run(ctx) }()
		if err := w.controller.StartServingGVK(ctx, w.types[0], succeed); err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			if err := w.controller.AddWatches(ctx, w.types[0], dynamiccontroller.Owns(w.types[1+i])); err != nil {
				t.Error(err)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}

// AddWatches can be called concurrently with StopServiceGVK. Nothing is left when both have returned.
func TestS1_StopDuringAddWatchesLeavesNothing(t *testing.T) {
	w := newWorld(t, 3, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- w.controller.Run(ctx) }()
	bad := 0
	for range 3000 {
		if err := w.controller.StartServingGVK(ctx, w.types[0], succeed); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { _ = w.controller.AddWatches(ctx, w.types[0], dynamiccontroller.Owns(w.types[1])) })
		if err := w.controller.StopServiceGVK(ctx, w.types[0]); err != nil {
			t.Fatal(err)
		}
		if n := w.controller.WatchesOf(w.types[1]); n > 0 {
			bad++
		}
		wg.Wait()
		if n := w.controller.WatchesOf(w.types[1]); n > 0 {
			bad++
		}
	}
	if bad > 0 {
		t.Errorf("%d times a watch existed after StopServiceGVK", bad)
	}
	cancel()
	t.Log("the run returned", <-ended)
}
