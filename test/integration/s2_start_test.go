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

func TestS2_ABadStartIsAClearErrorAndRegistersNothing(t *testing.T) {
	h := newHarness(t)
	gvr := h.newType()
	handler := newRecorder(t, nil).handle
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	withMetadata := h.controller(dynamiccontroller.Config{})
	without := dynamiccontroller.NewDynamicController(h.logger(), dynamiccontroller.Config{}, h.client)
	nonsense := dynamiccontroller.NewDynamicController(h.logger(), dynamiccontroller.Config{Workers: -1, MinRetryDelay: time.Hour, MaxRetryDelay: time.Second}, h.client)
	for _, test := range []struct {
		name    string
		c       *dynamiccontroller.DynamicController
		ctx     context.Context
		gvr     schema.GroupVersionResource
		handler dynamiccontroller.Handler
		opts    []dynamiccontroller.ServeOption
		want    []string
	}{
		{name: "a GVR without a resource", gvr: schema.GroupVersionResource{Group: "g", Version: "v1"}, want: []string{"resource"}},
		{name: "no handler", handler: nil, gvr: gvr, want: []string{"handler"}},
		{name: "a context that has ended", ctx: ended, gvr: gvr, handler: handler, want: []string{"canceled"}},
		{name: "negative concurrency and weight", gvr: gvr, handler: handler, want: []string{"WithConcurrency(-1)", "WithWeight(0)"},
			opts: []dynamiccontroller.ServeOption{dynamiccontroller.WithConcurrency(-1), dynamiccontroller.WithWeight(0)}},
		{name: "a namespace that is none", gvr: gvr, handler: handler, want: []string{"WithNamespace"},
			opts: []dynamiccontroller.ServeOption{dynamiccontroller.WithNamespace("Not/One")}},
		{name: "metadata without a metadata client", c: without, gvr: gvr, handler: handler, want: []string{"metadata client", "WithMetadataClient"},
			opts: []dynamiccontroller.ServeOption{dynamiccontroller.WithCache(dynamiccontroller.CacheMetadata)}},
		{name: "a config of nonsense", c: nonsense, gvr: gvr, handler: handler, want: []string{"Workers", "MinRetryDelay"}},
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
					t.Errorf("want an error with %q, got %v", want, err)
				}
			}
			if status := c.Status(); len(status) != 0 {
				t.Errorf("registered: %+v", status)
			}
		})
	}
	if err := nonsense.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "Workers") {
		t.Errorf("Run says %v", err)
	}
	if err := withMetadata.StopServiceGVK(t.Context(), gvr); err != nil {
		t.Errorf("stopping what is not served: %v", err)
	}
}

func TestS2_StartMakesNoRequestAndWaitsForNothing(t *testing.T) {
	h := newHarness(t)
	w := &wire{}
	c := w.through(h).controller(dynamiccontroller.Config{})
	h.serve(c, h.newType(), newRecorder(t, nil).handle)
	if n := w.count.Load(); n != 0 {
		t.Fatalf("%d requests", n)
	}
	h.run(c)
	w.set(hang)
	gvr := h.newType()
	h.serve(c, gvr, newRecorder(t, nil).handle) // returns though no request is answered
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.WaitForGVRSync(ctx, gvr); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "Syncing") {
		t.Errorf("waiting for a type that cannot sync: %v", err)
	}
	h.stopServing(c, gvr)
}

func TestS2_StartingAgainSwapsTheHandlerAndReconcilesEverythingOnce(t *testing.T) {
	const objects = 30
	h := newHarness(t)
	gvr := h.define(h.newType())
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
			t.Errorf("%d calls for %s", n, id)
		}
	}
	if n := first.sum(); n != objects {
		t.Errorf("the old handler had %d calls", n)
	}
}

// A swap to other options that need another watch loses nothing: not what changes or goes meanwhile either.
func TestS2_ASwapToAnotherWatchLosesNothing(t *testing.T) {
	const objects = 30
	h := newHarness(t)
	w := &wire{}
	gvr := h.define(h.newType())
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
	h.serve(c, gvr, second.handle, dynamiccontroller.WithCache(dynamiccontroller.CacheMetadata), dynamiccontroller.WithLabelSelector(labels.Everything()))
	// Until the new watch has synced, the former handler runs.
	h.delete(gvr, "w0")
	c.Enqueue(h.id(gvr, "w1"))
	first.waitFor(h.id(gvr, "w0"), 2)
	first.waitFor(h.id(gvr, "w1"), 2)
	if n := second.sum(); n != 0 {
		t.Errorf("%d calls of a handler whose watch has not synced", n)
	}
	if _, err := must(c.Lister(gvr)).Get(h.namespace + "/w1"); !errors.Is(err, dynamiccontroller.ErrNotSynced) {
		t.Errorf("the lister of a watch that has not synced returned %v", err)
	}
	close(block)
	w.set(nil)
	second.waitForTotal(objects - 1)
	for id, n := range second.counts() {
		if n != 1 {
			t.Errorf("%d calls for %s", n, id)
		}
	}
	if len(second.counts()) != objects-1 || len(missing) != 0 {
		t.Errorf("%d objects, %d more were missing", len(second.counts()), len(missing))
	}
}

// Concurrent starts and stops of a few types end as if made one after another.
func TestS2_ConcurrentStartsAndStopsEndAsIfOneAfterAnother(t *testing.T) {
	const goroutines, rounds = 8, 150
	h := newHarness(t)
	types := []schema.GroupVersionResource{h.define(h.newType()), h.define(h.newType()), h.newType()}
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
					if err := c.StartServingGVK(t.Context(), gvr, ok, dynamiccontroller.WithNamespace(h.namespace)); err != nil {
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
		t.Errorf("left: %+v", status)
	}
}
