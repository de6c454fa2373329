package dynamiccontroller_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A process that does not wait for a lease starts Run and RunWatches together, in any order. The watches run until both
// have ended.
func TestL5_WatchesRunAsLongAsRunOrRunWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		f.put(gvr, "a")
		c := newCalls(succeed)
		f.serve(gvr, c.handle)
		stop := f.run()
		c.want(t, "a run that starts the watches itself", named("a"))
		f.client.ClearActions()
		watches := f.runWatches()
		if err := f.controller.RunWatches(context.Background()); err == nil {
			t.Error("RunWatches was started while it was already running")
		}
		stop()
		f.put(gvr, "b")
		c.want(t, "a standby", named())
		stop = f.run()
		c.want(t, "a promotion", named("a", "b"))
		for _, action := range f.client.Actions() {
			if verb := action.GetVerb(); verb == "list" || verb == "watch" {
				t.Errorf("the watches were started again: %v", action)
			}
		}
		watches()
		f.put(gvr, "c")
		c.want(t, "the run, which keeps the watches running", named("c"))
		stop()
		if state := f.status(gvr).State; state != dynamiccontroller.TypeStopped {
			t.Errorf("the state of the type is %s after Run and RunWatches have ended, want Stopped", state)
		}
	})
}

func TestL5_RunAndRunWatchesStartAndEndInAnyOrder(t *testing.T) {
	f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
	if err := f.controller.StartServingGVK(t.Context(), f.types[0], succeed); err != nil {
		t.Fatal(err)
	}
	for range 500 {
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() {
			if err := f.controller.RunWatches(ctx); err != nil {
				t.Error(err)
			}
		})
		running.Go(func() {
			if err := f.controller.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		running.Go(cancel)
		running.Wait()
	}
}

// clocked is a context whose Err returns an error before Done is closed. The contexts of package replica do so after
// the process was suspended.
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

func TestL1_NoHandlerStartsAfterTheContextHasAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		gvr := f.types[0]
		c := newCalls(succeed)
		f.serve(gvr, c.handle)
		ctx, cancel := context.WithCancel(context.Background())
		run := &clocked{Context: ctx}
		ended := make(chan error)
		go func() { ended <- f.controller.Run(run) }()
		synctest.Wait()
		run.isOver.Store(true)
		for _, name := range []string{"a", "b", "c"} {
			f.put(gvr, name)
		}
		c.want(t, "after the context of Run returned an error", named())
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		stop := f.run()
		c.want(t, "the next run", named("a", "b", "c"))
		stop()
	})
}
