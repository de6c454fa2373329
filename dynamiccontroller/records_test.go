package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// newConstantLimiter returns a rate limiter with the same delay for each retry.
func newConstantLimiter(delay time.Duration) workqueue.TypedRateLimiter[dynamiccontroller.ObjectIdentifiers] {
	return workqueue.NewTypedItemFastSlowRateLimiter[dynamiccontroller.ObjectIdentifiers](delay, delay, 0)
}

func TestRetry_NonPositiveDelaysAreRaisedToTheMinimum(t *testing.T) {
	for name, delay := range map[string]time.Duration{"zero": 0, "negative": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, 1, retryEverySecond(-1))
				stop := w.run()
				c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return errOnPurpose })
				w.serve(w.types[0], c.handle, dynamiccontroller.WithRateLimiter(newConstantLimiter(delay)))
				w.put(w.types[0], "a")
				time.Sleep(10*time.Second + time.Second/2)
				synctest.Wait()
				if n := len(c.at["a"]); n != 11 {
					t.Errorf("%d calls in 10 s, want 11: the first one and one retry per second", n)
				}
				stop()
			})
		})
	}
}

// A rate limiter that panics must not cause retries in quick succession.
func TestRetry_PanickingRateLimiterCausesTheMaximumDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := retryEverySecond(-1)
		config.MaxRetryDelay = time.Minute
		w := newFixture(t, 1, config)
		stop := w.run()
		c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return errOnPurpose })
		w.serve(w.types[0], c.handle, dynamiccontroller.WithRateLimiter(badLimiter{}))
		w.put(w.types[0], "a")
		time.Sleep(10*time.Minute + time.Second)
		synctest.Wait()
		if n := len(c.at["a"]); n != 11 {
			t.Errorf("%d calls in 10 minutes, want 11: the first one and one retry per minute", n)
		}
		stop()
	})
}

// If a handler from an earlier registration fails late, the object is not retried, and the later registration does not
// count the failure.
func TestRetry_LateFailureDoesNotCountAgainstALaterRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 1, dynamiccontroller.Config{Workers: 4, MinRetryDelay: time.Second, ResyncPeriod: -1})
		gvr := w.types[0]
		w.put(gvr, "a")
		stop := w.run()
		hang := make(chan struct{})
		earlier, later := newConstantLimiter(time.Second), newConstantLimiter(time.Second)
		w.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			<-hang
			return errOnPurpose
		}, dynamiccontroller.WithRateLimiter(earlier))
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := w.controller.StopServiceGVK(ctx, gvr); err == nil {
			t.Error("StopServiceGVK returned nil while the handler was hanging")
		}
		c := newCalls(succeed)
		w.serve(gvr, c.handle, dynamiccontroller.WithRateLimiter(later))
		close(hang)
		time.Sleep(time.Minute)
		synctest.Wait()
		c.want(t, "the later registration", named("a"))
		id, status := w.id(gvr, "a"), w.status(gvr)
		if earlier.NumRequeues(id)+later.NumRequeues(id)+status.Failing+status.Delayed != 0 {
			t.Errorf("the late failure was counted: %d times by the earlier limiter, %d by the later one; status %+v",
				earlier.NumRequeues(id), later.NumRequeues(id), status)
		}
		stop()
	})
}

// An event can cause a reconcile before a RequeueAfter is due. The outcome of that reconcile replaces the requeue.
func TestRequeueAfter_IsReplacedByTheOutcomeOfAnEarlierCall(t *testing.T) {
	for name, test := range map[string]struct {
		second error
		want   time.Duration // of the last call
		calls  int
	}{
		"a success cancels it":     {nil, 30 * time.Minute, 2},
		"another requeue moves it": {dynamiccontroller.RequeueAfter(2 * time.Hour), 150 * time.Minute, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
				stop := w.run()
				outcomes := []error{dynamiccontroller.RequeueAfter(time.Hour), test.second, nil}
				var c *calls
				c = newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return outcomes[len(c.at["a"])-1] })
				w.serve(w.types[0], c.handle)
				w.put(w.types[0], "a")
				time.Sleep(30 * time.Minute)
				w.put(w.types[0], "a")
				time.Sleep(24 * time.Hour)
				synctest.Wait()
				if at := c.at["a"]; len(at) != test.calls || at[len(at)-1].Sub(at[0]) != test.want {
					t.Errorf("%d calls, the last one after %s; want %d calls, the last one after %s",
						len(at), at[len(at)-1].Sub(at[0]), test.calls, test.want)
				}
				stop()
			})
		})
	}
}

