package replica

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
)

// returnsSoon fails the test if f does not return. A goroutine that waits for a mutex is not durably blocked, so synctest
// cannot detect the deadlocks that these tests look for.
func returnsSoon(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s has not returned", what)
	}
}

// openTerm returns a term that nothing renews, and the context of its runnables.
func openTerm(t testing.TB, clock clock, o Options) (*term, context.Context, context.CancelCauseFunc) {
	opened := (&fence{clock: clock}).open(clock.now(), o)
	ctx, end := opened.context(t.Context())
	t.Cleanup(func() { end(nil) })
	return opened, ctx, end
}

// The context package calls Err of a parent that has ended when it derives a child.
func TestL1_AdmitDoesNotDeadlockOnAnEndedTermContext(t *testing.T) {
	type key struct{}
	for name, derive := range map[string]func(context.Context) context.Context{
		"the term's context":         func(ctx context.Context) context.Context { return ctx },
		"a value context made of it": func(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			opened, ctx, end := openTerm(t, realClock(), testOptions())
			end(errBroken)
			returnsSoon(t, "admit", func() {
				admitted, land, err := opened.admit(derive(ctx))
				if err != nil {
					t.Error(err) // the fence is open until the term is over
					return
				}
				defer land()
				if cause := context.Cause(admitted); !errors.Is(cause, errBroken) {
					t.Errorf("the context ended with %v", cause)
				}
			})
			wantNoError(t, opened.check())
		})
	}
}

func TestL1_ErrOfATermContextNeedsNoLock(t *testing.T) {
	var ahead atomic.Int64
	moved := clock{wall: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }}
	opened, ctx, _ := openTerm(t, moved, testOptions())
	opened.mu.Lock()
	defer opened.mu.Unlock()
	returnsSoon(t, "Err", func() {
		if err := ctx.Err(); err != nil {
			t.Error(err)
		}
		ahead.Store(int64(time.Hour))
		for range 2 {
			if err := ctx.Err(); !errors.Is(err, context.Canceled) {
				t.Errorf("Err is %v after the deadline", err)
			}
			if cause := context.Cause(ctx); !errors.Is(cause, ErrLeaseLost) {
				t.Errorf("the cause is %v", cause)
			}
			ahead.Store(0) // the term stays over
		}
	})
}

// asksOnDone is a caller's context whose methods look at the context that it wraps.
type asksOnDone struct{ context.Context }

func (c asksOnDone) Done() <-chan struct{} {
	_ = c.Context.Err()
	return c.Context.Done()
}

func (c asksOnDone) Value(key any) any {
	_ = c.Context.Err()
	return c.Context.Value(key)
}

// Cancelling a context calls Done and Value of its parent.
func TestL1_EndingATermDoesNotDeadlockOnACallersContext(t *testing.T) {
	opened, ctx, _ := openTerm(t, realClock(), testOptions())
	admitted, land, err := opened.admit(asksOnDone{ctx})
	wantNoError(t, err)
	defer land()
	returnsSoon(t, "lose", func() { _ = opened.lose("for the test") })
	<-admitted.Done()
	returnsSoon(t, "admit", func() {
		_, _, err := opened.admit(asksOnDone{ctx})
		if !errors.Is(err, ErrNotLeading) {
			t.Errorf("admitted after the end: %v", err)
		}
	})
	if n := len(opened.inFlight); n != 0 {
		t.Errorf("%d writes are in flight", n)
	}
}

func TestL2_ErrPastTheDeadlineCancelsWritesInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, &server{}, "a")
		given := make(chan context.Context, 1)
		a.lead("w", func(ctx context.Context) error {
			given <- ctx
			<-ctx.Done()
			time.Sleep(time.Second) // the end of the term would cancel the write as well
			return nil
		})
		a.start()
		ctx := <-given
		a.wire.hold.Store(true)
		var result error
		var writing sync.WaitGroup
		writing.Go(func() { result = a.write(context.Background()) })
		synctest.Wait()
		a.ahead.Store(int64(time.Hour))
		wantIs(t, ctx.Err(), context.Canceled)
		a.ahead.Store(0) // nothing but Err has seen that the deadline had passed
		jumped := time.Now()
		writing.Wait()
		if took := time.Since(jumped); took > 0 {
			t.Errorf("cancelled after %s", took)
		}
		wantIs(t, result, ErrNotLeading)
		wantIs(t, result, ErrLeaseLost)
		wantNoError(t, a.stop())
	})
}

