package integration

import (
	"testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// The test starts and stops serving types before, during and between runs, and on a standby.
func TestS4_TypesStartAndStopAtAnyTime(t *testing.T) {
	h := newHarness(t)
	before, during, between := h.widgets(), h.widgets(), h.widgets()
	standby, never := h.widgets(), h.widgets()
	for _, gvr := range []gvrType{before, during, between, standby, never} {
		h.apply(gvr, "w", 0)
	}
	c := h.controller(dynamiccontroller.Config{})
	calls := newRecorder(t, nil)
	seen := func(n int, types ...gvrType) {
		t.Helper()
		for _, gvr := range types {
			calls.waitFor(h.id(gvr, "w"), n)
		}
	}

	h.serve(c, before, calls.handle)
	h.serve(c, never, calls.handle)
	h.stopServing(c, never)
	stop := h.run(c)
	seen(1, before)
	h.serve(c, during, calls.handle)
	seen(1, during)
	h.stopServing(c, before)
	h.noError(stop())

	h.serve(c, between, calls.handle)
	h.stopServing(c, during)
	stop = h.run(c)
	seen(1, between)
	h.noError(stop())

	watches := h.start(c.RunWatches)
	h.serve(c, standby, calls.handle)
	h.synced(c, standby)
	h.synced(c, between)
	h.stopServing(c, between)
	if calls.count(h.id(standby, "w")) != 0 {
		t.Error("a standby called a handler")
	}
	if status := c.Status()[0]; status.Live+status.Background+status.Delayed != 0 {
		t.Errorf("a standby queued objects: %+v", status)
	}
	if err := c.RunWatches(t.Context()); err == nil {
		t.Error("a second, concurrent call to RunWatches succeeded")
	}
	stop = h.run(c)
	seen(1, standby)
	if err := c.Run(t.Context()); err == nil {
		t.Error("a second, concurrent call to Run succeeded")
	}
	h.noError(stop())

	// The watches must continue as long as Run or RunWatches is running.
	stop = h.run(c)
	seen(2, standby)
	h.noError(watches())
	h.apply(standby, "w", 1)
	seen(3, standby)
	h.noError(stop())
	if state := c.Status()[0].State; state != dynamiccontroller.TypeStopped {
		t.Errorf("got state %s while neither Run nor RunWatches is running, want %s", state, dynamiccontroller.TypeStopped)
	}

	stop = h.run(c)
	seen(4, standby)
	watches = h.start(c.RunWatches)
	h.noError(stop())
	h.synced(c, standby)
	stop = h.run(c)
	seen(5, standby)
	h.noError(stop())
	h.noError(watches())
	h.stopServing(c, standby)
	for _, gvr := range []gvrType{before, during, between} {
		if n := calls.count(h.id(gvr, "w")); n != 1 {
			t.Errorf("got %d calls for %s, want 1", n, gvr.Group)
		}
	}
	if n := calls.count(h.id(never, "w")); n != 0 {
		t.Errorf("got %d calls for a type that was stopped before the run, want none", n)
	}
}
