package dynamiccontroller_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// constantLimiter returns the same delay for each retry, and counts failures.
type constantLimiter struct {
	delay    time.Duration
	failures map[string]int
}

func (l *constantLimiter) When(id dynamiccontroller.ObjectIdentifiers) time.Duration {
	l.failures[id.NamespacedKey]++
	return l.delay
}
func (l *constantLimiter) Forget(id dynamiccontroller.ObjectIdentifiers) {
	delete(l.failures, id.NamespacedKey)
}
func (l *constantLimiter) NumRequeues(id dynamiccontroller.ObjectIdentifiers) int {
	return l.failures[id.NamespacedKey]
}

func TestRetry_DelaysThatAreNotPositiveAreRaisedToTheMinimum(t *testing.T) {
	for name, delay := range map[string]time.Duration{"zero": 0, "negative": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, dynamiccontroller.Config{Workers: 1, MinRetryDelay: time.Second, QueueMaxRetries: -1, ResyncPeriod: -1})
				stop := w.run()
				c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return errOnPurpose })
				w.serve(w.types[0], c.handle, dynamiccontroller.WithRateLimiter(&constantLimiter{delay: delay, failures: map[string]int{}}))
				w.put(w.types[0], "a")
				time.Sleep(10*time.Second + time.Second/2)
				synctest.Wait()
				if n := len(c.at["a"]); n != 11 {
					t.Errorf("%d calls in 10 s, want one per second", n)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A handler of an earlier registration that fails late neither retries the object nor counts against it.
func TestRetry_LateFailureDoesNotCountAgainstALaterRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 4, MinRetryDelay: time.Second, ResyncPeriod: -1})
		gvr := w.types[0]
		w.put(gvr, "a")
		stop := w.run()
		hang := make(chan struct{})
		earlier := &constantLimiter{delay: time.Second, failures: map[string]int{}}
		w.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			<-hang
			return errOnPurpose
		}, dynamiccontroller.WithRateLimiter(earlier))
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := w.controller.StopServiceGVK(ctx, gvr); err == nil {
			t.Error("the handler has not returned")
		}
		later := &constantLimiter{delay: time.Second, failures: map[string]int{}}
		c := newCalls(succeed)
		w.serve(gvr, c.handle, dynamiccontroller.WithRateLimiter(later))
		close(hang)
		time.Sleep(time.Minute)
		synctest.Wait()
		c.want(t, "by the later registration", named("a"))
		if status := w.status(gvr); len(earlier.failures)+len(later.failures)+status.Failing+status.Delayed != 0 {
			t.Errorf("the late failure counts: %v, %v, %+v", earlier.failures, later.failures, status)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// An event reconciles an object before its RequeueAfter is due. The outcome of that call replaces it.
func TestRequeueAfter_IsReplacedByTheOutcomeOfAnEarlierCall(t *testing.T) {
	for name, test := range map[string]struct {
		second error
		want   time.Duration // of the last call
		calls  int
	}{
		"a success ends it":        {nil, 30 * time.Minute, 2},
		"another requeue moves it": {dynamiccontroller.RequeueAfter(2 * time.Hour), 150 * time.Minute, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
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
					t.Errorf("%d calls, the last one after %s", len(at), at[len(at)-1].Sub(at[0]))
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A swap reconciles all objects in the background. A retry that becomes due in the meantime does not wait for them.
func TestD10_SwapDoesNotDelayARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 1, MinRetryDelay: time.Second, ResyncPeriod: -1})
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
			t.Errorf("retried after %s", delay)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// If the predicate rejects deletions, no event can unpark an object that was deleted.
func TestD8_DroppedDeletionEndsParking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := w.types[0]
		stop := w.run()
		w.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			return dynamiccontroller.Terminal(errOnPurpose)
		}, dynamiccontroller.WithPredicate(func(_ context.Context, _, updated dynamiccontroller.Object) bool { return updated != nil }))
		w.put(gvr, "a")
		if status := w.status(gvr); status.Parked != 1 {
			t.Fatalf("got %+v", status)
		}
		w.delete(gvr, "a")
		if status := w.status(gvr); status.Parked != 0 {
			t.Errorf("got %+v", status)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestD11_ShutdownTimeoutBoundsTheShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1, ShutdownTimeout: 100 * time.Millisecond})
		hang := make(chan struct{})
		w.put(w.types[0], "a")
		w.put(w.types[1], "b")
		stop := w.run()
		w.serve(w.types[0], func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			<-hang
			return nil
		}, dynamiccontroller.WithPredicate(func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool {
			<-hang
			return true
		}))
		w.put(w.types[0], "a") // its predicate hangs
		began := time.Now()
		err := stop()
		if took := time.Since(began); err == nil || took > 200*time.Millisecond {
			t.Errorf("the run ended after %s: %v", took, err)
		}
		close(hang)
	})
}

// recordingMetrics blocks Forget until it is released.
type recordingMetrics struct {
	forgetting, release chan struct{}
	calls               []string
}

func (m *recordingMetrics) Reconciled(schema.GroupVersionResource, dynamiccontroller.Outcome, time.Duration) {
	m.calls = append(m.calls, "reconciled")
}

func (m *recordingMetrics) Forget(schema.GroupVersionResource) {
	close(m.forgetting)
	<-m.release
	m.calls = append(m.calls, "forget")
}

// A late Forget must not remove the metrics of a type that is served again.
func TestMetrics_ForgetDoesNotFollowALaterRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &recordingMetrics{forgetting: make(chan struct{}), release: make(chan struct{})}
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1}, dynamiccontroller.WithMetrics(m))
		gvr := w.types[0]
		w.put(gvr, "a")
		stop := w.run()
		w.serve(gvr, succeed)
		stopped := make(chan error)
		go func() { stopped <- w.controller.StopServiceGVK(context.Background(), gvr) }()
		<-m.forgetting
		w.serve(gvr, succeed)
		time.Sleep(time.Second)
		synctest.Wait()
		close(m.release)
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := len(m.calls); n != 3 || m.calls[1] != "forget" || m.calls[2] != "reconciled" {
			t.Errorf("got %v", m.calls)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A hung handler of an earlier registration returns while the type is served again. Its metrics must be kept.
func TestMetrics_AreKeptWhileTheTypeIsServedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &recordingMetrics{forgetting: make(chan struct{}), release: make(chan struct{})}
		close(m.release)
		f := newWorld(t, 1, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1}, dynamiccontroller.WithMetrics(m))
		gvr := f.types[0]
		f.put(gvr, "a")
		stop := f.run()
		hang := make(chan struct{})
		f.serve(gvr, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			<-hang
			return nil
		})
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := f.controller.StopServiceGVK(ctx, gvr); err == nil {
			t.Error("the handler has not returned")
		}
		f.serve(gvr, succeed)
		close(hang)
		time.Sleep(time.Second)
		synctest.Wait()
		if len(m.calls) != 2 || m.calls[0] != "reconciled" || m.calls[1] != "reconciled" {
			t.Errorf("got %v", m.calls)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
