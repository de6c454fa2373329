package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

func discard() logr.Logger { return logr.Discard() }

func TestS2_InvalidStartFailsAndRegistersNothing(t *testing.T) {
	h := newHarness(t)
	gvr := h.newType()
	handler := newRecorder(t, nil).handle
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	withMetadata := h.controller(dynamiccontroller.Config{})
	without := dynamiccontroller.NewDynamicController(h.logger(), dynamiccontroller.Config{}, h.client)
	invalid := dynamiccontroller.NewDynamicController(h.logger(),
		dynamiccontroller.Config{Workers: -1, MinRetryDelay: time.Hour, MaxRetryDelay: time.Second}, h.client)
	for _, test := range []struct {
		name    string
		c       *dynamiccontroller.DynamicController
		ctx     context.Context
		gvr     schema.GroupVersionResource
		handler dynamiccontroller.Handler
		opts    []dynamiccontroller.ServeOption
		want    []string
	}{
		{
			name: "a GVR without a resource", gvr: schema.GroupVersionResource{Group: "g", Version: "v1"},
			want: []string{"resource"},
		},
		{name: "no handler", handler: nil, gvr: gvr, want: []string{"handler"}},
		{name: "a cancelled context", ctx: cancelled, gvr: gvr, handler: handler, want: []string{"canceled"}},
		{
			name: "invalid concurrency and weight", gvr: gvr, handler: handler,
			opts: []dynamiccontroller.ServeOption{dynamiccontroller.WithConcurrency(-1), dynamiccontroller.WithWeight(0)},
			want: []string{"WithConcurrency(-1)", "WithWeight(0)"},
		},
		{
			name: "an invalid namespace", gvr: gvr, handler: handler,
			opts: []dynamiccontroller.ServeOption{dynamiccontroller.WithNamespaces("Not/One")},
			want: []string{"WithNamespaces"},
		},
		{
			name: "metadata without a metadata client", c: without, gvr: gvr, handler: handler,
			opts: []dynamiccontroller.ServeOption{dynamiccontroller.WithCache(dynamiccontroller.CacheMetadata)},
			want: []string{"metadata client", "WithMetadataClient"},
		},
		{name: "an invalid config", c: invalid, gvr: gvr, handler: handler, want: []string{"Workers", "MinRetryDelay"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, ctx := test.c, test.ctx
			if c == nil {
				c = withMetadata
			}
			if ctx == nil {
				ctx = t.Context()
			}
			err := c.StartServingGVK(ctx, test.gvr, test.handler, test.opts...)
			for _, want := range test.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got error %v, want it to contain %q", err, want)
				}
			}
			if status := c.Status(); len(status) != 0 {
				t.Errorf("got status %+v after a failed start", status)
			}
		})
	}
	if err := invalid.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "Workers") {
		t.Errorf("Run: got %v, want an error about Workers", err)
	}
	if err := withMetadata.StopServiceGVK(t.Context(), gvr); err != nil {
		t.Errorf("stop a type that is not served: %v", err)
	}
}

func TestS2_StartSendsNoRequestAndDoesNotWait(t *testing.T) {
	h := newHarness(t)
	w := &wire{}
	c := w.through(h).controller(dynamiccontroller.Config{})
	h.serve(c, h.newType(), newRecorder(t, nil).handle)
	if n := w.count.Load(); n != 0 {
		t.Fatalf("StartServingGVK sent %d requests, want none", n)
	}
	h.run(c)
	w.set(hang)
	gvr := h.newType()
	h.serve(c, gvr, newRecorder(t, nil).handle) // No request receives a response.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := c.WaitForGVRSync(ctx, gvr)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "Syncing") {
		t.Errorf("wait for a type that cannot sync: got %v", err)
	}
	h.stopServing(c, gvr)
}

func TestS2_SwapReconcilesEveryObjectOnce(t *testing.T) {
	const objects = 30
	h := newHarness(t)
	gvr := h.widgets()
	for i := range objects {
		h.apply(gvr, fmt.Sprintf("w%d", i), 0)
	}
	c := h.controller(dynamiccontroller.Config{Workers: 1})
	h.run(c)
	first, second := newRecorder(t, nil), newRecorder(t, nil)
	h.serve(c, gvr, first.handle)
	first.waitForTotal(objects)

	h.serve(c, gvr, second.handle)
	second.waitForTotal(objects)
	h.fence(gvr, second)
	for id, n := range second.counts() {
		if n != 1 {
			t.Errorf("got %d calls for %s, want 1", n, id)
		}
	}
	if n := first.sum(); n != objects {
		t.Errorf("got %d calls to the old handler, want %d", n, objects)
	}
}

