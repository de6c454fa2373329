package integration

import (
	"context"
	"net/http"
	"sync"
	"testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// What was deleted while nothing was watched is found by the difference to the next list: between two runs.
func TestD3_ADeletionBetweenTwoRunsIsDelivered(t *testing.T) {
	h := newHarness(t)
	gvr := h.define(h.newType())
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

// And while a watch was down for so long that its version was compacted. That takes minutes: the 410 is made here.
func TestD3_ADeletionMissedByABrokenWatchIsDeliveredWithItsLastState(t *testing.T) {
	h := newHarness(t)
	gvr := h.define(h.newType())
	h.apply(gvr, "stays", 0)
	h.apply(gvr, "goes", 0)
	last := h.apply(gvr, "goes", 1)
	w := &wire{}
	c := w.through(h).controller(dynamiccontroller.Config{Workers: 1})
	h.run(c)
	var mu sync.Mutex
	deleted := map[string]string{}
	calls := newRecorder(t, nil)
	h.serve(c, gvr, calls.handle, dynamiccontroller.WithPredicate(func(_ context.Context, old, now dynamiccontroller.Object) bool {
		mu.Lock()
		defer mu.Unlock()
		if now == nil {
			deleted[old.GetName()] = old.GetResourceVersion()
		}
		return true
	}))
	calls.waitForTotal(2)

	open := make(chan struct{})
	w.set(func(r *http.Request, send send) (*http.Response, error) {
		if !isFor(r, gvr) {
			return send(r)
		}
		answer, err := hangUntil(open)(r, send)
		if query := r.URL.Query(); err == nil && isWatch(r) && query.Get("sendInitialEvents") == "" {
			// The version that it would go on from is too old by now.
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
		t.Errorf("told of deletions %v, want goes at %s", deleted, last)
	}
	mu.Unlock()
	// A relist is told by its difference alone.
	h.fence(gvr, calls)
	if n := calls.count(h.id(gvr, "stays")); n != 1 {
		t.Errorf("%d calls for an object that did not change", n)
	}
}
