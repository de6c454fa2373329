package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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

// times returns the times of the calls for an object.
func (c *calls) times(name string) []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.at[name])
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
		after  time.Duration // time until the second call; zero if no second call is expected
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
				f := newFixture(t, 1, dynamiccontroller.Config{
					Workers: 1, ResyncPeriod: -1, MinRetryDelay: 10 * time.Second, MaxRetryDelay: time.Hour,
				})
				stop := f.run()
				c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return test.err })
				f.serve(f.types[0], c.handle)
				f.put(f.types[0], "w")
				time.Sleep(test.after + time.Second)
				synctest.Wait()
				if n := len(c.at["w"]); test.after > 0 && n != 2 || test.after == 0 && n != 1 {
					t.Errorf("the handler was called %d times within %s", n, test.after+time.Second)
				}
				if status := f.status(f.types[0]); status.Parked != test.parked {
					t.Errorf("the status is %+v", status)
				}
				stop()
			})
		})
	}
}

// A RequeueAfter resets the number of failures, even if it has no delay.
func TestD6_RequeueResetsTheNumberOfFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, retryEverySecond(2))
		stop := f.run()
		outcomes := []error{
			errOnPurpose, errOnPurpose, dynamiccontroller.RequeueAfter(0),
			errOnPurpose, errOnPurpose, dynamiccontroller.RequeueAfter(time.Second),
			errOnPurpose, errOnPurpose, errOnPurpose,
		}
		var c *calls
		c = newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return outcomes[len(c.at["w"])-1] })
		f.serve(f.types[0], c.handle)
		f.put(f.types[0], "w")
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(c.at["w"]); n != len(outcomes) {
			t.Errorf("%d calls, want %d", n, len(outcomes))
		}
		if parked := f.status(f.types[0]); parked.Parked != 1 || parked.NewestParked[0].Failures != 3 {
			t.Errorf("the status is %+v, want an object that was parked after 3 failures", parked)
		}
		stop()
	})
}

// If a thousand types fail continuously, another type's first reconcile and first retry wait only for the turns of
// these types.
func TestD7_FailuresDoNotDelayOtherTypes(t *testing.T) {
	const failing, shortest = 1000, 100 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, failing+1, dynamiccontroller.Config{
			Workers: 8, QueueMaxRetries: -1, MinRetryDelay: shortest, MaxRetryDelay: shortest,
		})
		fails := func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return errOnPurpose }
		for _, gvr := range f.types[:failing] {
			for i := range 3 {
				f.put(gvr, fmt.Sprintf("w%d", i))
			}
			f.serve(gvr, fails)
		}
		var c *calls
		c = newCalls(func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			if len(c.at[id.Name()]) == 1 {
				return errOnPurpose
			}
			return nil
		})
		quiet := f.types[failing]
		f.serve(quiet, c.handle)
		stop := f.run()
		time.Sleep(time.Second)
		written := time.Now()
		f.put(quiet, "w")
		time.Sleep(time.Second)
		synctest.Wait()
		if n := len(c.at["w"]); n != 2 {
			t.Fatalf("%d calls, want a first reconcile and a retry", n)
		}
		if waited := c.at["w"][0].Sub(written); waited > shortest {
			t.Errorf("the first reconcile waited %s, want at most %s", waited, shortest)
		}
		if waited := c.at["w"][1].Sub(c.at["w"][0]); waited > 2*shortest {
			t.Errorf("the retry waited %s, want at most %s", waited, 2*shortest)
		}
		stop()
	})
}

const afterDeletion = "in a new run, after its deletion"

type stopFunc = func()

// parkedCase is a case of TestD8_ParkedObjectIsReconciledAgain.
type parkedCase struct {
	name   string
	resync time.Duration
	// revive causes another reconcile of the object. It returns a function that ends the run that is then current.
	revive func(f *fixture, id dynamiccontroller.ObjectIdentifiers, stop stopFunc) stopFunc
}

// run parks an object and revives it.
func (test parkedCase) run(t *testing.T) {
	const retries = 3
	config := retryEverySecond(retries)
	config.ResyncPeriod = test.resync
	f := newFixture(t, 1, config)
	gvr := f.types[0]
	stop := f.run()
	var fixed atomic.Bool
	c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
		if fixed.Load() {
			return nil
		}
		return errOnPurpose
	})
	f.serve(gvr, c.handle)
	f.put(gvr, "w")
	time.Sleep(time.Minute)
	synctest.Wait()
	n := len(c.at["w"])
	if n != retries+1 {
		t.Errorf("%d calls before the object was parked, want %d", n, retries+1)
	}
	status := f.status(gvr)
	if status.Parked != 1 || status.Failing != 0 || status.Delayed != 0 || len(status.NewestParked) != 1 {
		t.Fatalf("the status is %+v, want one parked object", status)
	}
	p := status.NewestParked[0]
	if p.Key != "default/w" || p.Failures != retries+1 || p.LastError != errOnPurpose.Error() || p.Since.IsZero() {
		t.Errorf("the parked object is %+v, want default/w with %d failures", p, retries+1)
	}
	if test.name != afterDeletion {
		fixed.Store(true)
	}
	stop = test.revive(f, f.id(gvr, "w"), stop)
	fixed.Store(true)
	time.Sleep(time.Minute)
	synctest.Wait()
	if len(c.at["w"]) <= n {
		t.Error("the object was not reconciled again")
	}
	if status := f.status(gvr); status.Parked != 0 || len(status.NewestParked) != 0 {
		t.Errorf("the status is %+v, want no parked object", status)
	}
	stop()
}

