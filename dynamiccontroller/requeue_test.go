package dynamiccontroller_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// lines are the lines of a log.
type lines struct {
	mu   sync.Mutex // guards text
	text []string
}

func (l *lines) logger(verbosity int) logr.Logger {
	return funcr.New(func(_, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.text = append(l.text, args)
	}, funcr.Options{Verbosity: verbosity})
}

func (l *lines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.text)
}

// contain reports whether a line contains all parts.
func (l *lines) contain(parts ...string) bool {
	return slices.ContainsFunc(l.all(), func(line string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) })
	})
}

// The shortest requeue is not a failure, does not back off, and keeps the reason.
func TestRequeueAfter_TheShortestDelayDoesNotBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lines
		m := &completed{}
		f := newFixtureWithLogger(t, log.logger(1), 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1},
			dynamiccontroller.WithMetrics(m))
		stop := f.run()
		var order []string
		f.serve(f.types[0], func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			order = append(order, id.Name())
			if id.Name() == "again" && len(order) < 20 {
				return fmt.Errorf("the policy is missing: %w", dynamiccontroller.RequeueAfter(1))
			}
			return nil
		})
		began := time.Now()
		f.controller.Enqueue(f.id(f.types[0], "again"), f.id(f.types[0], "other"))
		time.Sleep(time.Microsecond)
		synctest.Wait()
		if took := time.Since(began); len(order) < 20 {
			t.Errorf("%d calls in %s, want many without a backoff", len(order), took)
		}
		if !slices.Contains(order[:3], "other") {
			t.Errorf("the order is %v, want the other object to take its turn", order)
		}
		if status := f.status(f.types[0]); status.Failing+status.Delayed+status.Parked != 0 {
			t.Errorf("the status is %+v", status)
		}
		if !log.contain(`"level"=1`, "Requeued", "default/again", "the policy is missing: requeue after 1ns") {
			t.Errorf("the reason is not logged: %q", log.all())
		}
		if first := m.reconciles[0]; first.Outcome != dynamiccontroller.OutcomeRequeue {
			t.Errorf("the outcome is %s", first.Outcome)
		}
		stop()
	})
	wrapped := fmt.Errorf("x: %w", dynamiccontroller.RequeueAfter(time.Second))
	if after, ok := dynamiccontroller.RequeueDelay(wrapped); after != time.Second || !ok {
		t.Errorf("RequeueDelay returned %s, %t", after, ok)
	}
}

// An event cancels a pending requeue, unless requeues are kept.
func TestKeepRequeues_AnEarlierReconcileDoesNotCancelTheDelay(t *testing.T) {
	for _, keep := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
			stop := f.run()
			began := time.Now()
			var at []time.Duration
			var opts []dynamiccontroller.ServeOption
			want := []time.Duration{0, 10 * time.Minute}
			if keep {
				opts, want = append(opts, dynamiccontroller.KeepRequeues()), append(want, time.Hour)
			}
			f.serve(f.types[0], func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
				at = append(at, time.Since(began))
				if len(at) == 1 {
					return dynamiccontroller.RequeueAfter(time.Hour)
				}
				return nil
			}, opts...)
			f.put(f.types[0], "w")
			time.Sleep(10 * time.Minute)
			f.put(f.types[0], "w")
			time.Sleep(10 * time.Hour)
			synctest.Wait()
			if !slices.Equal(at, want) {
				t.Errorf("keep %t: called at %v, want %v", keep, at, want)
			}
			stop()
		})
	}
}

// A delay that is kept does not retry an object that has been parked in the meantime.
func TestKeepRequeues_ParkedObjectIsNotRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		stop := f.run()
		c := newCalls(nil)
		c.do = func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			if len(c.at[id.Name()]) == 1 {
				return dynamiccontroller.RequeueAfter(time.Hour)
			}
			return dynamiccontroller.Terminal(errOnPurpose)
		}
		f.serve(f.types[0], c.handle, dynamiccontroller.KeepRequeues())
		f.put(f.types[0], "w")
		f.put(f.types[0], "w")
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if n := len(c.at["w"]); n != 2 || f.status(f.types[0]).Parked != 1 {
			t.Errorf("%d calls, and the status is %+v; want two calls and a parked object", n, f.status(f.types[0]))
		}
		stop()
	})
}

func TestEnqueueAfter_ReconcilesAfterTheDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lines
		f := newFixtureWithLogger(t, log.logger(1), 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		f.serve(f.types[0], succeed)
		f.controller.EnqueueAfter(time.Second, f.id(f.types[0], "early"))
		if !log.contain("Object not enqueued", "default/early", "no run serves the type") {
			t.Errorf("an object that was dropped is not logged: %q", log.all())
		}
		stop := f.run()
		began := time.Now()
		c := newCalls(succeed)
		f.serve(f.types[0], c.handle)
		f.controller.EnqueueAfter(time.Hour, f.id(f.types[0], "w"))
		f.controller.EnqueueAfter(time.Minute, f.id(f.types[0], "w"), f.id(f.types[0], "v"))
		f.controller.EnqueueAfter(-time.Minute, f.id(f.types[0], "now"))
		c.want(t, "at once", named("now"))
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if at := c.at["w"]; len(at) != 1 || at[0].Sub(began) != time.Minute || len(c.at["v"]) != 1 {
			t.Errorf("the calls are %v, want one after the shortest delay", c.at)
		}
		stop()
	})
}

func TestQueueLen_CountsWaitingObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		h := newHung()
		stop := f.run()
		for _, gvr := range f.types {
			f.serve(gvr, h.handle, dynamiccontroller.WithReconcileTimeout(-1))
			f.enqueue(gvr, 5)
		}
		f.controller.EnqueueAfter(time.Hour, f.id(f.types[0], "delayed"))
		if got := f.controller.QueueLen(); got != 9 {
			t.Errorf("got %d, want all objects but the running one", got)
		}
		close(h.release)
		synctest.Wait()
		if got := f.controller.QueueLen(); got != 0 {
			t.Errorf("got %d after all objects were reconciled", got)
		}
		stop()
	})
}
