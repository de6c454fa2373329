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

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A stop also ends later registrations of the type while a handler of an earlier one is still running.
func TestS1_StopEndsAllRegistrationsOfTheType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 8, ResyncPeriod: -1})
		stop := w.run()
		gvr := w.types[0]
		release := make(chan struct{})
		w.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			<-release
			return nil
		})
		w.put(gvr, "hung")
		stopWithTimeout := func() error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			return w.controller.StopServiceGVK(ctx, gvr)
		}
		if err := stopWithTimeout(); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		cancelled := false
		w.serve(gvr, func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			<-ctx.Done()
			cancelled = errors.Is(context.Cause(ctx), dynamiccontroller.ErrServingStopped)
			return nil
		})
		w.controller.Enqueue(w.id(gvr, "other"))
		synctest.Wait()
		if err := stopWithTimeout(); !errors.Is(err, context.DeadlineExceeded) || !cancelled {
			t.Errorf("got %v; the handler of the second registration was cancelled: %v", err, cancelled)
		}
		close(release)
		if err := w.controller.StopServiceGVK(context.Background(), gvr); err != nil {
			t.Error(err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A handler of one controller can stop the same type on another controller.
func TestS1_HandlerCanStopTheTypeOnAnotherController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, other := newWorld(t, 1, dynamiccontroller.Config{}), newWorld(t, 1, dynamiccontroller.Config{})
		stop := one.run()
		other.serve(other.types[0], func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil })
		var err error
		one.serve(one.types[0], func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			err = other.controller.StopServiceGVK(ctx, other.types[0])
			return nil
		})
		one.put(one.types[0], "w")
		if err != nil || len(other.controller.Status()) != 0 {
			t.Errorf("%v, %d types left", err, len(other.controller.Status()))
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A deletion whose event arrives while a run ends is reconciled by a later run, even if a run in between ends at once.
func TestD1_DeletionDuringShutdownIsReconciledByALaterRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := w.types[0]
		w.put(gvr, "goes")
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- w.controller.Run(ctx) }()
		synctest.Wait()
		slow := make(chan struct{})
		c := newCalls(func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			if id.Name() == "slow" {
				<-slow
			}
			return nil
		})
		w.serve(gvr, c.handle)
		w.controller.Enqueue(w.id(gvr, "slow"))
		synctest.Wait()
		cancel()
		synctest.Wait()
		if err := w.client.Tracker().Delete(gvr, "default", "goes"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		close(slow)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ctx, cancel = context.WithCancel(context.Background())
		cancel()
		if err := w.controller.Run(ctx); err != nil { // ends immediately
			t.Error(err)
		}
		if n := len(c.at["goes"]); n != 1 {
			t.Fatalf("%d calls so far", n)
		}
		stop := w.run()
		if n := len(c.at["goes"]); n != 2 {
			t.Errorf("%d calls", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A handler that ends its goroutine, as a test's FailNow does, counts as a failure of its item.
func TestD5_GoexitCountsAsAFailureOfItsItem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 1, MinRetryDelay: time.Second, MaxRetryDelay: time.Second, ResyncPeriod: -1})
		stop := w.run()
		c := newCalls(nil)
		c.do = func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			if len(c.at[id.Name()]) < 4 {
				runtime.Goexit()
			}
			return nil
		}
		w.serve(w.types[0], c.handle)
		w.put(w.types[0], "w")
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(c.at["w"]); n != 4 {
			t.Errorf("%d calls", n)
		}
		if status := w.status(w.types[0]); status.Running != 0 || status.Failing != 0 {
			t.Errorf("%+v", status)
		}
		if err := w.controller.StopServiceGVK(context.Background(), w.types[0]); err != nil {
			t.Error(err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// badMetrics calls methods of the controller and panics.
type badMetrics struct {
	controller **dynamiccontroller.DynamicController
}

func (m badMetrics) Reconciled(schema.GroupVersionResource, dynamiccontroller.Outcome, time.Duration) {
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
		w := newWorld(t, 1, dynamiccontroller.Config{})
		w.controller = dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{Workers: 1, MaxRetryDelay: time.Second, ResyncPeriod: -1},
			w.client, dynamiccontroller.WithMetrics(badMetrics{&w.controller}))
		stop := w.run()
		c := newCalls(nil)
		c.do = func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			if len(c.at[id.Name()]) == 1 {
				return errOnPurpose
			}
			return nil
		}
		w.serve(w.types[0], c.handle, dynamiccontroller.WithRateLimiter(badLimiter{}),
			dynamiccontroller.WithPredicate(func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool { panic("on purpose") }))
		w.put(w.types[0], "w")
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(c.at["w"]); n != 2 {
			t.Errorf("%d calls", n)
		}
		if err := w.controller.StopServiceGVK(context.Background(), w.types[0]); err != nil {
			t.Error(err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A parked object is resynced even if the cache no longer holds it.
func TestD8_ParkedDeletedObjectIsResynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: time.Hour})
		stop := w.run()
		c := newCalls(nil)
		c.do = func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			if len(c.at[id.Name()]) == 2 {
				return dynamiccontroller.Terminal(errOnPurpose)
			}
			return nil
		}
		w.serve(w.types[0], c.handle)
		w.put(w.types[0], "w")
		if err := w.client.Tracker().Delete(w.types[0], "default", "w"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if status := w.status(w.types[0]); status.Parked != 1 || status.Objects != 0 {
			t.Fatalf("%+v", status)
		}
		time.Sleep(time.Hour + time.Minute)
		synctest.Wait()
		if status := w.status(w.types[0]); status.Parked != 0 || len(c.at["w"]) != 3 {
			t.Errorf("%d calls, %+v", len(c.at["w"]), status)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestWaitForGVRSync_ReturnsWhenTheTypeIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{ResyncPeriod: -1})
		gvr := w.types[0]
		handler := func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil }
		w.serve(gvr, handler)
		waited := make(chan error, 1)
		go func() { waited <- w.controller.WaitForGVRSync(context.Background(), gvr) }()
		synctest.Wait()
		if err := w.controller.StopServiceGVK(context.Background(), gvr); err != nil {
			t.Fatal(err)
		}
		if err := <-waited; !errors.Is(err, dynamiccontroller.ErrNotServed) {
			t.Errorf("got %v", err)
		}
	})
}

// Nothing is queued before the first run, and malformed keys are never queued.
func TestEnqueue_IsIgnoredBeforeRunAndForMalformedKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{ResyncPeriod: -1})
		c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil })
		w.serve(w.types[0], c.handle)
		w.controller.Enqueue(w.id(w.types[0], "early"))
		stop := w.run()
		w.controller.Enqueue(dynamiccontroller.ObjectIdentifiers{GVR: w.types[0], NamespacedKey: "a/b/c"}, dynamiccontroller.ObjectIdentifiers{GVR: w.types[0]})
		synctest.Wait()
		if len(c.at) != 0 {
			t.Errorf("calls for %v", c.at)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A predicate that hangs delays the end of a run no longer than handlers can, and makes Run return an error.
func TestD11_HungPredicateIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{ResyncPeriod: -1})
		stop := w.run()
		release := make(chan struct{})
		w.serve(w.types[0], func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil },
			dynamiccontroller.WithPredicate(func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool { <-release; return true }))
		w.put(w.types[0], "w")
		err := stop()
		if err == nil {
			t.Error("Run returned nil while a predicate hangs")
		} else {
			t.Log(err)
		}
		close(release)
		synctest.Wait()
		stop = w.run() // possible once the predicate has returned
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
