package integration

import (
	"net/http"
	"testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A child is deleted while the watch of its type is down. The child's owner must be reconciled when the next list no
// longer contains the child.
func TestD3_MissedChildDeletionReconcilesOwner(t *testing.T) {
	h := newHarness(t)
	parent, child := h.widgets(), h.widgets()
	h.apply(parent, "a", 0)
	h.apply(parent, "b", 0)
	h.apply(child, "of-a", 0, h.owned(h.id(parent, "a")))
	h.apply(child, "of-b", 0, h.owned(h.id(parent, "b")))
	w := &wire{}
	c := w.through(h).controller(dynamiccontroller.Config{Workers: 1})
	stop := h.run(c)
	calls := newRecorder(t, nil)
	h.serve(c, parent, calls.handle, dynamiccontroller.Owns(child))
	calls.waitForTotal(2)
	h.eventuallyWatches(w, child, 1)

	open := make(chan struct{})
	w.set(func(r *http.Request, send send) (*http.Response, error) {
		if !isFor(r, child) {
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
	if w.cut(child) == 0 {
		t.Fatal("no watch was closed")
	}
	h.delete(child, "of-a")
	close(open)
	calls.waitFor(h.id(parent, "a"), 2)
	w.set(nil)
	h.fence(parent, calls)
	if n := calls.count(h.id(parent, "b")); n != 1 {
		t.Errorf("got %d calls for the owner of the remaining child, want 1", n)
	}

	h.noError(stop())
	h.delete(child, "of-b") // No watch is open.
	h.run(c)
	calls.waitFor(h.id(parent, "b"), 2)
}

// expired returns a copy of a watch request with an expired resourceVersion.
func expired(r *http.Request) *http.Request {
	r = r.Clone(r.Context())
	query := r.URL.Query()
	query.Set("resourceVersion", "1")
	r.URL.RawQuery = query.Encode()
	return r
}
