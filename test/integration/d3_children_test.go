package integration

import (
	"net/http"
	"testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A child that goes while its watch is down is known to have been its owner's, when the next list does not have it.
func TestD3_AnOwnerHearsOfAChildThatWentUnseen(t *testing.T) {
	h := newHarness(t)
	parent, child := h.define(h.newType()), h.define(h.newType())
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
			// The version that it would go on from is too old by now.
			_ = answer.Body.Close()
			return send(expired(r))
		}
		return answer, err
	})
	if w.cut(child) == 0 {
		t.Fatal("there was no watch to cut")
	}
	h.delete(child, "of-a")
	close(open)
	calls.waitFor(h.id(parent, "a"), 2)
	w.set(nil)
	h.fence(parent, calls)
	if n := calls.count(h.id(parent, "b")); n != 1 {
		t.Errorf("%d calls for the owner of the child that stayed", n)
	}

	h.noError(stop())
	h.delete(child, "of-b") // while nobody watches
	h.run(c)
	calls.waitFor(h.id(parent, "b"), 2)
}

// expired is a watch from a version that was compacted long ago.
func expired(r *http.Request) *http.Request {
	r = r.Clone(r.Context())
	query := r.URL.Query()
	query.Set("resourceVersion", "1")
	r.URL.RawQuery = query.Encode()
	return r
}