// A swap reconciles all objects in the background. A retry that becomes due in the meantime does not wait for them.
func TestD10_SwapDoesNotDelayARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, MinRetryDelay: time.Second, ResyncPeriod: -1})
		gvr := w.types[0]
		for i := range 1000 {
			w.put(gvr, fmt.Sprint("object-", i))
		}
		stop := w.run()
		w.serve(gvr, succeed)
		var failed, retried time.Time
		handle := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			switch {
			case id.Name() != "failing":
				time.Sleep(10 * time.Millisecond)
			case failed.IsZero():
				failed = time.Now()
				return errOnPurpose
			default:
				retried = time.Now()
			}
			return nil
		}
		w.serve(gvr, handle)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		w.put(gvr, "failing")
		w.serve(gvr, handle)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if delay := retried.Sub(failed); failed.IsZero() || retried.IsZero() || delay > 2*time.Second {
			t.Errorf("the failed object was retried after %s, want at most 2 s", delay)
		}
		stop()
	})
}

// If the predicate rejects the deletion of a parked object, no later event can unpark the object. The deletion itself
// therefore ends the parking.
func TestD8_DroppedDeletionEndsParking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := w.types[0]
		stop := w.run()
		w.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			return dynamiccontroller.Terminal(errOnPurpose)
		}, dynamiccontroller.WithPredicate(func(_ context.Context, _, updated dynamiccontroller.Object) bool {
			return updated != nil
		}))
		w.put(gvr, "a")
		if status := w.status(gvr); status.Parked != 1 {
			t.Fatalf("the status is %+v, want one parked object", status)
		}
		w.delete(gvr, "a")
		if status := w.status(gvr); status.Parked != 0 {
			t.Errorf("after the deletion, the status is %+v, want no parked object", status)
		}
		stop()
	})
}

// The same applies to an object whose deletion is dropped before the object is parked.
func TestD8_DroppedDeletionEndsRetries(t *testing.T) {
	for name, test := range map[string]struct {
		takes time.Duration
		first error
	}{
		"while the handler is running": {time.Second, errOnPurpose},
		"while a retry is pending":     {0, errOnPurpose},
		"before a requeue":             {time.Second, dynamiccontroller.RequeueAfter(time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, 1, retryEverySecond(3))
				gvr := w.types[0]
				stop := w.run()
				var c *calls
				c = newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
					time.Sleep(test.takes)
					if len(c.at["a"]) == 1 {
						return test.first
					}
					return errOnPurpose
				})
				exists := func(_ context.Context, _, updated dynamiccontroller.Object) bool { return updated != nil }
				w.serve(gvr, c.handle, dynamiccontroller.WithPredicate(exists))
				w.put(gvr, "a")
				w.delete(gvr, "a")
				time.Sleep(time.Minute)
				synctest.Wait()
				if status := w.status(gvr); status.Parked+status.Failing+status.Delayed != 0 || len(c.at["a"]) > 2 {
					t.Errorf("the status is %+v after %d calls, want no retries", status, len(c.at["a"]))
				}
				for _, between := range []time.Duration{0, time.Minute} {
					w.put(gvr, "a")
					w.delete(gvr, "a")
					time.Sleep(between)
					w.put(gvr, "a")
					time.Sleep(time.Minute)
					synctest.Wait()
					if status := w.status(gvr); status.Parked != 1 {
						t.Errorf("after the object was created again, the status is %+v, want one parked object", status)
					}
					w.delete(gvr, "a")
				}
				stop()
			})
		})
	}
}

