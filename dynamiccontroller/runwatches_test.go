package dynamiccontroller_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// runWatches calls RunWatches in the background. Stop ends it and returns its error.
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

// A process that does not wait for a lease starts Run and RunWatches together, in any order. The watches run until both
// have ended.
func TestL5_WatchesRunAsLongAsRunOrRunWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := w.types[0]
		w.put(gvr, "a")
		c := newCalls(succeed)
		w.serve(gvr, c.handle)
		stop := w.run()
		c.want(t, "a run that starts the watches itself", named("a"))
		w.client.ClearActions()
		watches := w.runWatches()
		if err := w.controller.RunWatches(context.Background()); err == nil {
			t.Error("RunWatches was started twice")
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
				t.Errorf("the watches were started again: %v", action)
			}
		}
		if err := watches(); err != nil {
			t.Error(err)
		}
		w.put(gvr, "c")
		c.want(t, "the run, which keeps the watches running", named("c"))
		if err := stop(); err != nil {
			t.Error(err)
		}
		if state := w.status(gvr).State; state != dynamiccontroller.TypeStopped {
			t.Errorf("the type is %s after both have ended", state)
		}
	})
}

func TestL5_RunAndRunWatchesStartAndEndInAnyOrder(t *testing.T) {
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

// clocked is a context whose Err reports the end before Done is closed, like that of package replica after the process
// was suspended.
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

func TestL1_NoHandlerStartsOnceErrReportsTheEnd(t *testing.T) {
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
