package integration

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// hang answers no request before its context ends.
func hang(r *http.Request, _ send) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// hangUntil lets no request pass before the channel is closed.
func hangUntil(open <-chan struct{}) meddler {
	return func(r *http.Request, send send) (*http.Response, error) {
		select {
		case <-open:
			return send(r)
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
}

// A type whose requests hang, one that is not served, one that is forbidden and one whose predicate hangs leave the
// others alone.
func TestS3_OneTypeNeverBlocksAnother(t *testing.T) {
	h := newHarness(t)
	w := &wire{}
	hanging, missing, good, stuck := h.newType(), h.newType(), h.define(h.newType()), h.define(h.newType())
	w.set(func(r *http.Request, send send) (*http.Response, error) {
		if isFor(r, hanging) {
			return hang(r, send)
		}
		return send(r)
	})
	c := w.through(h).controller(dynamiccontroller.Config{Workers: 4})
	h.run(c)
	none := newRecorder(t, nil)
	h.serve(c, hanging, none.handle)
	h.serve(c, missing, none.handle)

	release := make(chan struct{})
	asked := make(chan struct{}, 10)
	stuckCalls := newRecorder(t, nil)
	h.serve(c, stuck, stuckCalls.handle, dynamiccontroller.WithPredicate(func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool {
		asked <- struct{}{}
		<-release
		return true
	}))
	h.synced(c, stuck)
	h.apply(stuck, "w", 0)
	<-asked

	for round := range 3 {
		calls := newRecorder(t, nil)
		h.serve(c, good, calls.handle)
		h.synced(c, good)
		h.apply(good, "w", round)
		calls.waitFor(h.id(good, "w"), 1)
		h.stopServing(c, good)
	}
	if c.AllInformerHaveSynced() {
		t.Error("all types are said to have synced")
	}
	stop := make(chan struct{})
	time.AfterFunc(50*time.Millisecond, func() { close(stop) })
	if c.WaitForInformersSync(stop) {
		t.Error("all types are said to have synced")
	}
	// A hanging predicate bounds the stop of its own type only.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.StopServiceGVK(ctx, stuck); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	close(release)
	h.stopServing(c, stuck)
	h.stopServing(c, hanging)

	h.define(missing)
	h.synced(c, missing)
	if none.sum() != 0 {
		t.Errorf("%d calls of types that could not be watched", none.sum())
	}
}
