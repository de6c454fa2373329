package dynamiccontroller_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A quiet type behind a busy one waits for a worker and its turn, not for the busy type's queue.
func TestF1_QuietTypeWaitsForAtMostOneRound(t *testing.T) {
	const busyItems, busyTypes, work = 2000, 5, time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, busyTypes+1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		stop := w.run()
		for _, gvr := range w.types[:busyTypes] {
			w.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
				time.Sleep(work)
				return nil
			}, dynamiccontroller.WithConcurrency(8)) // so that only turns limit it
			for i := range busyItems {
				w.controller.Enqueue(w.id(gvr, fmt.Sprint(i)))
			}
		}
		quiet := w.types[busyTypes]
		var waited time.Duration
		var asked time.Time
		w.serve(quiet, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			waited = time.Since(asked)
			return nil
		})
		for range 20 {
			time.Sleep(10*time.Millisecond + work/2)
			asked, waited = time.Now(), time.Hour
			w.controller.Enqueue(w.id(quiet, "w"))
			time.Sleep(20 * work)
			synctest.Wait()
			// The running call, and one call of each busy type.
			if waited > (busyTypes+1)*work {
				t.Fatalf("waited for %s, a round takes %s", waited, busyTypes*work)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestF1_WeightsShareTheWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		stop := w.run()
		var done [2]atomic.Int64
		for i, gvr := range w.types {
			w.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
				time.Sleep(time.Millisecond)
				done[i].Add(1)
				return nil
			}, dynamiccontroller.WithWeight(1+3*i))
			for n := range 1000 {
				w.controller.Enqueue(w.id(gvr, fmt.Sprint(n)))
			}
		}
		time.Sleep(500 * time.Millisecond)
		if light, heavy := done[0].Load(), done[1].Load(); heavy < 4*light-10 || heavy > 4*light+10 { // two rounds
			t.Errorf("%d calls of the type of weight 1, %d of weight 4", light, heavy)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A type whose handlers hang from the first call leaves workers to other types, and their contexts time out.
func TestF2_TypeThatHangsLeavesWorkersToOthers(t *testing.T) {
	for workers := 2; workers <= 10; workers++ {
		t.Run(fmt.Sprintf("%d workers", workers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 2, dynamiccontroller.Config{Workers: workers, ResyncPeriod: -1})
				stop := w.run()
				var hung, ended atomic.Int64
				w.serve(w.types[0], func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
					hung.Add(1)
					<-ctx.Done()
					if context.Cause(ctx) == dynamiccontroller.ErrReconcileTimeout {
						ended.Add(1)
					}
					return nil
				})
				for i := range 3 * workers {
					w.controller.Enqueue(w.id(w.types[0], fmt.Sprint(i)))
				}
				synctest.Wait()
				if n := hung.Load(); n != int64((workers+1)/2) {
					t.Errorf("%d of %d workers hang", n, workers)
				}
				reconciled := false
				w.serve(w.types[1], func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
					reconciled = true
					return nil
				})
				w.put(w.types[1], "w")
				if !reconciled {
					t.Error("another type waits")
				}
				if ended.Load() != 0 {
					t.Error("a context ended early")
				}
				time.Sleep(5*time.Minute + time.Second)
				synctest.Wait()
				if ended.Load() != int64((workers+1)/2) {
					t.Errorf("%d of the contexts ended after 5 minutes", ended.Load())
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// With a single worker, another type waits for the running call and at most one round of turns.
func TestF2_SingleWorkerIsFreedByReconcileTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		stop := w.run()
		w.serve(w.types[0], func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			<-ctx.Done()
			return nil
		}, dynamiccontroller.WithReconcileTimeout(time.Second))
		for i := range 10 {
			w.controller.Enqueue(w.id(w.types[0], fmt.Sprint(i)))
		}
		synctest.Wait()
		reconciled := false
		w.serve(w.types[1], func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			reconciled = true
			return nil
		})
		w.put(w.types[1], "w")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !reconciled {
			t.Error("another type waits for more than two timeouts")
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestF2_RaisedCapTakesEffectAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 8, ResyncPeriod: -1})
		stop := w.run()
		var running atomic.Int64
		hang := func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			running.Add(1)
			defer running.Add(-1)
			<-ctx.Done()
			return nil
		}
		for _, n := range []int64{1, 2, 4} {
			w.serve(w.types[0], hang, dynamiccontroller.WithConcurrency(int(n)), dynamiccontroller.WithReconcileTimeout(-1))
			for i := range 20 {
				w.controller.Enqueue(w.id(w.types[0], fmt.Sprint(i)))
			}
			synctest.Wait()
			if running.Load() != n {
				t.Errorf("%d handlers run, want %d", running.Load(), n)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// Events precede the waiting objects of an initial list, and do not starve them.
func TestD10_EventsPrecedeInitialListsButDoNotStarveThem(t *testing.T) {
	const objects, work = 300, time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		stop := w.run()
		gvr := w.types[0]
		for i := range objects {
			w.put(gvr, fmt.Sprintf("w%d", i))
		}
		var mu sync.Mutex
		var order []string
		w.serve(gvr, func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			mu.Lock()
			order = append(order, id.Name())
			mu.Unlock()
			time.Sleep(work)
			return nil
		})
		mu.Lock()
		before := len(order)
		last := ""
		for i := range objects {
			if name := fmt.Sprintf("w%d", i); !strings.Contains(strings.Join(order, " ")+" ", name+" ") {
				last = name
			}
		}
		mu.Unlock()
		w.put(gvr, last)
		time.Sleep(3 * work)
		synctest.Wait()
		mu.Lock()
		if next := order[before:min(before+2, len(order))]; !strings.Contains(strings.Join(next, " ")+" ", last+" ") {
			t.Errorf("after the event for %s, the handler was called for %v", last, next)
		}
		mu.Unlock()

		// Events arrive as fast as they are handled. The initial list makes progress nevertheless.
		deadline := time.Now().Add(objects * 10 * work)
		for status := w.status(gvr); status.Background > 0; status = w.status(gvr) {
			for i := range 20 {
				w.controller.Enqueue(w.id(gvr, fmt.Sprintf("event-%d", i)))
			}
			time.Sleep(work)
			if time.Now().After(deadline) {
				t.Fatalf("the initial list starves: %+v", w.status(gvr))
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// Stopping a type drops all delayed objects.
func TestS1_StopDropsOneHundredThousandDelayedObjects(t *testing.T) {
	const objects = 100_000
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 8, ResyncPeriod: -1})
		stop := w.run()
		gvr := w.types[0]
		var calls atomic.Int64
		w.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			if calls.Add(1)%100 == 0 {
				return errOnPurpose
			}
			return dynamiccontroller.RequeueAfter(10 * time.Hour)
		}, dynamiccontroller.WithRateLimiter(workqueue.NewTypedItemExponentialFailureRateLimiter[dynamiccontroller.ObjectIdentifiers](10*time.Hour, 10*time.Hour)))
		ids := make([]dynamiccontroller.ObjectIdentifiers, objects)
		for i := range ids {
			ids[i] = w.id(gvr, fmt.Sprint(i))
		}
		w.controller.Enqueue(ids...)
		synctest.Wait()
		if status := w.status(gvr); status.Delayed != objects {
			t.Fatalf("%+v", status)
		}
		leftovers := w.controller.Leftovers(gvr)
		if leftovers() == "" {
			t.Error("Leftovers does not report the delayed objects")
		}
		if err := w.controller.StopServiceGVK(context.Background(), gvr); err != nil {
			t.Fatal(err)
		}
		if left := leftovers(); left != "" {
			t.Error(left)
		}
		w.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			t.Error("a delayed object was reconciled after the stop")
			return nil
		})
		if status := w.status(gvr); status.Delayed+status.Live+status.Background+status.Failing != 0 {
			t.Errorf("left: %+v", status)
		}
		time.Sleep(20 * time.Hour)
		synctest.Wait()
		if calls.Load() != objects {
			t.Errorf("%d calls", calls.Load())
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
