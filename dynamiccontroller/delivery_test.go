package dynamiccontroller_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// StopServiceGVK also stops a later registration of the type while a handler from an earlier one is still running.
func TestS1_StopEndsAllRegistrationsOfTheType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 8, ResyncPeriod: -1})
		stop := f.run()
		gvr := f.types[0]
		release := make(chan struct{})
		f.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			<-release
			return nil
		})
		f.put(gvr, "hung")
		stopWithTimeout := func() error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			return f.controller.StopServiceGVK(ctx, gvr)
		}
		if err := stopWithTimeout(); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("StopServiceGVK returned %v, want DeadlineExceeded", err)
		}
		cancelled := false
		f.serve(gvr, func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			<-ctx.Done()
			cancelled = errors.Is(context.Cause(ctx), dynamiccontroller.ErrServingStopped)
			return nil
		})
		f.controller.Enqueue(f.id(gvr, "other"))
		synctest.Wait()
		if err := stopWithTimeout(); !errors.Is(err, context.DeadlineExceeded) || !cancelled {
			t.Errorf("StopServiceGVK returned %v, want DeadlineExceeded; it cancelled the second handler: %t, want true",
				err, cancelled)
		}
		close(release)
		if err := f.controller.StopServiceGVK(context.Background(), gvr); err != nil {
			t.Error(err)
		}
		stop()
	})
}

// A handler of one controller can stop the same type on another controller.
func TestS1_HandlerCanStopTheTypeOnAnotherController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, other := newFixture(t, 1, dynamiccontroller.Config{}), newFixture(t, 1, dynamiccontroller.Config{})
		stop := one.run()
		other.serve(other.types[0], succeed)
		var err error
		one.serve(one.types[0], func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			err = other.controller.StopServiceGVK(ctx, other.types[0])
			return nil
		})
		one.put(one.types[0], "w")
		if err != nil || len(other.controller.Status()) != 0 {
			t.Errorf("StopServiceGVK returned %v, and the other controller still serves %d types",
				err, len(other.controller.Status()))
		}
		stop()
	})
}

// If the event for a deletion arrives while a run is ending, a later run reconciles the deleted object, even if a run
// in between ends immediately.
func TestD1_DeletionDuringShutdownIsReconciledByALaterRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		f.put(gvr, "goes")
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- f.controller.Run(ctx) }()
		synctest.Wait()
		slow := make(chan struct{})
		c := newCalls(func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			if id.Name() == "slow" {
				<-slow
			}
			return nil
		})
		f.serve(gvr, c.handle)
		f.controller.Enqueue(f.id(gvr, "slow"))
		synctest.Wait()
		cancel()
		synctest.Wait()
		if err := f.client.Tracker().Delete(gvr, "default", "goes"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		close(slow)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ctx, cancel = context.WithCancel(context.Background())
		cancel()
		if err := f.controller.Run(ctx); err != nil { // ends immediately
			t.Error(err)
		}
		if n := len(c.at["goes"]); n != 1 {
			t.Fatalf("%d calls during the first run, want 1", n)
		}
		stop := f.run()
		if n := len(c.at["goes"]); n != 2 {
			t.Errorf("%d calls after the next run began, want 2", n)
		}
		stop()
	})
}

// If a handler ends its goroutine, for example by calling FailNow in a test, the reconcile counts as a failure.
func TestD5_GoexitCountsAsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, retryEverySecond(20))
		stop := f.run()
		c := newCalls(nil)
		c.do = func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			if len(c.at[id.Name()]) < 4 {
				runtime.Goexit()
			}
			return nil
		}
		f.serve(f.types[0], c.handle)
		f.put(f.types[0], "w")
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(c.at["w"]); n != 4 {
			t.Errorf("the handler was called %d times, want 3 failures and one success", n)
		}
		if status := f.status(f.types[0]); status.Running != 0 || status.Failing != 0 {
			t.Errorf("the status is %+v, want no running and no failing objects", status)
		}
		if err := f.controller.StopServiceGVK(context.Background(), f.types[0]); err != nil {
			t.Error(err)
		}
		stop()
	})
}

// exitingMetrics implements Metrics with methods that end their goroutine.
type exitingMetrics struct{ dynamiccontroller.NoMetrics }

func (exitingMetrics) Reconciled(dynamiccontroller.Reconcile) { runtime.Goexit() }
func (exitingMetrics) Synced(dynamiccontroller.Sync)          { runtime.Goexit() }
func (exitingMetrics) Forget(schema.GroupVersionResource)     { runtime.Goexit() }

// exitingLimiter is a rate limiter that ends its goroutine.
type exitingLimiter struct {
	workqueue.TypedRateLimiter[dynamiccontroller.ObjectIdentifiers]
}

func (exitingLimiter) When(dynamiccontroller.ObjectIdentifiers) time.Duration {
	runtime.Goexit()
	return 0
}

