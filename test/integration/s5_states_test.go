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

// A type whose CRD was deleted behind the back of its watch keeps its cache until somebody knows that it is gone; then
// each object gets a last call, and the type is served again when it is back.
func TestS5_AGoneTypeGetsALastCallForEachObject(t *testing.T) {
	h := newHarness(t)
	gvr := h.define(h.newType())
	h.apply(gvr, "a", 0)
	h.apply(gvr, "b", 0)
	w := &wire{}
	subscribed := make(chan func(gvrType, bool), 1)
	c := w.through(h).controller(dynamiccontroller.Config{Workers: 1, MinRetryDelay: 1, MaxRetryDelay: 1},
		dynamiccontroller.WithTypeEvents(func(f func(gvrType, bool)) func() { subscribed <- f; return func() {} }))
	h.run(c)
	tell := <-subscribed
	gone := make(chan string, 10)
	calls := newRecorder(t, func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		_, err := must(c.Lister(gvr)).ByNamespace(id.Namespace()).Get(id.Name())
		if apierrors.IsNotFound(err) {
			gone <- id.Name()
			return err // its own NotFound: no retry storm
		}
		return err
	})
	h.serve(c, gvr, calls.handle)
	calls.waitForTotal(2)

	open := make(chan struct{})
	w.set(hangUntil(open))
	w.cut(gvr)
	h.undefine(gvr)
	h.eventually("the type is gone", func() error {
		if _, err := h.client.Resource(gvr).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
			return errors.New("it is not")
		}
		return nil
	})
	w.set(nil)
	close(open)
	h.eventually("the engine has seen the 404", func() error {
		if state := c.Status()[0].State; state != dynamiccontroller.TypeNotFound {
			return errors.New(string(state))
		}
		return nil
	})
	if n := calls.sum(); n != 2 || c.Status()[0].Objects != 2 {
		t.Errorf("a 404 alone made %d calls and left %d objects", n-2, c.Status()[0].Objects)
	}
	tell(gvr, false)
	calls.waitForTotal(4)
	if first, second := <-gone, <-gone; first == second {
		t.Errorf("told of %s twice", first)
	}
	h.define(gvr)
	tell(gvr, true)
	h.apply(gvr, "a", 0)
	calls.waitFor(h.id(gvr, "a"), 3)
	if n := calls.count(h.id(gvr, "b")); n != 2 {
		t.Errorf("%d calls for an object that is gone", n)
	}
}

// What is wrong with a type is in its status in the server's words, and mends itself.
func TestS5_ATypeThatCannotBeWatchedSaysSoAndRecovers(t *testing.T) {
	h := newHarness(t)
	gvr := h.newType()
	w := &wire{}
	c := w.through(h).controller(dynamiccontroller.Config{})
	h.run(c)
	calls := newRecorder(t, nil)
	h.serve(c, gvr, calls.handle)
	state := func(want dynamiccontroller.TypeState, words bool) {
		t.Helper()
		h.eventually(string(want), func() error {
			status := c.Status()[0]
			if status.State != want || words != (status.Message != "") {
				return fmt.Errorf("it is %+v", status)
			}
			return nil
		})
	}
	state(dynamiccontroller.TypeNotFound, true)
	h.define(gvr)
	state(dynamiccontroller.TypeSynced, false)
	h.apply(gvr, "w", 0)
	calls.waitFor(h.id(gvr, "w"), 1)

	// A 404 alone neither empties the cache nor calls the handler.
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
		t.Errorf("the cache is %+v", status)
	}
	if _, err := must(c.Lister(gvr)).ByNamespace(h.namespace).Get("w"); err != nil {
		t.Error(err)
	}
	w.set(nil)
	h.apply(gvr, "w", 1)
	calls.waitFor(h.id(gvr, "w"), 2)
	state(dynamiccontroller.TypeSynced, false)
	if n := calls.sum(); n != 2 {
		t.Errorf("%d calls", n)
	}
}