func TestD8_DroppedDeletionEndsTheFirstReconcile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 2, retryEverySecond(3))
		gvr, busy := w.types[0], w.types[1]
		stop := w.run()
		w.serve(busy, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			time.Sleep(time.Second)
			return nil
		})
		c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return errOnPurpose })
		exists := func(_ context.Context, _, updated dynamiccontroller.Object) bool { return updated != nil }
		w.serve(gvr, c.handle, dynamiccontroller.WithPredicate(exists))
		w.put(busy, "b") // occupies the only worker
		w.put(gvr, "a")
		w.delete(gvr, "a")
		time.Sleep(time.Minute)
		synctest.Wait()
		c.want(t, "calls", named("a"))
		if status := w.status(gvr); status.Parked+status.Failing+status.Delayed != 0 {
			t.Errorf("the status is %+v, want no retries", status)
		}
		stop()
	})
}

// A deletion is retried if the predicate that dropped an earlier deletion has been removed.
func TestD8_DeletionIsRetriedAfterThePredicateIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 1, retryEverySecond(3))
		gvr := w.types[0]
		stop := w.run()
		fail := func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return errOnPurpose }
		exists := func(_ context.Context, _, updated dynamiccontroller.Object) bool { return updated != nil }
		w.serve(gvr, fail, dynamiccontroller.WithPredicate(exists))
		w.put(gvr, "a")
		w.delete(gvr, "a") // while a retry is pending
		w.put(gvr, "a")
		w.serve(gvr, fail)
		w.delete(gvr, "a")
		time.Sleep(time.Minute)
		synctest.Wait()
		if status := w.status(gvr); status.Parked != 1 {
			t.Errorf("the status is %+v, want the deleted object to be parked after its retries", status)
		}
		stop()
	})
}

// A panic is logged as an error, even if the object is not retried.
func TestD8_PanicAfterADroppedDeletionIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logged := &logBuffer{}
		w := newFixtureWithLogger(t, logged.logger(0), 1, retryEverySecond(3))
		gvr := w.types[0]
		stop := w.run()
		exists := func(_ context.Context, _, updated dynamiccontroller.Object) bool { return updated != nil }
		w.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			time.Sleep(time.Second)
			panic(unformattable)
		}, dynamiccontroller.WithPredicate(exists))
		w.put(gvr, "a")
		w.delete(gvr, "a")
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := logged.count("Handler panicked"); n != 1 {
			t.Errorf("%d panics are logged, want 1: %q", n, logged.lines)
		}
		stop()
	})
}

// A deletion that the predicate accepts is retried, even if it dropped an earlier deletion of the same object.
func TestD8_AcceptedDeletionIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 1, retryEverySecond(3))
		gvr := w.types[0]
		stop := w.run()
		accepts := false
		w.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return errOnPurpose },
			dynamiccontroller.WithPredicate(func(_ context.Context, _, updated dynamiccontroller.Object) bool {
				return updated != nil || accepts
			}))
		w.put(gvr, "a")
		w.delete(gvr, "a") // while a retry is pending
		w.put(gvr, "a")
		accepts = true
		w.delete(gvr, "a")
		time.Sleep(time.Minute)
		synctest.Wait()
		if status := w.status(gvr); status.Parked != 1 {
			t.Errorf("the status is %+v, want the deleted object to be parked after its retries", status)
		}
		stop()
	})
}

func TestD11_ShutdownTimeoutBoundsTheShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1, ShutdownTimeout: 100 * time.Millisecond})
		hang := make(chan struct{})
		w.put(w.types[0], "a")
		w.put(w.types[1], "b")
		stop := w.start()
		w.serve(w.types[0], func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			<-hang
			return nil
		}, dynamiccontroller.WithPredicate(func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool {
			<-hang
			return true
		}))
		w.put(w.types[0], "a") // the predicate hangs
		began := time.Now()
		err := stop()
		if took := time.Since(began); err == nil || took > 200*time.Millisecond {
			t.Errorf("the run ended after %s with %v, want an error after at most 200 ms", took, err)
		}
		close(hang)
	})
}

