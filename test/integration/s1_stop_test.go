package integration

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// forgets is a Metrics that knows which types it was told of last.
type forgets struct{ known atomic.Int64 }

func (f *forgets) Reconciled(schema.GroupVersionResource, dynamiccontroller.Outcome, time.Duration) {
	f.known.Store(1)
}
func (f *forgets) Forget(schema.GroupVersionResource) { f.known.Store(0) }

func TestS1_StopJoinsHandlersAndLeavesNothing(t *testing.T) {
	h := newHarness(t)
	gvr := h.define(h.newType())
	metrics := &forgets{}
	c := h.controller(dynamiccontroller.Config{Workers: 4}, dynamiccontroller.WithMetrics(metrics))
	h.run(c)
	first := newRecorder(t, nil)
	h.serve(c, gvr, first.handle)
	h.apply(gvr, "first", 0)
	first.waitFor(h.id(gvr, "first"), 1)
	h.stopServing(c, gvr)
	h.delete(gvr, "first")
	before := goleak.IgnoreCurrent()

	var running, ended atomic.Int64
	calls := newRecorder(t, func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		switch {
		case strings.HasSuffix(id.NamespacedKey, "/fails"):
			return errors.New("on purpose")
		case strings.HasSuffix(id.NamespacedKey, "/later"):
			return dynamiccontroller.RequeueAfter(10 * time.Hour)
		case strings.HasSuffix(id.NamespacedKey, "/terminal"):
			return dynamiccontroller.Terminal(errors.New("on purpose"))
		}
		running.Add(1)
		defer running.Add(-1)
		<-ctx.Done()
		if cause := context.Cause(ctx); !errors.Is(cause, dynamiccontroller.ErrServingStopped) {
			t.Errorf("the handler's context ended with %v", cause)
		}
		ended.Add(1)
		return ctx.Err()
	})
	h.serve(c, gvr, calls.handle)
	for _, name := range []string{"fails", "later", "terminal", "hangs-1", "hangs-2", "waits-1", "waits-2"} {
		h.apply(gvr, name, 0)
	}
	for _, name := range []string{"fails", "later", "terminal"} {
		calls.waitFor(h.id(gvr, name), 1)
	}
	h.eventually("the type's share of the workers hangs", func() error {
		if n := running.Load(); n != 3 {
			return fmt.Errorf("%d hang", n)
		}
		return nil
	})

	h.stopServing(c, gvr)
	if running.Load() != 0 || ended.Load() != 3 {
		t.Errorf("StopServiceGVK returned while %d handlers ran; %d saw their context end", running.Load(), ended.Load())
	}
	if status := c.Status(); len(status) != 0 {
		t.Errorf("status is left: %+v", status)
	}
	if _, err := c.Lister(gvr); !errors.Is(err, dynamiccontroller.ErrNotServed) {
		t.Errorf("Lister says %v", err)
	}
	if metrics.known.Load() != 0 {
		t.Error("metrics are left")
	}
	if err := goleak.Find(append(ignoreConnections(), before)...); err != nil {
		t.Error(err)
	}

	// Served anew, each object is reconciled once, and what failed or waited before counts no more.
	after, anew := calls.sum(), newRecorder(t, nil)
	h.serve(c, gvr, anew.handle)
	anew.waitForTotal(7)
	h.stopServing(c, gvr)
	if calls.sum() != after || anew.sum() != 7 {
		t.Errorf("%d more calls of the old handler, %d of the new one", calls.sum()-after, anew.sum())
	}
}

// ignoreConnections leaves out what client-go's transport keeps for the next request.
func ignoreConnections() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*ClientConn).readLoop"),
	}
}

func TestS1_AStopThatCannotWaitSaysForWhatAndCanBeCalledAgain(t *testing.T) {
	h := newHarness(t)
	gvr := h.define(h.newType())
	c := h.controller(dynamiccontroller.Config{})
	h.run(c)
	release := make(chan struct{})
	calls := newRecorder(t, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
		<-release // deaf to its context
		return nil
	})
	h.serve(c, gvr, calls.handle)
	h.apply(gvr, "deaf", 0)
	id := h.id(gvr, "deaf")
	calls.waitFor(id, 1)

	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := c.StopServiceGVK(ctx, gvr)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), id.String()) {
			t.Fatalf("want an error that names %s, got %v", id, err)
		}
	}
	if len(c.Status()) != 0 {
		t.Error("the type is still in the status")
	}
	h.apply(gvr, "other", 0)
	close(release)
	h.stopServing(c, gvr)
	if n := calls.sum(); n != 1 {
		t.Errorf("%d calls", n)
	}
}

