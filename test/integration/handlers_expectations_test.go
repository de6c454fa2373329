package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

// loseFirstCreate returns an interceptor that drops the response to the first create request for a type.
func loseFirstCreate(gvr schema.GroupVersionResource) func(*http.Request, send) (*http.Response, error) {
	var lost atomic.Bool
	return func(r *http.Request, send send) (*http.Response, error) {
		response, err := send(r)
		if err == nil && r.Method == http.MethodPost && isFor(r, gvr) && lost.CompareAndSwap(false, true) {
			_ = response.Body.Close()
			return nil, errors.New("connection reset")
		}
		return response, err
	}
}

// The handler is called many times while the cache lags by two seconds. The response to one create request is lost.
// Even then, the handler must create exactly the desired number of children.
func TestHandlers_LaggingCacheCausesNoDuplicateChildren(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	const lag, want = 2 * time.Second, 3
	own := *h
	var writes writeCounter
	own.config = writes.wrap(intercepted(intercepted(h.config, delayWatches(s.gadgets, lag)), loseFirstCreate(s.gadgets)))
	controller := own.controller(dynamiccontroller.Config{})
	client := must(dynamic.NewForConfig(own.config))
	cached := handlers.Cached(controller.Lister)
	expectations := must(handlers.NewExpectations(handlers.ExpectationsConfig{Client: client, Cache: cached}))
	reconcile := func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, _ *unstructured.Unstructured) error {
		if err := expectations.Await(ctx, id); err != nil {
			return err
		}
		existing, err := cached.List(ctx, s.gadgets, h.namespace, labels.Everything())
		if err != nil {
			return err
		}
		for i := len(existing); i < want; i++ {
			child := newObject(s.gadgets, "Gadget", h.namespace, "", nil)
			child.SetGenerateName("g-")
			if _, err := expectations.Create(ctx, id, s.gadgets, child); err != nil {
				return err
			}
		}
		for i := want; i < len(existing); i++ {
			if err := expectations.Delete(ctx, id, s.gadgets, existing[i]); err != nil {
				return err
			}
		}
		return nil
	}
	calls := newRecorder(t, handlers.Object(cached, reconcile, nil))
	h.run(controller)
	h.serve(controller, s.gadgets, func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil })
	h.synced(controller, s.gadgets)
	h.serve(controller, s.parents, calls.handle, dynamiccontroller.WithNamespaces(h.namespace))
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	list := func(reader handlers.Reader) []*unstructured.Unstructured {
		t.Helper()
		objects, err := reader.List(t.Context(), s.gadgets, h.namespace, labels.Everything())
		h.noError(err)
		return objects
	}
	id := s.parent("p")
	call := func() {
		n := calls.count(id)
		controller.Enqueue(id)
		calls.waitFor(id, n+1)
	}
	callOften := func() {
		for range 20 {
			call()
		}
	}
	calledWhileLagging := 0
	h.eventually("the children are in the cache", func() error {
		if n := len(list(cached)); n < want {
			calledWhileLagging++
			call()
			return fmt.Errorf("%d children are in the cache", n)
		}
		return nil
	})
	if calledWhileLagging < 20 {
		t.Errorf("got %d calls while the cache lagged, want at least 20", calledWhileLagging)
	}
	callOften()
	existing := list(handlers.Live(h.client))
	if n := writes.Load(); n != want || len(existing) != want {
		t.Fatalf("got %d writes and %d children, want %d of each", n, len(existing), want)
	}

	// A user deletes a child. The handler must replace it exactly once.
	h.noError(h.in(s.gadgets, h.namespace).Delete(t.Context(), existing[0].GetName(), metav1.DeleteOptions{}))
	h.eventually("the child is replaced", func() error {
		callOften()
		if n := writes.Load(); n == want {
			return errors.New("not yet")
		}
		return nil
	})
	callOften()
	if n := writes.Load(); n != want+1 {
		t.Errorf("got %d writes, want %d", n, want+1)
	}
}