// If handlers return just before ShutdownTimeout, watches and functions have another second.
func TestD11_WatchesHaveTimeToEndAfterSlowHandlers(t *testing.T) {
	const limit = 20 * time.Second
	for name, test := range map[string]struct {
		handler, predicate time.Duration // when they return
		took               time.Duration
		fails              bool
	}{
		"the predicate returns in time": {
			handler: limit - time.Millisecond, predicate: limit + time.Second/2, took: limit + time.Second/2,
		},
		"the predicate hangs": {
			handler: limit - time.Millisecond, predicate: time.Hour, took: limit - time.Millisecond + time.Second, fails: true,
		},
		"the predicate hangs, and the handler does not": {
			handler: limit / 2, predicate: time.Hour, took: limit, fails: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1, ShutdownTimeout: limit})
				release := make(chan struct{})
				stop := f.start()
				f.serve(f.types[0], func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
					<-ctx.Done()
					time.Sleep(test.handler)
					return nil
				}, dynamiccontroller.WithPredicate(func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool {
					<-release
					return true
				}))
				f.controller.Enqueue(f.id(f.types[0], "a"))
				f.put(f.types[0], "b")
				began := time.Now()
				time.AfterFunc(test.predicate, func() { close(release) })
				err := stop()
				if took := time.Since(began); took != test.took || (err != nil) != test.fails {
					t.Errorf("the run ended after %s with %v, want %s", took, err, test.took)
				}
				<-release
			})
		})
	}
}

func TestD8_ParkedObjectsAreReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards parked
		parked := map[string]int{}
		w := newFixture(t, 1, retryEverySecond(2), dynamiccontroller.WithParked(func(id dynamiccontroller.ObjectIdentifiers) {
			mu.Lock()
			defer mu.Unlock()
			parked[id.Name()]++
		}))
		stop := w.run()
		c := newCalls(func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			switch id.Name() {
			case "failing":
				return errOnPurpose
			case "terminal":
				return dynamiccontroller.Terminal(errOnPurpose)
			}
			return nil
		})
		w.serve(w.types[0], c.handle)
		for _, name := range []string{"failing", "terminal", "healthy"} {
			w.put(w.types[0], name)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		stop()
		if len(parked) != 2 || parked["failing"] != 1 || parked["terminal"] != 1 {
			t.Errorf("parked: %v, want failing and terminal, once each", parked)
		}
		if n := len(c.at["failing"]); n != 3 {
			t.Errorf("%d calls for the failing object, want 3", n)
		}
	})
}

func TestD8_ParkedRecordsOfAbsentObjectsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 1000
		f := newFixture(t, 1, retryEverySecond(0))
		stop := f.run()
		gvr := f.types[0]
		f.put(gvr, "present")
		f.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			return dynamiccontroller.Terminal(errors.New("cannot clean up"))
		})
		synctest.Wait()
		enqueue := func(from, to int) {
			for i := from; i < to; i++ {
				f.controller.Enqueue(dynamiccontroller.ObjectIdentifiers{GVR: gvr, NamespacedKey: fmt.Sprintf("ns/gone-%d", i)})
				synctest.Wait()
			}
		}
		enqueue(0, limit)
		if n := f.controller.Status()[0].Parked; n != limit+1 {
			t.Fatalf("%d parked, want %d", n, limit+1)
		}
		for range limit { // parking the same object again drops no other
			enqueue(0, 1)
		}
		if n := f.controller.Status()[0].Parked; n != limit+1 {
			t.Errorf("after repeated failures of one object: %d parked, want %d", n, limit+1)
		}
		enqueue(limit, 2*limit)
		status := f.controller.Status()[0]
		if status.Parked != limit+1 {
			t.Errorf("%d parked, want the object in the cache and %d others", status.Parked, limit)
		}
		if newest := status.NewestParked[len(status.NewestParked)-1].Key; newest != fmt.Sprintf("ns/gone-%d", 2*limit-1) {
			t.Errorf("the newest parked object is %s", newest)
		}
		stop()
	})
}
