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
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

// Children without names are never made twice, however often a handler is called while the cache is two seconds behind, and
// although the answer to one request is lost.
func TestHandlers_ALateCacheDoublesNothing(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	const lag, want = 2 * time.Second, 3
	own := *h
	posts := &tally{}
	var lost atomic.Bool
	own.config = posts.through(wrapped(wrapped(h.config, late(s.gadgets, lag)), func(r *http.Request, send send) (*http.Response, error) {
		answer, err := send(r)
		if err == nil && r.Method == http.MethodPost && isFor(r, s.gadgets) && lost.CompareAndSwap(false, true) {
			_ = answer.Body.Close()
			return nil, errors.New("the connection broke")
		}
		return answer, err
	}))
	controller := own.controller(dynamiccontroller.Config{})
	client := must(dynamic.NewForConfig(own.config))
	cached := handlers.Cached(controller.Lister)
	expected := handlers.NewExpectations(client, cached, 0)
	calls := newRecorder(t, handlers.Object(cached, func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured) error {
		if err := expected.Await(ctx, id); err != nil {
			return err
		}
		there, err := cached.List(ctx, s.gadgets, h.namespace, labels.Everything())
		if err != nil {
			return err
		}
		for i := len(there); i < want; i++ {
			child := newObject(s.gadgets, "Gadget", h.namespace, "", nil)
			child.SetGenerateName("g-")
			if _, err := expected.Create(ctx, id, s.gadgets, child); err != nil {
				return err
			}
		}
		for i := want; i < len(there); i++ {
			if err := expected.Delete(ctx, id, s.gadgets, there[i]); err != nil {
				return err
			}
		}
		return nil
	}, nil))
	h.run(controller)
	h.serve(controller, s.gadgets, func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil })
	h.synced(controller, s.gadgets)
	h.serve(controller, s.parents, calls.handle, dynamiccontroller.WithNamespace(h.namespace))
	h.put(s.parents, newObject(s.parents, "Platform", h.namespace, "p", nil))
	count := func(from handlers.Reader) int {
		found, err := from.List(t.Context(), s.gadgets, h.namespace, labels.Everything())
		h.noError(err)
		return len(found)
	}
	id := s.parent("p")
	call := func() {
		n := calls.count(id)
		controller.Enqueue(id)
		calls.waitFor(id, n+1)
	}
	storm := func() {
		for range 20 {
			call()
		}
	}
	meanwhile := 0
	h.eventually("the cache shows them", func() error {
		if n := count(cached); n < want {
			meanwhile++
			call()
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	if meanwhile < 20 {
		t.Errorf("only %d calls while the cache was behind", meanwhile)
	}
	storm()
	if n := count(handlers.Live(h.client)); n != want {
		t.Errorf("there are %d", n)
	}
	if n := posts.writes.Load(); n != want {
		t.Errorf("%d writes for %d children", n, want)
	}

	// One is deleted by a user: one is made, once the cache shows it, and no more.
	found, err := handlers.Live(h.client).List(t.Context(), s.gadgets, h.namespace, labels.Everything())
	h.noError(err)
	h.noError(h.in(s.gadgets, h.namespace).Delete(t.Context(), found[0].GetName(), metav1.DeleteOptions{}))
	h.eventually("it is replaced", func() error {
		storm()
		if n := posts.writes.Load(); n == want {
			return errors.New("not yet")
		}
		return nil
	})
	storm()
	if n := posts.writes.Load(); n != want+1 {
		t.Errorf("%d writes for %d children", n, want+1)
	}
}