func TestS1_StopFromATypesOwnHandlerIsAnErrorAtOnce(t *testing.T) {
	h := newHarness(t)
	gvr, other := h.define(h.newType()), h.newType()
	c := h.controller(dynamiccontroller.Config{})
	h.run(c)
	h.serve(c, other, newRecorder(t, nil).handle)
	result := make(chan error, 2)
	calls := newRecorder(t, func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		result <- c.StopServiceGVK(ctx, gvr)
		result <- c.StopServiceGVK(ctx, other)
		return nil
	})
	h.serve(c, gvr, calls.handle)
	h.apply(gvr, "one", 0)
	calls.waitFor(h.id(gvr, "one"), 1)
	if err := <-result; err == nil || !strings.Contains(err.Error(), "own handlers") {
		t.Errorf("got %v", err)
	}
	if err := <-result; err != nil {
		t.Errorf("another type: %v", err)
	}
	h.apply(gvr, "two", 0)
	calls.waitFor(h.id(gvr, "two"), 1)
}

// goroutinesOfWatches looks for goroutines that a watch has started, and waits for none of them to end. One that is
// about to end, and only needs a CPU for it, can be waited for by nobody.
func goroutinesOfWatches() string {
	stacks := make([]byte, 1<<20)
	for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if head, _, _ := strings.Cut(stack, "\n"); strings.Contains(head, "[runnable") || strings.Contains(head, "[running") {
			continue
		}
		if strings.Contains(stack, "internal/typewatch.(*Watch).Run") || strings.Contains(stack, "watch.(*StreamWatcher).receive") {
			return stack
		}
	}
	return ""
}

// TestS1_AThousandStopsUnderLoad stops and starts a type while its objects change all the time.
func TestS1_AThousandStopsUnderLoad(t *testing.T) {
	const cycles, objects = 1000, 20
	h := newHarness(t)
	gvr := h.define(h.newType())
	for i := range objects {
		h.apply(gvr, fmt.Sprintf("w%d", i), 0)
	}
	c := dynamiccontroller.NewDynamicController(discard(), dynamiccontroller.Config{}, h.client)
	h.run(c)

	load := h.start(func(ctx context.Context) error {
		for n := 1; ctx.Err() == nil; n++ {
			h.apply(gvr, fmt.Sprintf("w%d", n%objects), n)
		}
		return nil
	})
	var serving atomic.Bool
	var called atomic.Int64
	handler := func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
		if !serving.Load() {
			t.Error("a call after StopServiceGVK returned")
		}
		called.Add(1)
		return nil
	}
	var goroutines, heap [2]int
	for cycle := range cycles {
		serving.Store(true)
		seen := called.Load()
		h.serve(c, gvr, handler)
		if cycle%4 != 0 { // the others stop before, or while, the first call
			h.eventually("a call", func() error {
				if called.Load() == seen {
					return errors.New("none")
				}
				return nil
			})
		}
		h.stopServing(c, gvr)
		serving.Store(false)
		if left := goroutinesOfWatches(); left != "" {
			t.Fatalf("a goroutine is left:\n%s", left)
		}
		if cycle == cycles/2-1 || cycle == cycles-1 {
			runtime.GC()
			var stats runtime.MemStats
			runtime.ReadMemStats(&stats)
			goroutines[cycle*2/cycles], heap[cycle*2/cycles] = runtime.NumGoroutine(), int(stats.HeapAlloc)
		}
	}
	h.noError(load())
	t.Logf("%d calls; after %d and %d cycles %v goroutines and %v bytes of heap", called.Load(), cycles/2, cycles, goroutines, heap)
	// A cycle that leaked anything at all would have left 500 of it.
	if goroutines[1] > goroutines[0]+100 || heap[1] > heap[0]+2<<20 {
		t.Errorf("grew from %v goroutines and %v bytes", goroutines, heap)
	}
}