// The term ends between the renewal's look at the clocks and the moment at which it counts.
func TestL2_ARenewalDoesNotReopenATermThatErrHasEnded(t *testing.T) {
	var during func()
	moved := clock{wall: func() time.Time {
		if f := during; f != nil {
			during = nil
			f()
		}
		return time.Now()
	}}
	opened, ctx, _ := openTerm(t, moved, testOptions())
	wantNoError(t, opened.renew(moved.now()))
	sent := moved.now()
	sent.wall = sent.wall.Add(-time.Hour) // seen by Err, and not by the renewal that has begun
	during = func() {
		opened.update(func(s *termState) { s.renewed = sent })
		wantIs(t, ctx.Err(), context.Canceled)
	}
	wantIs(t, opened.renew(instant{mono: time.Now(), wall: time.Now()}), ErrLeaseLost)
	wantIs(t, ctx.Err(), context.Canceled)
	wantIs(t, context.Cause(ctx), ErrLeaseLost)
	_, _, err := opened.admit(context.Background())
	wantIs(t, err, ErrNotLeading)
}

// busyWriters adds n runnables that write until their context ends, through a layer above the fence that takes up to
// 20 milliseconds.
func (r *rig) busyWriters(n int, wrote *sync.WaitGroup) {
	cfg := r.FencedConfig()
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return tripper(func(q *http.Request) (*http.Response, error) {
			time.Sleep(rand.N(20 * time.Millisecond))
			return next.RoundTrip(q)
		})
	})
	client, err := rest.HTTPClientFor(cfg)
	wantNoError(r.t, err)
	wrote.Add(n)
	for i := range n {
		first := sync.OnceFunc(wrote.Done)
		r.lead(fmt.Sprintf("writer-%d", i), func(ctx context.Context) error {
			for {
				err := send(ctx, client, http.MethodPost, nil)
				first()
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if err != nil {
					return err
				}
			}
		})
	}
}

func TestL1_ACleanEndDoesNotHangWithBusyWriters(t *testing.T) {
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			s := &server{}
			a := newRig(t, s, "a")
			var wrote sync.WaitGroup
			a.busyWriters(8, &wrote)
			a.start()
			wrote.Wait()
			if err := a.stop(); err != nil {
				t.Error(err)
			}
			if got := s.now(); !released(&got) {
				t.Errorf("the lease is %+v", got)
			}
		})
	}
	returnsSoon(t, "one of 50 replicas", all.Wait)
}

func TestL1_AStepDownDoesNotHangWithBusyWriters(t *testing.T) {
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			s := &server{}
			a := newRig(t, s, "a", stepsDown)
			var wrote sync.WaitGroup
			a.busyWriters(8, &wrote)
			a.lead("culprit", func(context.Context) error {
				wrote.Wait()
				return errBroken
			})
			a.start()
			wrote.Wait()
			until(t, 10*time.Second, func() bool {
				got := s.now()
				return released(&got)
			})
			if err := a.stop(); err != nil && !errors.Is(err, errBroken) {
				t.Error(err)
			}
		})
	}
	returnsSoon(t, "one of 50 replicas", all.Wait)
}

func BenchmarkTermContextErr(b *testing.B) {
	plain, cancel := context.WithCancel(context.Background())
	defer cancel()
	_, elected, _ := openTerm(b, realClock(), Options{LeaseDuration: 24 * time.Hour})
	ended, end := context.WithCancelCause(context.Background())
	end(errBroken)
	for name, ctx := range map[string]context.Context{"plain": plain, "ended": ended, "term": elected} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				_ = ctx.Err()
			}
		})
		b.Run(name+"-parallel", func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					_ = ctx.Err()
				}
			})
		})
	}
}

func TestContextOfATermIsComparable(t *testing.T) {
	_, first, _ := openTerm(t, realClock(), testOptions())
	_, second, _ := openTerm(t, realClock(), testOptions())
	seen := map[context.Context]bool{first: true}
	if !seen[first] || seen[second] || first == second {
		t.Error("contexts of terms do not compare by identity")
	}
}
