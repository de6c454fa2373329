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

	"k8s.io/client-go/util/workqueue"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

var errOnPurpose = errors.New("on purpose")

// calls records when the handler was called for each object.
type calls struct {
	mu sync.Mutex
	at map[string][]time.Time
	do func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error
}

func newCalls(do func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error) *calls {
	return &calls{at: map[string][]time.Time{}, do: do}
}

func (c *calls) handle(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	c.mu.Lock()
	c.at[id.Name()] = append(c.at[id.Name()], time.Now())
	c.mu.Unlock()
	return c.do(ctx, id)
}

func TestD6_OutcomesAreRecognizedInWrappedErrors(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("outer: %w", errors.Join(fmt.Errorf("inner: %w", err))) }
	for _, test := range []struct {
		name   string
		err    error
		after  time.Duration // how long until the second call; zero for none
		parked int
	}{
		{name: "success", err: nil},
		{name: "requeue after", err: wrap(dynamiccontroller.RequeueAfter(time.Hour)), after: time.Hour},
		{name: "terminal", err: wrap(dynamiccontroller.Terminal(errOnPurpose)), parked: 1},
		{name: "a terminal nil is parked", err: dynamiccontroller.Terminal(nil), parked: 1},
		{name: "failure", err: errOnPurpose, after: 15 * time.Second},
		{name: "an immediate requeue backs off", err: wrap(dynamiccontroller.RequeueAfter(0)), after: 15 * time.Second},
		{name: "a negative requeue backs off", err: dynamiccontroller.RequeueAfter(-time.Hour), after: 15 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, dynamiccontroller.Config{Workers: 1, MinRetryDelay: 10 * time.Second, MaxRetryDelay: time.Hour, ResyncPeriod: -1})
				stop := w.run()
				c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return test.err })
				w.serve(w.types[0], c.handle)
				w.put(w.types[0], "w")
				time.Sleep(test.after + time.Second)
				synctest.Wait()
				if n := len(c.at["w"]); test.after > 0 && n != 2 || test.after == 0 && n != 1 {
					t.Errorf("%d calls after %s", n, test.after+time.Second)
				}
				if status := w.status(w.types[0]); status.Parked != test.parked {
					t.Errorf("%+v", status)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A RequeueAfter resets the number of failures, even without a delay.
func TestD6_RequeueResetsTheNumberOfFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 1, MinRetryDelay: time.Second, MaxRetryDelay: time.Minute, QueueMaxRetries: 2, ResyncPeriod: -1})
		stop := w.run()
		outcomes := []error{errOnPurpose, errOnPurpose, dynamiccontroller.RequeueAfter(0), errOnPurpose, errOnPurpose, dynamiccontroller.RequeueAfter(time.Second), errOnPurpose, errOnPurpose, errOnPurpose}
		var c *calls
		c = newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return outcomes[len(c.at["w"])-1] })
		w.serve(w.types[0], c.handle)
		w.put(w.types[0], "w")
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(c.at["w"]); n != len(outcomes) {
			t.Errorf("%d calls, want %d", n, len(outcomes))
		}
		if parked := w.status(w.types[0]); parked.Parked != 1 || parked.NewestParked[0].Failures != 3 {
			t.Errorf("%+v", parked)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A thousand types that fail continuously delay another type's first reconcile and first retry only by their turns.
func TestD7_FailuresDoNotDelayOtherTypes(t *testing.T) {
	const failing, shortest = 1000, 100 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, failing+1, dynamiccontroller.Config{Workers: 8, MinRetryDelay: shortest, MaxRetryDelay: shortest, QueueMaxRetries: -1})
		fails := func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return errOnPurpose }
		for _, gvr := range w.types[:failing] {
			for i := range 3 {
				w.put(gvr, fmt.Sprintf("w%d", i))
			}
			w.serve(gvr, fails)
		}
		var c *calls
		c = newCalls(func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			if len(c.at[id.Name()]) == 1 {
				return errOnPurpose
			}
			return nil
		})
		quiet := w.types[failing]
		w.serve(quiet, c.handle)
		stop := w.run()
		time.Sleep(time.Second)
		written := time.Now()
		w.put(quiet, "w")
		time.Sleep(time.Second)
		synctest.Wait()
		if n := len(c.at["w"]); n != 2 {
			t.Fatalf("%d calls", n)
		}
		if waited := c.at["w"][0].Sub(written); waited > shortest {
			t.Errorf("the first reconcile waited %s", waited)
		}
		if waited := c.at["w"][1].Sub(c.at["w"][0]); waited > 2*shortest {
			t.Errorf("the retry waited %s", waited)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestD8_ParkedObjectIsReconciledAgain(t *testing.T) {
	for _, test := range []struct {
		name   string
		resync time.Duration
		revive func(w *world, id dynamiccontroller.ObjectIdentifiers, stop func() error) (restop func() error)
	}{
		{name: "by its next event", resync: -1, revive: func(w *world, id dynamiccontroller.ObjectIdentifiers, stop func() error) func() error {
			w.put(id.GVR, id.Name())
			return stop
		}},
		{name: "by Enqueue", resync: -1, revive: func(w *world, id dynamiccontroller.ObjectIdentifiers, stop func() error) func() error {
			w.controller.Enqueue(id)
			return stop
		}},
		{name: "by a resync", resync: 10 * time.Hour, revive: func(_ *world, _ dynamiccontroller.ObjectIdentifiers, stop func() error) func() error {
			time.Sleep(10*time.Hour + time.Minute)
			return stop
		}},
		{name: "in a new run", resync: -1, revive: func(w *world, _ dynamiccontroller.ObjectIdentifiers, stop func() error) func() error {
			if err := stop(); err != nil {
				w.t.Error(err)
			}
			return w.run()
		}},
		{name: "in a new run, after its deletion", resync: -1, revive: func(w *world, id dynamiccontroller.ObjectIdentifiers, stop func() error) func() error {
			if err := w.client.Tracker().Delete(id.GVR, "default", id.Name()); err != nil {
				w.t.Error(err)
			}
			synctest.Wait() // fails again when its deletion is reconciled
			time.Sleep(time.Hour)
			if err := stop(); err != nil {
				w.t.Error(err)
			}
			return w.run()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const retries = 3
				w := newWorld(t, 1, dynamiccontroller.Config{Workers: 1, MinRetryDelay: time.Second, MaxRetryDelay: time.Second, QueueMaxRetries: retries, ResyncPeriod: test.resync})
				gvr := w.types[0]
				stop := w.run()
				var fixed atomic.Bool
				c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
					if fixed.Load() {
						return nil
					}
					return errOnPurpose
				})
				w.serve(gvr, c.handle)
				w.put(gvr, "w")
				time.Sleep(time.Minute)
				synctest.Wait()
				n := len(c.at["w"])
				if n != retries+1 {
					t.Errorf("%d calls before it was parked", n)
				}
				status := w.status(gvr)
				if status.Parked != 1 || status.Failing != 0 || status.Delayed != 0 || len(status.NewestParked) != 1 {
					t.Fatalf("not parked: %+v", status)
				}
				if p := status.NewestParked[0]; p.Key != "default/w" || p.Failures != retries+1 || p.LastError != errOnPurpose.Error() || p.Since.IsZero() {
					t.Errorf("parked as %+v", p)
				}
				if test.name != "in a new run, after its deletion" {
					fixed.Store(true)
				}
				stop = test.revive(w, w.id(gvr, "w"), stop)
				fixed.Store(true)
				time.Sleep(time.Minute)
				synctest.Wait()
				if len(c.at["w"]) <= n {
					t.Error("it was not reconciled again")
				}
				if status := w.status(gvr); status.Parked != 0 || len(status.NewestParked) != 0 {
					t.Errorf("still parked: %+v", status)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestD8_NegativeQueueMaxRetriesDisablesParking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 1, MinRetryDelay: time.Second, MaxRetryDelay: time.Second, QueueMaxRetries: -1, ResyncPeriod: -1})
		stop := w.run()
		c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return errOnPurpose })
		w.serve(w.types[0], c.handle)
		w.put(w.types[0], "w")
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(c.at["w"]); n < 2400 {
			t.Errorf("%d calls in an hour", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// The status counts all parked objects and has the details of the newest ones.
func TestD8_StatusCountsAllParkedObjects(t *testing.T) {
	const objects = 50
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{ResyncPeriod: -1})
		stop := w.run()
		w.serve(w.types[0], func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			return dynamiccontroller.Terminal(errOnPurpose)
		})
		for i := range objects {
			w.put(w.types[0], fmt.Sprintf("w%02d", i))
		}
		status := w.status(w.types[0])
		if status.Parked != objects || len(status.NewestParked) != 10 || status.NewestParked[9].Key != "default/w49" {
			t.Errorf("%+v", status)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A user's rate limiter replaces the default. Parking does not depend on it.
func TestWithRateLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 1, QueueMaxRetries: 5, ResyncPeriod: -1})
		stop := w.run()
		c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return errOnPurpose })
		w.serve(w.types[0], c.handle, dynamiccontroller.WithRateLimiter(
			workqueue.NewTypedItemExponentialFailureRateLimiter[dynamiccontroller.ObjectIdentifiers](7*time.Second, 7*time.Second)))
		w.put(w.types[0], "w")
		time.Sleep(time.Hour)
		synctest.Wait()
		if at := c.at["w"]; len(at) != 6 || at[1].Sub(at[0]) != 7*time.Second {
			t.Errorf("calls at %v", at)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// If a run ends before it has reconciled a deletion, the next run does, although the cache no longer holds the object.
func TestD1_PendingDeletionIsReconciledByTheNextRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := w.types[0]
		w.put(gvr, "busy")
		w.put(gvr, "goes")
		stop := w.run()
		c := newCalls(func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			if id.Name() == "slow" {
				<-ctx.Done()
			}
			return nil
		})
		w.serve(gvr, c.handle)
		w.controller.Enqueue(w.id(gvr, "slow"))
		synctest.Wait()
		if err := w.client.Tracker().Delete(gvr, "default", "goes"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if status := w.status(gvr); status.Objects != 1 || status.Live != 1 {
			t.Fatalf("%+v", status)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if n := len(c.at["goes"]); n != 1 {
			t.Fatalf("%d calls", n)
		}
		stop = w.run()
		if n := len(c.at["goes"]); n != 2 {
			t.Errorf("%d calls after the next run began", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// interruption is an error like that of a fenced write.
type interruption bool

var _ dynamiccontroller.Interrupted = interruption(true)

func (i interruption) Error() string     { return "not leading" }
func (i interruption) Interrupted() bool { return bool(i) }

// An interrupted call does not count as a failure, even if its error is wrapped, and is repeated.
func TestD6_InterruptedCallDoesNotCountAsAFailure(t *testing.T) {
	for _, test := range []struct {
		name   string
		err    error
		failed bool
	}{
		{"an interruption", interruption(true), false},
		{"a wrapped interruption", errors.Join(errors.New("write"), interruption(true)), false},
		{"an interruption in a terminal error", dynamiccontroller.Terminal(interruption(true)), false},
		{"an error whose Interrupted returns false", interruption(false), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, dynamiccontroller.Config{Workers: 1, QueueMaxRetries: 3, ResyncPeriod: -1})
				stop := w.run()
				c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return test.err })
				w.serve(w.types[0], c.handle)
				w.put(w.types[0], "w")
				time.Sleep(time.Minute)
				synctest.Wait()
				status := w.status(w.types[0])
				if failed := status.Parked > 0; failed != test.failed || !failed && status.Failing > 0 {
					t.Errorf("%+v", status)
				}
				if n := len(c.at["w"]); !test.failed && (n < 30 || n > 70) {
					t.Errorf("%d calls in a minute", n)
				}
				c.do = succeed
				w.controller.Enqueue(w.id(w.types[0], "w"))
				time.Sleep(time.Minute)
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
