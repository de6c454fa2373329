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

// openTerm returns a new term that nothing renews, the context of its runnables, and a function that cancels this
// context.
func openTerm(t testing.TB, clock clock, o Options) (*term, context.Context, context.CancelCauseFunc) {
	opened := (&fence{clock: clock}).open(clock.now(), o)
	ctx, cancel := opened.context(t.Context())
	t.Cleanup(func() { cancel(nil) })
	return opened, ctx, cancel
}

// The context package calls Err on a cancelled parent when it derives a child.
func TestL1_AdmitDoesNotDeadlockWithACancelledTermContext(t *testing.T) {
	type key struct{}
	for name, derive := range map[string]func(context.Context) context.Context{
		"context of the term": func(ctx context.Context) context.Context { return ctx },
		"derived context":     func(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			opened, ctx, cancel := openTerm(t, clock{}, testOptions())
			cancel(errBroken)
			mustReturn(t, "admit", func() {
				admitted, done, err := opened.admit(derive(ctx), false)
				if err != nil {
					t.Error(err) // the fence is open until the term is over
					return
				}
				defer done()
				if cause := context.Cause(admitted); !errors.Is(cause, errBroken) {
					t.Errorf("the context was cancelled with %v, want %v", cause, errBroken)
				}
			})
			wantNoError(t, opened.check())
		})
	}
}

func TestL1_TermContextErrTakesNoLock(t *testing.T) {
	var ahead atomic.Int64
	moved := clock{wall: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }}
	opened, ctx, _ := openTerm(t, moved, testOptions())
	opened.mu.Lock()
	defer opened.mu.Unlock()
	mustReturn(t, "Err", func() {
		if err := ctx.Err(); err != nil {
			t.Error(err)
		}
		ahead.Store(int64(time.Hour))
		for range 2 {
			if err := ctx.Err(); !errors.Is(err, context.Canceled) {
				t.Errorf("after the deadline, Err returned %v, want Canceled", err)
			}
			if cause := context.Cause(ctx); !errors.Is(cause, ErrLeaseLost) {
				t.Errorf("after the deadline, the cause is %v, want ErrLeaseLost", cause)
			}
			ahead.Store(0) // the term remains over
		}
	})
}

// errCallingContext is a context whose methods call Err on the context that it wraps.
type errCallingContext struct{ context.Context }

func (c errCallingContext) Done() <-chan struct{} {
	_ = c.Context.Err()
	return c.Context.Done()
}

func (c errCallingContext) Value(key any) any {
	_ = c.Context.Err()
	return c.Context.Value(key)
}

// Cancelling a context calls Done and Value on its parent.
func TestL1_EndingATermDoesNotDeadlockWithACallersContext(t *testing.T) {
	opened, ctx, _ := openTerm(t, clock{}, testOptions())
	admitted, done, err := opened.admit(errCallingContext{ctx}, false)
	wantNoError(t, err)
	defer done()
	mustReturn(t, "lose", func() { _ = opened.lose("for the test") })
	<-admitted.Done()
	mustReturn(t, "admit", func() {
		_, _, err := opened.admit(errCallingContext{ctx}, false)
		if !errors.Is(err, ErrNotLeading) {
			t.Errorf("after the end of the term, admit returned %v, want ErrNotLeading", err)
		}
	})
	if n := len(opened.inFlight); n != 0 {
		t.Errorf("%d writes are in flight, want none", n)
	}
}

func TestL2_ErrAfterTheDeadlineCancelsWritesInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, &fakeServer{}, "a")
		contexts := make(chan context.Context, 1)
		a.registerFunc("work", func(ctx context.Context) error {
			contexts <- ctx
			<-ctx.Done()
			time.Sleep(time.Second) // the end of the term would cancel the write too
			return nil
		})
		a.start()
		ctx := <-contexts
		a.transport.block.Store(true)
		var result error
		var writing sync.WaitGroup
		writing.Go(func() { result = a.write(context.Background()) })
		synctest.Wait()
		a.ahead.Store(int64(time.Hour))
		wantErrorIs(t, ctx.Err(), context.Canceled)
		a.ahead.Store(0) // only Err has observed the deadline
		jumped := time.Now()
		writing.Wait()
		if took := time.Since(jumped); took > 0 {
			t.Errorf("the write was cancelled after %s", took)
		}
		wantErrorIs(t, result, ErrNotLeading)
		wantErrorIs(t, result, ErrLeaseLost)
		wantNoError(t, a.stop())
	})
}

