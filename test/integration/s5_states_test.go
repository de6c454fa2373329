package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A CRD is deleted while the watch is down. The engine keeps the cache until a type event reports that the type is
// gone. Each object is then reconciled once more. The watch recovers when the type is defined again.
func TestS5_RemovedTypeReconcilesEachObjectOnce(t *testing.T) {
	h := newHarness(t)
	gvr := h.define(h.newType())
	h.apply(gvr, "a", 0)
	h.apply(gvr, "b", 0)
	w := &wire{}
	subscribed := make(chan func(gvrType, bool), 1)
	c := w.through(h).controller(dynamiccontroller.Config{Workers: 1, MinRetryDelay: 1, MaxRetryDelay: 1},
		dynamiccontroller.WithTypeEvents(func(f func(gvrType, bool)) func() { subscribed <- f; return func() {} }))
	h.run(c)
	notify := <-subscribed
	gone := make(chan string, 10)
	calls := newRecorder(t, func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		_, err := must(c.Lister(gvr)).ByNamespace(id.Namespace()).Get(id.Name())
		if apierrors.IsNotFound(err) {
			gone <- id.Name()
			return err // The engine does not retry a NotFound error for the object itself.
		}
		return err
	})
	h.serve(c, gvr, calls.handle)
	calls.waitForTotal(2)
	h.eventuallyWatches(w, gvr, 1)

	open := make(chan struct{})
	w.set(hangUntil(open))
	w.cut(gvr)
	h.undefine(gvr)
	h.eventually("the type is removed", func() error {
		_, err := h.client.Resource(gvr).List(t.Context(), metav1.ListOptions{})
		if err == nil {
			return errors.New("the type is still served")
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("list: %w", err)
		}
		return nil
	})
	w.set(nil)
	close(open)
	h.eventually("the engine reports the 404", func() error {
		if state := c.Status()[0].State; state != dynamiccontroller.TypeNotFound {
			return errors.New(string(state))
		}
		return nil
	})
	if n := calls.sum(); n != 2 || c.Status()[0].Objects != 2 {
		t.Errorf("after a 404 without a type event: got %d calls and %d objects, want 0 and 2", n-2, c.Status()[0].Objects)
	}
	notify(gvr, false)
	calls.waitForTotal(4)
	if first, second := <-gone, <-gone; first == second {
		t.Errorf("got two calls for %s", first)
	}
	h.define(gvr)
	notify(gvr, true)
	h.apply(gvr, "a", 0)
	calls.waitFor(h.id(gvr, "a"), 3)
	if n := calls.count(h.id(gvr, "b")); n != 2 {
		t.Errorf("got %d calls for a deleted object, want 2", n)
	}
}

// If a type cannot be watched, the status must report the API server's message, and the watch must recover later.
func TestS5_StatusReportsFailuresAndRecovers(t *testing.T) {
	h := newHarness(t)
	gvr := h.newType()
	w := &wire{}
	c := w.through(h).controller(dynamiccontroller.Config{})
	h.run(c)
	calls := newRecorder(t, nil)
	h.serve(c, gvr, calls.handle)
	state := func(want dynamiccontroller.TypeState, hasMessage bool) {
		t.Helper()
		h.eventually(string(want), func() error {
			status := c.Status()[0]
			if status.State != want || hasMessage != (status.Message != "") {
				return fmt.Errorf("got status %+v", status)
			}
			return nil
		})
	}
	state(dynamiccontroller.TypeNotFound, true)
	h.define(gvr)
	state(dynamiccontroller.TypeSynced, false)
	h.apply(gvr, "w", 0)
	calls.waitFor(h.id(gvr, "w"), 1)

	// A 404 response alone must neither empty the cache nor cause a handler call.
	w.set(func(r *http.Request, send send) (*http.Response, error) {
		if isFor(r, gvr) {
			r = r.Clone(r.Context())
			r.URL.Path = "/apis/no.such.group/v1/widgets"
		}
		return send(r)
	})
	w.cut(gvr)
	state(dynamiccontroller.TypeNotFound, true)
	if status := c.Status()[0]; status.Objects != 1 || !status.Synced {
		t.Errorf("got status %+v, want a synced cache with 1 object", status)
	}
	if _, err := must(c.Lister(gvr)).ByNamespace(h.namespace).Get("w"); err != nil {
		t.Error(err)
	}
	w.set(nil)
	h.apply(gvr, "w", 1)
	calls.waitFor(h.id(gvr, "w"), 2)
	state(dynamiccontroller.TypeSynced, false)
	if n := calls.sum(); n != 2 {
		t.Errorf("got %d calls, want 2", n)
	}
}
