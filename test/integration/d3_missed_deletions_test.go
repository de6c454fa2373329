package integration

import (
	"context"
	"net/http"
	"sync"
	"testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

func TestD3_DeletionBetweenTwoRunsIsDelivered(t *testing.T) {
	h := newHarness(t)
	gvr := h.widgets()
	h.apply(gvr, "stays", 0)
	h.apply(gvr, "goes", 0)
	c := h.controller(dynamiccontroller.Config{})
	calls := newRecorder(t, nil)
	h.serve(c, gvr, calls.handle)
	stop := h.run(c)
	calls.waitForTotal(2)
	h.noError(stop())
	h.delete(gvr, "goes")
	h.run(c)
	calls.waitFor(h.id(gvr, "goes"), 2)
	calls.waitFor(h.id(gvr, "stays"), 2)
}

// An object is deleted while a watch is down, and the watch's resourceVersion expires. Because the expiry would take
// several minutes, the test instead replaces the resourceVersion in the watch request with an old one. The API server
// then responds with 410 Gone.
func TestD3_MissedDeletionIsDeliveredWithTheLastState(t *testing.T) {
	h := newHarness(t)
	gvr := h.widgets()
	h.apply(gvr, "stays", 0)
	h.apply(gvr, "goes", 0)
	last := h.apply(gvr, "goes", 1)
	w := &wire{}
	c := w.through(h).controller(dynamiccontroller.Config{Workers: 1})
	h.run(c)
	var mu sync.Mutex
	deleted := map[string]string{}
	calls := newRecorder(t, nil)
	recordDeletions := func(_ context.Context, old, now dynamiccontroller.Object) bool {
		mu.Lock()
		defer mu.Unlock()
		if now == nil {
			deleted[old.GetName()] = old.GetResourceVersion()
		}
		return true
	}
	h.serve(c, gvr, calls.handle, dynamiccontroller.WithPredicate(recordDeletions))
	calls.waitForTotal(2)
	h.fence(gvr, calls) // The initial list can be older than the last change, which the watch then delivers.

	open := make(chan struct{})
	w.set(func(r *http.Request, send send) (*http.Response, error) {
		if !isFor(r, gvr) {
			return send(r)
		}
		answer, err := hangUntil(open)(r, send)
		if query := r.URL.Query(); err == nil && isWatch(r) && query.Get("sendInitialEvents") == "" {
			// Make the API server report that the watch's resourceVersion has expired.
			_ = answer.Body.Close()
			return send(expired(r))
		}
		return answer, err
	})
	w.cut(gvr)
	h.delete(gvr, "goes")
	close(open)
	calls.waitFor(h.id(gvr, "goes"), 2)
	w.set(nil)
	mu.Lock()
	if len(deleted) != 1 || deleted["goes"] != last {
		t.Errorf("got deletions %v, want goes at version %s", deleted, last)
	}
	mu.Unlock()
	// A relist causes calls only for objects that have changed.
	h.fence(gvr, calls)
	if n := calls.count(h.id(gvr, "stays")); n != 1 {
		t.Errorf("got %d calls for an unchanged object, want 1", n)
	}
}