func TestD5_GoexitInOtherUserCodeAffectsNeitherRetriesNorStop(t *testing.T) {
	for name, test := range map[string]struct {
		err     error
		retried bool
		options []dynamiccontroller.Option
		serve   []dynamiccontroller.ServeOption
	}{
		"Metrics": {options: []dynamiccontroller.Option{dynamiccontroller.WithMetrics(exitingMetrics{})}},
		"the Parked function": {
			err: dynamiccontroller.Terminal(errOnPurpose),
			options: []dynamiccontroller.Option{
				dynamiccontroller.WithParked(func(dynamiccontroller.ObjectIdentifiers) { runtime.Goexit() }),
			},
		},
		"a rate limiter": {
			err:     errOnPurpose,
			retried: true,
			serve:   []dynamiccontroller.ServeOption{dynamiccontroller.WithRateLimiter(exitingLimiter{})},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1}, test.options...)
				gvr := f.types[0]
				stop := f.run()
				for range 2 { // the worker and the type's metrics are used again
					c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return test.err })
					f.serve(gvr, c.handle, test.serve...)
					f.put(gvr, "a")
					time.Sleep(10 * time.Minute)
					synctest.Wait()
					if n := len(c.at["a"]); n == 0 || n == 1 && test.retried {
						t.Errorf("the handler was called %d times", n)
					}
					leftovers := f.controller.Leftovers(gvr)
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					if err := f.controller.StopServiceGVK(ctx, gvr); err != nil {
						t.Error(err)
					}
					cancel()
					if left := leftovers(); left != "" {
						t.Errorf("left after StopServiceGVK: %s", left)
					}
				}
				stop()
			})
		})
	}
}

// A MapFunc can end its goroutine, too, for example when a run starts or when its watch is replaced.
func TestD5_GoexitInAMapFuncAffectsNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 4, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		parent, child, other, unrelated := f.types[0], f.types[1], f.types[2], f.types[3]
		f.put(parent, "a")
		f.put(child, "c")
		f.put(other, "o", f.id(parent, "a"))
		exits := 0
		exiting := func(context.Context, dynamiccontroller.Object) []string {
			exits++
			runtime.Goexit()
			return nil
		}
		stopWatches := f.runWatches()
		c, d := newCalls(succeed), newCalls(succeed)
		f.serve(parent, c.handle, dynamiccontroller.Watches(child, exiting), dynamiccontroller.Owns(other))
		f.serve(unrelated, d.handle)
		stop := f.run()
		time.Sleep(time.Minute)
		synctest.Wait()
		c.want(t, "after the run began", named("a"))
		f.serve(parent, c.handle, dynamiccontroller.Owns(other),
			dynamiccontroller.Watches(child, exiting, dynamiccontroller.WithTransform(annotating("a"))))
		time.Sleep(time.Minute)
		synctest.Wait()
		c.want(t, "after the swap", named("a"))
		f.put(other, "o", f.id(parent, "a"))
		c.want(t, "after a change to another watched type", named("a"))
		f.put(unrelated, "u")
		d.want(t, "the other served type", named("u"))
		if exits < 2 {
			t.Errorf("the MapFunc was called %d times, want at least 2", exits)
		}
		if err := f.controller.StopServiceGVK(context.Background(), parent); err != nil {
			t.Error(err)
		}
		stop()
		stopWatches()
	})
}

// A swap can call the MapFunc of a new watch that it shares with another type.
func TestD5_GoexitDuringASwapDoesNotPauseTheType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 4, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		parent, child, other, sharing := f.types[0], f.types[1], f.types[2], f.types[3]
		f.put(parent, "a")
		f.put(child, "c")
		stop := f.run()
		f.serve(sharing, succeed, dynamiccontroller.Owns(child))
		c := newCalls(succeed)
		f.serve(parent, c.handle)
		c.want(t, "before the swap", named("a"))
		exiting := func(context.Context, dynamiccontroller.Object) []string {
			runtime.Goexit()
			return nil
		}
		f.serve(parent, c.handle, dynamiccontroller.Watches(child, exiting), dynamiccontroller.Owns(other))
		time.Sleep(time.Minute)
		synctest.Wait()
		c.want(t, "after the swap", named("a"))
		f.put(other, "o", f.id(parent, "a"))
		c.want(t, "after a change to another new watch", named("a"))
		stop()
	})
}

// badMetrics calls methods of the controller and panics.
type badMetrics struct {
	dynamiccontroller.NoMetrics
	controller **dynamiccontroller.DynamicController
}

func (m badMetrics) Reconciled(dynamiccontroller.Reconcile) {
	_ = (*m.controller).Status()
	panic("on purpose")
}

func (m badMetrics) Forget(schema.GroupVersionResource) {
	_ = (*m.controller).Status()
	panic("on purpose")
}

// badLimiter panics.
type badLimiter struct{}

func (badLimiter) When(dynamiccontroller.ObjectIdentifiers) time.Duration { panic("on purpose") }
func (badLimiter) Forget(dynamiccontroller.ObjectIdentifiers)             { panic("on purpose") }
func (badLimiter) NumRequeues(dynamiccontroller.ObjectIdentifiers) int    { return 0 }

