package dynamiccontroller_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// runWatches runs the watches until stop, which returns what RunWatches did.
func (w *world) runWatches() (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- w.controller.RunWatches(ctx) }()
	synctest.Wait()
	return func() error {
		cancel()
		return <-result
	}
}

// A process that does not wait for a lease starts both halves at once, and nobody can tell which begins first.
func TestL5_RunWatchesTakesOverTheWatchesOfARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := w.types[0]
		w.put(gvr, "a")
		c := newCalls(succeed)
		w.serve(gvr, c.handle)
		stop := w.run()
		c.want(t, "a run that watches for itself", named("a"))
		w.client.ClearActions()
		watches := w.runWatches()
		if err := w.controller.RunWatches(context.Background()); err == nil {
			t.Error("two RunWatches at once")
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		w.put(gvr, "b")
		c.want(t, "a standby", named())
		stop = w.run()
		c.want(t, "a promotion", named("a", "b"))
		for _, action := range w.client.Actions() {
			if verb := action.GetVerb(); verb == "list" || verb == "watch" {
				t.Errorf("the watches were begun anew: %v", action)
			}
		}
		if err := watches(); err != nil {
			t.Error(err)
		}
		if err := stop(); err == nil {
			t.Error("Run went on without watches")
		}
	})
}

// Whatever their order, neither fails for the other's sake, and in the end nothing runs.
func TestL5_RunAndRunWatchesBeginAndEndInAnyOrder(t *testing.T) {
	w := newWorld(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
	if err := w.controller.StartServingGVK(t.Context(), w.types[0], succeed); err != nil {
		t.Fatal(err)
	}
	for range 500 {
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() {
			if err := w.controller.RunWatches(ctx); err != nil {
				t.Error(err)
			}
		})
		running.Go(func() {
			if err := w.controller.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		running.Go(cancel)
		running.Wait()
	}
}

// clocked is a context that knows that it ended before anybody is told, as replica's does when a process was stopped.
type clocked struct {
	context.Context
	isOver atomic.Bool
}

func (c *clocked) Err() error {
	if c.isOver.Load() {
		return context.DeadlineExceeded
	}
	return c.Context.Err()
}

func TestL1_NoHandlerStartsOnceTheContextSaysThatItEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr := w.types[0]
		c := newCalls(succeed)
		w.serve(gvr, c.handle)
		ctx, cancel := context.WithCancel(context.Background())
		run := &clocked{Context: ctx}
		ended := make(chan error)
		go func() { ended <- w.controller.Run(run) }()
		synctest.Wait()
		run.isOver.Store(true)
		for _, name := range []string{"a", "b", "c"} {
			w.put(gvr, name)
		}
		c.want(t, "after the end", named())
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		stop := w.run()
		c.want(t, "the next run", named("a", "b", "c"))
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
