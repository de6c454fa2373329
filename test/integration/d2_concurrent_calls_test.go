package integration

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A handler call that exceeds its timeout can still be running after the handler is swapped, after the registration is
// removed, and after the run ends. Even then, the next call for the same object must wait until that call has returned.
func TestD2_NoConcurrentCallsForAnObject(t *testing.T) {
	h := newHarness(t)
	gvr := h.widgets()
	h.apply(gvr, "hanging", 0)
	hanging := h.id(gvr, "hanging")
	c := h.controller(dynamiccontroller.Config{Workers: 4, ShutdownTimeout: 50 * time.Millisecond})
	stop := h.run(c)
	release := make(chan struct{})
	var timedOut atomic.Bool
	calls := newRecorder(t, func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		if id != hanging {
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
	// reconcileOther checks that another object is reconciled while the call for the hanging object is still blocked.
	reconcileOther := func() {
		t.Helper()
		c.Enqueue(hanging)
		h.fence(gvr, calls)
		if n := calls.count(hanging); n != 1 {
			t.Fatalf("got %d calls for the blocked object, want 1", n)
		}
	}
	serve()
	calls.waitFor(hanging, 1)
	h.eventually("the call times out", func() error {
		if !timedOut.Load() {
			return context.DeadlineExceeded
		}
		return nil
	})
	reconcileOther()

	serve() // Swaps the handler.
	reconcileOther()

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := c.StopServiceGVK(ctx, gvr); err == nil {
		t.Fatal("StopServiceGVK did not wait for the handler")
	}
	serve() // Creates a new registration.
	reconcileOther()

	if err := stop(); err == nil || !strings.Contains(err.Error(), hanging.String()) {
		t.Fatalf("got error %v, want it to contain %s", err, hanging)
	}
	h.run(c) // Starts a new run.
	reconcileOther()

	close(release)
	calls.waitFor(hanging, 2)
}
