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

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A quiet type waits only for a worker and for its turn, not for the queued objects of busy types.
func TestF1_QuietTypeWaitsForAtMostOneRound(t *testing.T) {
	const busyItems, busyTypes, work = 2000, 5, time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, busyTypes+1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		stop := f.run()
		for _, gvr := range f.types[:busyTypes] {
			f.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
				time.Sleep(work)
				return nil
			}, dynamiccontroller.WithConcurrency(8)) // so that the type is limited only by its turns
			for i := range busyItems {
				f.controller.Enqueue(f.id(gvr, fmt.Sprint(i)))
			}
		}
		quiet := f.types[busyTypes]
		var waited time.Duration
		var asked time.Time
		f.serve(quiet, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			waited = time.Since(asked)
			return nil
		})
		for range 20 {
			time.Sleep(10*time.Millisecond + work/2)
			asked, waited = time.Now(), time.Hour
			f.controller.Enqueue(f.id(quiet, "w"))
			time.Sleep(20 * work)
			synctest.Wait()
			// The quiet type waits for the running call and for one call for each busy type.
			if waited > (busyTypes+1)*work {
				t.Fatalf("the quiet type waited for %s, want at most one round of %s", waited, busyTypes*work)
			}
		}
		stop()
	})
}

func TestF1_WeightsShareTheWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		stop := f.run()
		var done [2]atomic.Int64
		for i, gvr := range f.types {
			f.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
				time.Sleep(time.Millisecond)
				done[i].Add(1)
				return nil
			}, dynamiccontroller.WithWeight(1+3*i))
			for n := range 1000 {
				f.controller.Enqueue(f.id(gvr, fmt.Sprint(n)))
			}
		}
		time.Sleep(500 * time.Millisecond)
		if light, heavy := done[0].Load(), done[1].Load(); heavy < 4*light-10 || heavy > 4*light+10 { // two rounds
			t.Errorf("%d calls for the type with weight 1, %d for the type with weight 4; want 1:4", light, heavy)
		}
		stop()
	})
}

// If all handler calls of a type hang from the first one on, other types still get workers. The contexts of the hung
// calls time out.
func TestF2_HungTypeLeavesWorkersToOthers(t *testing.T) {
	for workers := 2; workers <= 10; workers++ {
		t.Run(fmt.Sprintf("%d workers", workers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, 2, dynamiccontroller.Config{Workers: workers, ResyncPeriod: -1})
				stop := f.run()
				var hung, ended atomic.Int64
				f.serve(f.types[0], func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
					hung.Add(1)
					<-ctx.Done()
					if context.Cause(ctx) == dynamiccontroller.ErrReconcileTimeout {
						ended.Add(1)
					}
					return nil
				})
				for i := range 3 * workers {
					f.controller.Enqueue(f.id(f.types[0], fmt.Sprint(i)))
				}
				synctest.Wait()
				if n := hung.Load(); n != int64((workers+1)/2) {
					t.Errorf("hung calls occupy %d of %d workers, want half of the workers", n, workers)
				}
				c := newCalls(succeed)
				f.serve(f.types[1], c.handle)
				f.put(f.types[1], "w")
				c.want(t, "another type, while the calls hang", named("w"))
				if ended.Load() != 0 {
					t.Error("the context of a hung call was cancelled before its timeout")
				}
				time.Sleep(5*time.Minute + time.Second)
				synctest.Wait()
				if ended.Load() != int64((workers+1)/2) {
					t.Errorf("%d contexts timed out after 5 minutes, want all contexts of the hung calls", ended.Load())
				}
				stop()
			})
		})
	}
}

// With a single worker, another type waits for the running call and for at most one round of turns.
func TestF2_SingleWorkerIsFreedByReconcileTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		stop := f.run()
		f.serve(f.types[0], func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			<-ctx.Done()
			return nil
		}, dynamiccontroller.WithReconcileTimeout(time.Second))
		for i := range 10 {
			f.controller.Enqueue(f.id(f.types[0], fmt.Sprint(i)))
		}
		synctest.Wait()
		reconciled := false
		f.serve(f.types[1], func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			reconciled = true
			return nil
		})
		f.put(f.types[1], "w")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !reconciled {
			t.Error("the other type waited for longer than two timeouts")
		}
		stop()
	})
}

func TestF2_RaisedCapTakesEffectImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 8, ResyncPeriod: -1})
		stop := f.run()
		var running atomic.Int64
		hang := func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			running.Add(1)
			defer running.Add(-1)
			<-ctx.Done()
			return nil
		}
		for _, n := range []int64{1, 2, 4} {
			f.serve(f.types[0], hang, dynamiccontroller.WithConcurrency(int(n)), dynamiccontroller.WithReconcileTimeout(-1))
			for i := range 20 {
				f.controller.Enqueue(f.id(f.types[0], fmt.Sprint(i)))
			}
			synctest.Wait()
			if running.Load() != n {
				t.Errorf("%d handlers are running, want %d", running.Load(), n)
			}
		}
		stop()
	})
}

// Events take precedence over the waiting objects of an initial list, but do not starve them.
func TestD10_EventsTakePrecedenceWithoutStarvingInitialLists(t *testing.T) {
	const objects, work = 300, time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		stop := f.run()
		gvr := f.types[0]
		for i := range objects {
			f.put(gvr, fmt.Sprintf("w%d", i))
		}
		var mu sync.Mutex
		var order []string
		f.serve(gvr, func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
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
		f.put(gvr, last)
		time.Sleep(3 * work)
		synctest.Wait()
		mu.Lock()
		if next := order[before:min(before+2, len(order))]; !strings.Contains(strings.Join(next, " ")+" ", last+" ") {
			t.Errorf("after the event for %s, the handler was called for %v", last, next)
		}
		mu.Unlock()

		// Events arrive as fast as they are handled. The initial list still makes progress.
		deadline := time.Now().Add(objects * 10 * work)
		for status := f.status(gvr); status.Background > 0; status = f.status(gvr) {
			for i := range 20 {
				f.controller.Enqueue(f.id(gvr, fmt.Sprintf("event-%d", i)))
			}
			time.Sleep(work)
			if time.Now().After(deadline) {
				t.Fatalf("events starve the objects of the initial list: %+v", f.status(gvr))
			}
		}
		stop()
	})
}

// Stopping a type drops all delayed objects.
func TestS1_StopDropsOneHundredThousandDelayedObjects(t *testing.T) {
	const objects = 100_000
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 8, ResyncPeriod: -1})
		stop := f.run()
		gvr := f.types[0]
		var calls atomic.Int64
		f.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			if calls.Add(1)%100 == 0 {
				return errOnPurpose
			}
			return dynamiccontroller.RequeueAfter(10 * time.Hour)
		}, dynamiccontroller.WithRateLimiter(newConstantLimiter(10*time.Hour)))
		ids := make([]dynamiccontroller.ObjectIdentifiers, objects)
		for i := range ids {
			ids[i] = f.id(gvr, fmt.Sprint(i))
		}
		f.controller.Enqueue(ids...)
		synctest.Wait()
		if status := f.status(gvr); status.Delayed != objects {
			t.Fatalf("the status is %+v, want all objects to be delayed", status)
		}
		leftovers := f.controller.Leftovers(gvr)
		if leftovers() == "" {
			t.Error("Leftovers does not report the delayed objects")
		}
		if err := f.controller.StopServiceGVK(context.Background(), gvr); err != nil {
			t.Fatal(err)
		}
		if left := leftovers(); left != "" {
			t.Error(left)
		}
		f.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			t.Error("a delayed object was reconciled after the type had been stopped")
			return nil
		})
		if status := f.status(gvr); status.Delayed+status.Live+status.Background+status.Failing != 0 {
			t.Errorf("the status is %+v, want no objects from the stopped registration", status)
		}
		time.Sleep(20 * time.Hour)
		synctest.Wait()
		if calls.Load() != objects {
			t.Errorf("the handler was called %d times, want one call for each object", calls.Load())
		}
		stop()
	})
}

// A type whose handlers hang keeps its share of the workers when it is stopped and served again, because they still
// occupy workers.
func TestF2_ReservedTypeWithHungHandlersGetsNoNewShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers = 10
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: workers, ResyncPeriod: -1, ShutdownTimeout: time.Second})
		h := newHung()
		stop := f.start()
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		for round := range 4 {
			f.serve(f.types[0], h.handle, dynamiccontroller.WithReconcileTimeout(-1))
			for i := range workers {
				f.controller.Enqueue(f.id(f.types[0], fmt.Sprint(round, "-", i)))
			}
			synctest.Wait()
			if n := h.running.Load(); n != workers/2 {
				t.Errorf("%d hung calls in round %d, want half of the %d workers", n, round, workers)
			}
			if err := f.controller.StopServiceGVK(cancelled, f.types[0]); err == nil {
				t.Error("StopServiceGVK returned nil while handlers were hanging")
			}
		}
		close(h.release)
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
