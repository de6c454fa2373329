package integration

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// An object whose old handler still runs, past its timeout, its registration and its run, waits for it.
func TestD2_NeverTwoCallsAtOnceForAnObject(t *testing.T) {
	h := newHarness(t)
	gvr := h.define(h.newType())
	h.apply(gvr, "deaf", 0)
	deaf := h.id(gvr, "deaf")
	c := h.controller(dynamiccontroller.Config{Workers: 4, ShutdownTimeout: 50 * time.Millisecond})
	stop := h.run(c)
	release := make(chan struct{})
	var timedOut atomic.Bool
	calls := newRecorder(t, func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		if id != deaf {
			return nil
		}
		<-ctx.Done()
		timedOut.CompareAndSwap(false, context.Cause(ctx) == dynamiccontroller.ErrReconcileTimeout)
		<-release
		return nil
	})
	serve := func() {
		h.serve(c, gvr, calls.handle, dynamiccontroller.WithReconcileTimeout(20*time.Millisecond))
	}
	// others shows that a call for another object, which was asked for after one for deaf, was made.
	others := func() {
		t.Helper()
		c.Enqueue(deaf)
		h.fence(gvr, calls)
		if n := calls.count(deaf); n != 1 {
			t.Fatalf("%d calls", n)
		}
	}
	serve()
	calls.waitFor(deaf, 1)
	h.eventually("the call times out", func() error {
		if !timedOut.Load() {
			return context.DeadlineExceeded
		}
		return nil
	})
	others()

	serve() // a swap
	others()

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := c.StopServiceGVK(ctx, gvr); err == nil {
		t.Fatal("the stop did not wait")
	}
	serve() // another registration
	others()

	if err := stop(); err == nil || !strings.Contains(err.Error(), deaf.String()) {
		t.Fatalf("want an error that names %s, got %v", deaf, err)
	}
	h.run(c) // another run
	others()

	close(release)
	calls.waitFor(deaf, 2)
}
