package integration

import (
	"context"
	"errors"
	"flag"
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

// seriesMetrics implements Metrics. It records whether metric series exist.
type seriesMetrics struct {
	dynamiccontroller.NoMetrics
	exists atomic.Bool
}

func (m *seriesMetrics) Reconciled(dynamiccontroller.Reconcile) {
	m.exists.Store(true)
}

func (m *seriesMetrics) Forget(schema.GroupVersionResource) { m.exists.Store(false) }

func TestS1_StopWaitsForHandlersAndRemovesAllState(t *testing.T) {
	h := newHarness(t)
	gvr := h.widgets()
	metrics := &seriesMetrics{}
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
			t.Errorf("the handler's context was cancelled with cause %v", cause)
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
	h.eventually("all workers available to the type are blocked", func() error {
		if n := running.Load(); n != 3 {
			return fmt.Errorf("got %d blocked handlers, want 3", n)
		}
		return nil
	})

	h.stopServing(c, gvr)
	if running.Load() != 0 || ended.Load() != 3 {
		t.Errorf("after StopServiceGVK, %d handlers are running and %d have returned, want 0 and 3",
			running.Load(), ended.Load())
	}
	if status := c.Status(); len(status) != 0 {
		t.Errorf("got status %+v for a stopped type", status)
	}
	if _, err := c.Lister(gvr); !errors.Is(err, dynamiccontroller.ErrNotServed) {
		t.Errorf("Lister: got %v, want %v", err, dynamiccontroller.ErrNotServed)
	}
	if metrics.exists.Load() {
		t.Error("the metrics of the type were not removed")
	}
	if err := goleak.Find(append(ignoreConnections(), before)...); err != nil {
		t.Error(err)
	}

	// When the type is served again, each object must be reconciled once. Earlier failures and delays must have no effect.
	after, again := calls.sum(), newRecorder(t, nil)
	h.serve(c, gvr, again.handle)
	again.waitForTotal(7)
	h.stopServing(c, gvr)
	if calls.sum() != after || again.sum() != 7 {
		t.Errorf("got %d more calls to the old handler and %d to the new one, want 0 and 7", calls.sum()-after, again.sum())
	}
}

// ignoreConnections returns options that ignore the goroutines of idle connections, which client-go's transport keeps
// open.
func ignoreConnections() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*ClientConn).readLoop"),
	}
}

func TestS1_StopWithExpiredContextListsRunningHandlers(t *testing.T) {
	h := newHarness(t)
	gvr := h.widgets()
	c := h.controller(dynamiccontroller.Config{})
	h.run(c)
	release := make(chan struct{})
	calls := newRecorder(t, func(context.Context, dynamiccontroller.ObjectIdentifiers) error {
		<-release // Ignore the context.
		return nil
	})
	h.serve(c, gvr, calls.handle)
	h.apply(gvr, "hanging", 0)
	id := h.id(gvr, "hanging")
	calls.waitFor(id, 1)

	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := c.StopServiceGVK(ctx, gvr)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), id.String()) {
			t.Fatalf("got error %v, want %v that contains %s", err, context.DeadlineExceeded, id)
		}
	}
	if len(c.Status()) != 0 {
		t.Error("the type is still in the status")
	}
	h.apply(gvr, "other", 0)
	close(release)
	h.stopServing(c, gvr)
	if n := calls.sum(); n != 1 {
		t.Errorf("got %d calls, want 1", n)
	}
}

func TestS1_StopFromOwnHandlerFails(t *testing.T) {
	h := newHarness(t)
	gvr, other := h.widgets(), h.newType()
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
		t.Errorf("stop the handler's own type: got %v", err)
	}
	if err := <-result; err != nil {
		t.Errorf("stop another type: %v", err)
	}
	h.apply(gvr, "two", 0)
	calls.waitFor(h.id(gvr, "two"), 1)
}

// goroutinesOfWatches returns the stack of a watch goroutine that is blocked, or an empty string if no watch goroutine
// is blocked. It ignores runnable and running goroutines, because they may be about to exit and the test cannot wait
// for that.
func goroutinesOfWatches() string {
	stacks := make([]byte, 1<<20)
	for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		head, _, _ := strings.Cut(stack, "\n")
		if strings.Contains(head, "[runnable") || strings.Contains(head, "[running") {
			continue
		}
		for _, function := range []string{"internal/typewatch.(*Watch).Run", "watch.(*StreamWatcher).receive"} {
			if strings.Contains(stack, function) {
				return stack
			}
		}
	}
	return ""
}

var stopCycles = flag.Int("cycles", 200,
	"number of times that TestS1_StopsUnderLoadLeakNothing serves and stops a type")

// The test repeatedly starts and stops serving a type while the type's objects change.
func TestS1_StopsUnderLoadLeakNothing(t *testing.T) {
	const objects = 20
	cycles := *stopCycles
	h := newHarness(t)
	gvr := h.widgets()
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
			t.Error("handler called after StopServiceGVK returned")
		}
		called.Add(1)
		return nil
	}
	var goroutines, heap [2]int
	for cycle := range cycles {
		serving.Store(true)
		seen := called.Load()
		h.serve(c, gvr, handler)
		if cycle%4 != 0 { // In the other cycles, the type is stopped before or during the first call.
			h.eventually("the handler is called", func() error {
				if called.Load() == seen {
					return errors.New("no call")
				}
				return nil
			})
		}
		h.stopServing(c, gvr)
		serving.Store(false)
		if left := goroutinesOfWatches(); left != "" {
			t.Fatalf("leaked goroutine:\n%s", left)
		}
		if cycle == cycles/2-1 || cycle == cycles-1 {
			runtime.GC()
			var stats runtime.MemStats
			runtime.ReadMemStats(&stats)
			goroutines[cycle*2/cycles], heap[cycle*2/cycles] = runtime.NumGoroutine(), int(stats.HeapAlloc)
		}
	}
	h.noError(load())
	t.Logf("%d calls; %v goroutines and %v bytes of heap after %d and %d cycles",
		called.Load(), goroutines, heap, cycles/2, cycles)
	// If each cycle leaked one goroutine, the second count would be higher than the first by half of the cycles. Leaks of
	// less than 20 KiB per cycle are found with -cycles 1000.
	if goroutines[1] > goroutines[0]+cycles/10 || heap[1] > heap[0]+2<<20 {
		t.Errorf("leak: goroutines %v, heap bytes %v", goroutines, heap)
	}
}