func TestD5_MetricsRateLimiterAndPredicateCanPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{})
		config := dynamiccontroller.Config{Workers: 1, MaxRetryDelay: time.Second, ResyncPeriod: -1}
		f.controller = dynamiccontroller.NewDynamicController(logr.Discard(), config, f.client,
			dynamiccontroller.WithMetrics(badMetrics{controller: &f.controller}))
		stop := f.run()
		c := newCalls(nil)
		c.do = func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			if len(c.at[id.Name()]) == 1 {
				return errOnPurpose
			}
			return nil
		}
		predicate := func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool { panic("on purpose") }
		f.serve(f.types[0], c.handle, dynamiccontroller.WithRateLimiter(badLimiter{}),
			dynamiccontroller.WithPredicate(predicate))
		f.put(f.types[0], "w")
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(c.at["w"]); n != 2 {
			t.Errorf("the handler was called %d times, want one failure and one success", n)
		}
		if err := f.controller.StopServiceGVK(context.Background(), f.types[0]); err != nil {
			t.Error(err)
		}
		stop()
	})
}

// A parked object is resynced even if the cache no longer holds it.
func TestD8_ParkedDeletedObjectIsResynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: time.Hour})
		stop := f.run()
		c := newCalls(nil)
		c.do = func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			if len(c.at[id.Name()]) == 2 {
				return dynamiccontroller.Terminal(errOnPurpose)
			}
			return nil
		}
		f.serve(f.types[0], c.handle)
		f.put(f.types[0], "w")
		if err := f.client.Tracker().Delete(f.types[0], "default", "w"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if status := f.status(f.types[0]); status.Parked != 1 || status.Objects != 0 {
			t.Fatalf("the status is %+v, want one parked object and an empty cache", status)
		}
		time.Sleep(time.Hour + time.Minute)
		synctest.Wait()
		if status := f.status(f.types[0]); status.Parked != 0 || len(c.at["w"]) != 3 {
			t.Errorf("%d calls and the status %+v, want 3 calls and no parked object", len(c.at["w"]), status)
		}
		stop()
	})
}

func TestWaitForGVRSync_ReturnsWhenTheTypeIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{ResyncPeriod: -1})
		gvr := f.types[0]
		handler := succeed
		f.serve(gvr, handler)
		waited := make(chan error, 1)
		go func() { waited <- f.controller.WaitForGVRSync(context.Background(), gvr) }()
		synctest.Wait()
		if err := f.controller.StopServiceGVK(context.Background(), gvr); err != nil {
			t.Fatal(err)
		}
		if err := <-waited; !errors.Is(err, dynamiccontroller.ErrNotServed) {
			t.Errorf("WaitForGVRSync returned %v, want ErrNotServed", err)
		}
	})
}

// Nothing is queued before the first run, and malformed keys are never queued.
func TestEnqueue_IsIgnoredBeforeRunAndForMalformedKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{ResyncPeriod: -1})
		c := newCalls(succeed)
		f.serve(f.types[0], c.handle)
		f.controller.Enqueue(f.id(f.types[0], "early"))
		stop := f.run()
		f.controller.Enqueue(
			dynamiccontroller.ObjectIdentifiers{GVR: f.types[0], NamespacedKey: "a/b/c"},
			dynamiccontroller.ObjectIdentifiers{GVR: f.types[0]})
		synctest.Wait()
		if len(c.at) != 0 {
			t.Errorf("the handler was called for %v, want no calls", c.at)
		}
		stop()
	})
}

// A hung predicate delays the end of a run no longer than a hung handler does, and makes Run return an error.
func TestD11_HungPredicateIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{ResyncPeriod: -1})
		stop := f.start()
		release := make(chan struct{})
		predicate := func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool {
			<-release
			return true
		}
		f.serve(f.types[0], succeed, dynamiccontroller.WithPredicate(predicate))
		f.put(f.types[0], "w")
		if err := stop(); err == nil {
			t.Error("Run returned nil while a predicate was hanging")
		}
		close(release)
		synctest.Wait()
		f.run()() // Run can be called again, because the predicate has returned.
	})
}

// A slow predicate can have changes waiting when the run ends. They are not lost: the next run reconciles objects whose
// deletion was not processed yet, although they are no longer in the cache.
func TestD1_ChangesThatWaitForAPredicateAtTheEndOfARunAreNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		names := []string{"a", "b", "c"}
		for _, name := range names {
			f.put(gvr, name)
		}
		stopWatches := f.runWatches()
		c := newCalls(succeed)
		slow := func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool {
			time.Sleep(100 * time.Millisecond)
			return true
		}
		f.serve(gvr, c.handle, dynamiccontroller.WithPredicate(slow))
		stop := f.run()
		c.want(t, "the first run", named(names...))
		for _, name := range names {
			f.delete(gvr, name)
		}
		stop()
		c.want(t, "at the end of the run", named())
		stop = f.run()
		c.want(t, "the next run", named(names...))
		stop()
		stopWatches()
	})
}
