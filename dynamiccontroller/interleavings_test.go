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
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr, other := f.types[0], f.types[1]
		lists := f.gateListsOf(gvr)
		f.put(gvr, "a")
		stop := f.run()
		old, next := newCalls(succeed), newCalls(succeed)
		f.serve(gvr, old.handle, metadataOnly, dynamiccontroller.Watches(other, mapTo("default/old")))
		old.take()
		lists.close()
		f.serve(gvr, next.handle, metadataOnly, withoutLabel, dynamiccontroller.Watches(other, mapTo("default/new")))
		f.put(other, "x")
		old.want(t, "old handler, while the swap is pending", named("old"))
		lists.open()
		synctest.Wait()
		stop()
	})
}

// Watches that are only in the pending options do not cause reconciles.
func TestS2_PendingSwapAddsNoWatchForTheOldHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr, other := f.types[0], f.types[1]
		lists := f.gateListsOf(gvr)
		f.put(gvr, "a")
		f.put(other, "x")
		stop := f.run()
		old, next := newCalls(succeed), newCalls(succeed)
		f.serve(gvr, old.handle, metadataOnly)
		old.take()
		lists.close()
		f.serve(gvr, next.handle, metadataOnly, withoutLabel, dynamiccontroller.Watches(other, mapTo("default/new")))
		old.want(t, "old handler, while the swap is pending", named())
		lists.open()
		synctest.Wait()
		stop()
	})
}

// A handler that is still running when its run ends does not occupy a worker of the next run.
func TestD11_HungHandlerFromPreviousRunDoesNotBlockItsType(t *testing.T) {
	for _, workers := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, 1, dynamiccontroller.Config{Workers: workers, ResyncPeriod: -1, ShutdownTimeout: time.Second})
				gvr := f.types[0]
				hang := make(chan struct{})
				var hung atomic.Bool
				c := newCalls(func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
					if id.Name() == "a" && !hung.Swap(true) {
						<-hang
					}
					return nil
				})
				f.put(gvr, "a")
				stopFirst := f.start()
				f.serve(gvr, c.handle)
				if err := stopFirst(); err == nil {
					t.Error("Run returned nil while a handler was hanging")
				}
				stop := f.run()
				f.put(gvr, "b")
				time.Sleep(time.Hour)
				synctest.Wait()
				if n := c.take()["b"]; n == 0 {
					t.Error("object b was not reconciled within an hour")
				}
				close(hang)
				synctest.Wait()
				stop()
			})
		})
	}
}

// The state of a watch can change while AddWatches is adding it.
func TestAddWatches_WhileTheWatchChangesState(t *testing.T) {
	for range 300 {
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		f.failLists(f.types[0], errors.New("primary never syncs"))
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- f.controller.Run(ctx) }()
		if err := f.controller.StartServingGVK(ctx, f.types[0], succeed); err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			if err := f.controller.AddWatches(ctx, f.types[0], dynamiccontroller.Owns(f.types[1+i])); err != nil {
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
func TestS1_StopDuringAddWatchesLeavesNothingBehind(t *testing.T) {
	f := newFixture(t, 3, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- f.controller.Run(ctx) }()
	bad := 0
	for range 3000 {
		if err := f.controller.StartServingGVK(ctx, f.types[0], succeed); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { _ = f.controller.AddWatches(ctx, f.types[0], dynamiccontroller.Owns(f.types[1])) })
		if err := f.controller.StopServiceGVK(ctx, f.types[0]); err != nil {
			t.Fatal(err)
		}
		if n := f.controller.WatchesOf(f.types[1]); n > 0 {
			bad++
		}
		wg.Wait()
		if n := f.controller.WatchesOf(f.types[1]); n > 0 {
			bad++
		}
	}
	if bad > 0 {
		t.Errorf("%d checks found a watch after StopServiceGVK had returned", bad)
	}
	cancel()
	t.Log("the run returned", <-ended)
}
