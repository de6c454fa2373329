package dynamiccontroller_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A handler from the first run returns after the second run has begun.
func TestRunContext_IdentifiesTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 3, ResyncPeriod: -1, ShutdownTimeout: time.Second})
		hang, hung := make(chan struct{}), f.id(f.types[0], "hung")
		var mu sync.Mutex
		var runs []context.Context
		handler := func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			mu.Lock()
			runs = append(runs, dynamiccontroller.RunContext(ctx))
			first := len(runs) <= 3
			mu.Unlock()
			if first && id == hung {
				<-hang
			}
			return nil
		}
		for _, gvr := range f.types {
			f.put(gvr, "hung")
			f.serve(gvr, handler)
		}
		f.put(f.types[0], "other")
		calls := func() []context.Context {
			mu.Lock()
			defer mu.Unlock()
			return runs
		}

		stop := f.start()
		first := calls()
		if len(first) != 3 || first[0] != first[1] || first[0] != first[2] {
			t.Fatalf("the handler calls of the first run have the RunContexts %v, want three that are equal", first)
		}
		if err := stop(); err == nil {
			t.Error("Run did not report the handler that is still running")
		}
		if err := first[0].Err(); err != nil {
			t.Errorf("the RunContext was cancelled while a handler from the run was running: %v", err)
		}
		stop = f.start()
		second := calls()[3:]
		if len(second) != 2 || second[0] != second[1] || second[0] == first[0] {
			t.Errorf("the handler calls of the second run have the RunContexts %v, want two that are equal and new", second)
		}
		close(hang)
		synctest.Wait()
		if first[0].Err() == nil || second[0].Err() != nil {
			t.Errorf("after the first run's last handler returned, the contexts have the errors %v and %v, want one and none",
				first[0].Err(), second[0].Err())
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if second[0].Err() == nil {
			t.Error("the RunContext of the second run was not cancelled when the run ended")
		}
	})
}

// Work that continues after a handler call, but not after the run, uses the RunContext as its context. If RunContext is
// called with a RunContext, it must return that RunContext.
func TestRunContext_IsTheSameForDerivedContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		calls := 0
		f.put(f.types[0], "a")
		f.serve(f.types[0], func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			calls++
			run := dynamiccontroller.RunContext(ctx)
			withTimeout, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			for name, derived := range map[string]context.Context{
				"WithTimeout":               withTimeout,
				"WithoutCancel":             context.WithoutCancel(ctx),
				"RunContext":                run,
				"WithoutCancel(RunContext)": context.WithoutCancel(run),
			} {
				if got := dynamiccontroller.RunContext(derived); got != run {
					t.Errorf("for the context from %s, RunContext returned %v, want %v", name, got, run)
				}
			}
			if n := testing.AllocsPerRun(100, func() { dynamiccontroller.RunContext(ctx) }); n > 0 {
				t.Errorf("RunContext makes %.1f allocations, want none", n)
			}
			return nil
		})
		if err := f.start()(); err != nil || calls != 1 {
			t.Errorf("the handler was called %d times, and Run returned %v; want one call and nil", calls, err)
		}
	})
}

func TestRunContext_IsBackgroundOutsideHandlers(t *testing.T) {
	if run := dynamiccontroller.RunContext(t.Context()); run != context.Background() {
		t.Errorf("RunContext returned %v, want context.Background()", run)
	}
}