// The term ends after the renewal has checked the clocks and before it is recorded.
func TestL2_RenewalDoesNotReopenATermThatErrHasEnded(t *testing.T) {
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
	sent.Wall = sent.Wall.Add(-time.Hour) // observed by Err, but not by the renewal that has begun
	during = func() {
		opened.update(func(s *termState) { s.renewed = sent })
		wantErrorIs(t, ctx.Err(), context.Canceled)
	}
	wantErrorIs(t, opened.renew(instant{Mono: time.Now(), Wall: time.Now()}), ErrLeaseLost)
	wantErrorIs(t, ctx.Err(), context.Canceled)
	wantErrorIs(t, context.Cause(ctx), ErrLeaseLost)
	_, _, err := opened.admit(context.Background(), false)
	wantErrorIs(t, err, ErrNotLeading)
}

// registerBusyWriters registers runnables that write until their context is cancelled. A transport wrapper above the
// fence delays each write by up to 20 milliseconds. The WaitGroup is done when each runnable has written at least once.
func (r *rig) registerBusyWriters(wrote *sync.WaitGroup) {
	const writers = 8
	cfg := r.FencedConfig()
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripperFunc(func(q *http.Request) (*http.Response, error) {
			time.Sleep(rand.N(20 * time.Millisecond))
			return next.RoundTrip(q)
		})
	})
	client, err := rest.HTTPClientFor(cfg)
	wantNoError(r.t, err)
	wrote.Add(writers)
	for i := range writers {
		first := sync.OnceFunc(wrote.Done)
		r.registerFunc(fmt.Sprintf("writer-%d", i), func(ctx context.Context) error {
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

func TestL1_ShutdownWithBusyWritersDoesNotHang(t *testing.T) {
	mustReturn(t, "one of 50 replicas", func() {
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				s := &fakeServer{}
				a := newRig(t, s, "a", defaultDurations)
				var wrote sync.WaitGroup
				a.registerBusyWriters(&wrote)
				a.start()
				wrote.Wait()
				err, lease := a.stop(), s.lease()
				if err != nil || !isReleased(&lease) {
					t.Errorf("error %v, lease %+v", err, lease)
				}
			})
		}
		all.Wait()
	})
}

func TestL1_StepDownWithBusyWritersDoesNotHang(t *testing.T) {
	mustReturn(t, "one of 50 replicas", func() {
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				s := &fakeServer{}
				a := newRig(t, s, "a", defaultDurations, stepDown)
				var wrote sync.WaitGroup
				a.registerBusyWriters(&wrote)
				a.registerFunc("failing", func(context.Context) error {
					wrote.Wait()
					return errBroken
				})
				a.start()
				wrote.Wait()
				for lease := s.lease(); !isReleased(&lease); lease = s.lease() {
					time.Sleep(time.Millisecond)
				}
				if err := a.stop(); err != nil && !errors.Is(err, errBroken) {
					t.Error(err)
				}
			})
		}
		all.Wait()
	})
}

func BenchmarkTermContextErr(b *testing.B) {
	plain, cancel := context.WithCancel(context.Background())
	defer cancel()
	_, elected, _ := openTerm(b, clock{}, Options{LeaseDuration: 24 * time.Hour})
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

func TestTermContext_IsComparable(t *testing.T) {
	_, first, _ := openTerm(t, clock{}, testOptions())
	_, second, _ := openTerm(t, clock{}, testOptions())
	seen := map[context.Context]bool{first: true}
	if !seen[first] || seen[second] || first == second {
		t.Error("a term context is not equal to itself, or is equal to another one")
	}
}
