package integration

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// hang blocks each request until the request's context is cancelled.
func hang(r *http.Request, _ send) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// hangUntil blocks each request until the channel is closed.
func hangUntil(open <-chan struct{}) interceptor {
	return func(r *http.Request, send send) (*http.Response, error) {
		select {
		case <-open:
			return send(r)
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
}

// A type whose requests hang, an unknown type and a type whose predicate hangs must not affect other types.
func TestS3_FailingTypesDoNotAffectOthers(t *testing.T) {
	h := newHarness(t)
	w := &wire{}
	hanging, missing, good, stuck := h.newType(), h.newType(), h.widgets(), h.widgets()
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
	called := make(chan struct{}, 10)
	stuckCalls := newRecorder(t, nil)
	hangingPredicate := func(context.Context, dynamiccontroller.Object, dynamiccontroller.Object) bool {
		called <- struct{}{}
		<-release
		return true
	}
	h.serve(c, stuck, stuckCalls.handle, dynamiccontroller.WithPredicate(hangingPredicate))
	h.synced(c, stuck)
	h.apply(stuck, "w", 0)
	<-called

	for round := range 3 {
		calls := newRecorder(t, nil)
		h.serve(c, good, calls.handle)
		h.synced(c, good)
		h.apply(good, "w", round)
		calls.waitFor(h.id(good, "w"), 1)
		h.stopServing(c, good)
	}
	if c.AllInformerHaveSynced() {
		t.Error("AllInformerHaveSynced returned true although a type has not synced")
	}
	stop := make(chan struct{})
	time.AfterFunc(50*time.Millisecond, func() { close(stop) })
	if c.WaitForInformersSync(stop) {
		t.Error("WaitForInformersSync returned true although a type has not synced")
	}
	// A predicate that hangs must block StopServiceGVK only for the predicate's type.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.StopServiceGVK(ctx, stuck); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stop the type with the hanging predicate: got %v, want %v", err, context.DeadlineExceeded)
	}
	close(release)
	h.stopServing(c, stuck)
	h.stopServing(c, hanging)

	h.define(missing)
	h.synced(c, missing)
	if none.sum() != 0 {
		t.Errorf("got %d calls for types without objects", none.sum())
	}
}