func TestD8_ParkedObjectIsReconciledAgain(t *testing.T) {
	for _, test := range []parkedCase{
		{"by its next event", -1, func(f *fixture, id dynamiccontroller.ObjectIdentifiers, stop stopFunc) stopFunc {
			f.put(id.GVR, id.Name())
			return stop
		}},
		{"by Enqueue", -1, func(f *fixture, id dynamiccontroller.ObjectIdentifiers, stop stopFunc) stopFunc {
			f.controller.Enqueue(id)
			return stop
		}},
		{"by a resync", 10 * time.Hour, func(_ *fixture, _ dynamiccontroller.ObjectIdentifiers, stop stopFunc) stopFunc {
			time.Sleep(10*time.Hour + time.Minute)
			return stop
		}},
		{"in a new run", -1, func(f *fixture, _ dynamiccontroller.ObjectIdentifiers, stop stopFunc) stopFunc {
			stop()
			return f.run()
		}},
		{afterDeletion, -1, func(f *fixture, id dynamiccontroller.ObjectIdentifiers, stop stopFunc) stopFunc {
			if err := f.client.Tracker().Delete(id.GVR, "default", id.Name()); err != nil {
				f.t.Error(err)
			}
			synctest.Wait() // The object fails again when its deletion is reconciled.
			time.Sleep(time.Hour)
			stop()
			return f.run()
		}},
	} {
		t.Run(test.name, func(t *testing.T) { synctest.Test(t, test.run) })
	}
}

func TestD8_NegativeQueueMaxRetriesDisablesParking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, retryEverySecond(-1))
		stop := f.run()
		c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return errOnPurpose })
		f.serve(f.types[0], c.handle)
		f.put(f.types[0], "w")
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(c.at["w"]); n < 2400 {
			t.Errorf("%d calls in an hour, want at least 2400", n)
		}
		stop()
	})
}

// The status counts all parked objects and contains details of the newest ones.
func TestD8_StatusCountsAllParkedObjects(t *testing.T) {
	const objects = 50
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{ResyncPeriod: -1})
		stop := f.run()
		f.serve(f.types[0], func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
			return dynamiccontroller.Terminal(errOnPurpose)
		})
		for i := range objects {
			f.put(f.types[0], fmt.Sprintf("w%02d", i))
		}
		status := f.status(f.types[0])
		if status.Parked != objects || len(status.NewestParked) != 10 || status.NewestParked[9].Key != "default/w49" {
			t.Errorf("the status is %+v, want all objects to be parked and details of the newest ten", status)
		}
		stop()
	})
}

// Parking does not depend on the rate limiter.
func TestWithRateLimiter_ReplacesTheDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, QueueMaxRetries: 5, ResyncPeriod: -1})
		stop := f.run()
		c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return errOnPurpose })
		f.serve(f.types[0], c.handle, dynamiccontroller.WithRateLimiter(newConstantLimiter(7*time.Second)))
		f.put(f.types[0], "w")
		time.Sleep(time.Hour)
		synctest.Wait()
		if at := c.at["w"]; len(at) != 6 || at[1].Sub(at[0]) != 7*time.Second {
			t.Errorf("the handler was called at %v, want 6 calls at intervals of 7 s", at)
		}
		stop()
	})
}

// If a run ends before it has reconciled a deleted object, the next run reconciles the object, even though the cache no
// longer holds it.
func TestD1_PendingDeletionIsReconciledByTheNextRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		f.put(gvr, "busy")
		f.put(gvr, "goes")
		stop := f.run()
		c := newCalls(func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			if id.Name() == "slow" {
				<-ctx.Done()
			}
			return nil
		})
		f.serve(gvr, c.handle)
		f.controller.Enqueue(f.id(gvr, "slow"))
		synctest.Wait()
		if err := f.client.Tracker().Delete(gvr, "default", "goes"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if status := f.status(gvr); status.Objects != 1 || status.Live != 1 {
			t.Fatalf("the status is %+v, want one cached object and the deleted one in the queue", status)
		}
		stop()
		if n := len(c.at["goes"]); n != 1 {
			t.Fatalf("%d calls before the next run, want 1", n)
		}
		stop = f.run()
		if n := len(c.at["goes"]); n != 2 {
			t.Errorf("%d calls after the next run began, want 2", n)
		}
		stop()
	})
}

// interruption is an error that implements Interrupted, like the error from a rejected write.
type interruption bool

var _ dynamiccontroller.Interrupted = interruption(true)

func (i interruption) Error() string     { return "not leading" }
func (i interruption) Interrupted() bool { return bool(i) }

// An interrupted call is repeated and does not count as a failure, even if its error is wrapped.
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
				f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, QueueMaxRetries: 3, ResyncPeriod: -1})
				stop := f.run()
				c := newCalls(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return test.err })
				f.serve(f.types[0], c.handle)
				f.put(f.types[0], "w")
				time.Sleep(time.Minute)
				synctest.Wait()
				status := f.status(f.types[0])
				if failed := status.Parked > 0; failed != test.failed || !failed && status.Failing > 0 {
					t.Errorf("the status is %+v", status)
				}
				if n := len(c.at["w"]); !test.failed && (n < 30 || n > 70) {
					t.Errorf("%d calls in a minute, want about one per second", n)
				}
				c.do = succeed
				f.controller.Enqueue(f.id(f.types[0], "w"))
				time.Sleep(time.Minute)
				stop()
			})
		})
	}
}
