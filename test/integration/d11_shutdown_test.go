package integration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

func TestD11_ShutdownCancelsHandlersAndWaitsForThem(t *testing.T) {
	h := newHarness(t)
	gvr := h.widgets()
	h.apply(gvr, "w", 0)
	counts := &outcomes{}
	c := h.controller(dynamiccontroller.Config{}, dynamiccontroller.WithMetrics(counts))
	causes := make(chan error, 1)
	returned := false
	calls := newRecorder(t, func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
		<-ctx.Done()
		causes <- context.Cause(ctx)
		// The cache can still be read during the shutdown.
		if _, err := must(c.Lister(gvr)).ByNamespace(h.namespace).Get("w"); err != nil {
			t.Error(err)
		}
		returned = true
		return ctx.Err()
	})
	h.serve(c, gvr, calls.handle)
	stop := h.run(c)
	calls.waitFor(h.id(gvr, "w"), 1)
	h.noError(stop())
	if cause := <-causes; !errors.Is(cause, dynamiccontroller.ErrRunEnded) || !errors.Is(cause, errTestOver) {
		t.Errorf("the handler's context was cancelled with cause %v", cause)
	}
	if !returned {
		t.Error("Run returned before the handler did")
	}
	// An interrupted call does not count as a failure.
	if counts.count(dynamiccontroller.OutcomeInterrupted) != 1 || c.Status()[0].Failing != 0 {
		t.Errorf("got outcomes %v and status %+v, want one interrupted call", counts.of, c.Status()[0])
	}
}

func TestD11_ShutdownTimeoutListsRunningHandlers(t *testing.T) {
	h := newHarness(t)
	gvr := h.widgets()
	h.apply(gvr, "hanging", 0)
	c := h.controller(dynamiccontroller.Config{ShutdownTimeout: 50 * time.Millisecond})
	release := make(chan struct{})
	calls := newRecorder(t, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
		<-release
		return nil
	})
	h.serve(c, gvr, calls.handle)
	stop := h.run(c)
	id := h.id(gvr, "hanging")
	calls.waitFor(id, 1)
	if err := stop(); err == nil || !strings.Contains(err.Error(), id.String()) {
		t.Errorf("got error %v, want it to contain %s", err, id)
	}
	close(release)
	h.stopServing(c, gvr)
}