// If a handler is swapped and the new options require another watch, the engine must not miss objects that are changed
// or deleted during the swap.
func TestS2_SwapToAnotherWatchMissesNoChange(t *testing.T) {
	const objects = 30
	h := newHarness(t)
	w := &wire{}
	gvr := h.widgets()
	for i := range objects {
		h.apply(gvr, fmt.Sprintf("w%d", i), 0)
	}
	c := w.through(h).controller(dynamiccontroller.Config{Workers: 1})
	h.run(c)
	first := newRecorder(t, nil)
	h.serve(c, gvr, first.handle, dynamiccontroller.WithCache(dynamiccontroller.CacheKeys))
	first.waitForTotal(objects)

	block := make(chan struct{})
	w.set(hangUntil(block))
	missing := make(chan string, objects)
	second := newRecorder(t, func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		lister, err := c.Lister(gvr)
		if err != nil {
			return err
		}
		if _, err := lister.ByNamespace(id.Namespace()).Get(id.Name()); err != nil {
			missing <- id.Name()
		}
		return nil
	})
	h.serve(c, gvr, second.handle,
		dynamiccontroller.WithCache(dynamiccontroller.CacheMetadata),
		dynamiccontroller.WithLabelSelector(labels.Everything()))
	// The previous handler is called until the new watch has synced.
	h.delete(gvr, "w0")
	c.Enqueue(h.id(gvr, "w1"))
	first.waitFor(h.id(gvr, "w0"), 2)
	first.waitFor(h.id(gvr, "w1"), 2)
	if n := second.sum(); n != 0 {
		t.Errorf("got %d calls to a handler whose watch has not synced, want none", n)
	}
	if _, err := must(c.Lister(gvr)).Get(h.namespace + "/w1"); !errors.Is(err, dynamiccontroller.ErrNotSynced) {
		t.Errorf("lister of a watch that has not synced: got %v, want %v", err, dynamiccontroller.ErrNotSynced)
	}
	close(block)
	w.set(nil)
	second.waitForTotal(objects - 1)
	for id, n := range second.counts() {
		if n != 1 {
			t.Errorf("got %d calls for %s, want 1", n, id)
		}
	}
	if len(second.counts()) != objects-1 || len(missing) != 0 {
		t.Errorf("got calls for %d objects with %d missing from the cache, want %d and 0",
			len(second.counts()), len(missing), objects-1)
	}
}

func TestS2_ConcurrentStartsAndStopsAreSerialized(t *testing.T) {
	const goroutines, rounds = 8, 150
	h := newHarness(t)
	types := []schema.GroupVersionResource{h.widgets(), h.widgets(), h.newType()}
	for _, gvr := range types[:2] {
		h.apply(gvr, "w", 0)
	}
	c := dynamiccontroller.NewDynamicController(discard(), dynamiccontroller.Config{Workers: 4}, h.client)
	h.run(c)
	ok := func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil }
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range rounds {
				gvr := types[rand.N(len(types))]
				switch rand.N(4) {
				case 0:
					h.stopServing(c, gvr)
				case 1:
					c.Enqueue(h.id(gvr, "w"))
					_ = c.Status()
				case 2:
					err := c.StartServingGVK(t.Context(), gvr, ok, dynamiccontroller.WithNamespaces(h.namespace))
					if err != nil {
						t.Error(err)
					}
				default:
					if err := c.StartServingGVK(t.Context(), gvr, ok); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	for _, gvr := range types[:2] {
		calls := newRecorder(t, nil)
		h.serve(c, gvr, calls.handle)
		calls.waitFor(h.id(gvr, "w"), 1)
		h.synced(c, gvr)
	}
	for _, gvr := range types {
		h.stopServing(c, gvr)
	}
	if status := c.Status(); len(status) != 0 {
		t.Errorf("got status %+v after all types were stopped", status)
	}
}
