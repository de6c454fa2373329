package replica

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestL2_ALeaseThatCannotBeRenewedIsLostBeforeAnotherMayLead(t *testing.T) {
	for name, late := range map[string]time.Duration{"requests fail": 0, "requests hang": 0, "answers came late": 900 * time.Millisecond} {
		stuck := name == "requests hang"
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{}
				a, b, w, next, every := newRig(t, s, "a"), newRig(t, s, "b"), &worker{}, &worker{}, &worker{}
				wantNoError(t, a.Register("w", w))
				wantNoError(t, a.RegisterWithoutLeaderElection("every", every))
				wantNoError(t, b.Register("next", next))
				a.start()
				time.Sleep(time.Second)
				b.start()
				a.lease.set(func(_ context.Context, _ string, do func() error) error {
					err := do()
					time.Sleep(late)
					return err
				})
				time.Sleep(3 * time.Second)
				if stuck {
					a.lease.set(func(ctx context.Context, _ string, _ func() error) error {
						<-ctx.Done()
						return ctx.Err()
					})
				} else {
					a.lease.fail()
				}
				for w.lastCause() == nil {
					time.Sleep(time.Millisecond)
				}
				wantIs(t, w.lastCause(), ErrLeaseLost)
				if after := time.Since(s.now().RenewTime.Time); after > 2700*time.Millisecond+2*time.Millisecond {
					t.Errorf("lost %s after the last renewal", after)
				}
				wantLives(t, next, 0, 0)
				wantIs(t, a.write(t.Context()), ErrNotLeading)
				time.Sleep(4 * time.Second)
				wantLives(t, next, 1, 1)
				wantLives(t, every, 1, 1)
				before := a.lease.requests.Load()
				time.Sleep(time.Minute)
				if n := a.lease.requests.Load() - before; n > 130 {
					t.Errorf("it spins: %d requests in a minute", n)
				}
				a.lease.heal()
				time.Sleep(time.Second)
				wantNoError(t, b.stop())
				time.Sleep(2 * time.Second)
				wantLives(t, w, 2, 1)
				wantLives(t, every, 1, 1)
				if n, _ := Term(context.Background()); n != 0 {
					t.Error("a context without a term has one")
				}
				if got := a.Status(); !got.Leading || got.Term != 2 || got.Leader != got.Identity {
					t.Errorf("status %+v", got)
				}
				wantNoError(t, a.stop())
				if n := b.log.count("there is a new leader"); n < 2 { // a, and itself
					t.Errorf("%d leaders in b's log:\n%s", n, b.log)
				}
			})
		})
	}
}

func TestL2_ALostLeaseMayEndRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a, every := newRig(t, s, "a", func(o *Options) { o.OnLostLease = ExitOnLoss }), &worker{}
		wantNoError(t, a.RegisterWithoutLeaderElection("every", every))
		a.start()
		time.Sleep(time.Second)
		s.give("thief")
		err := a.result()
		wantIs(t, err, ErrLeaseLost)
		wantSays(t, err, "thief")
		wantLives(t, every, 1, 0)
		if got := s.now().HolderIdentity; got != "thief" {
			t.Errorf("the lease is held by %q", got)
		}
	})
}

func TestL2_NoTermBeginsBeforeTheWorkOfTheOldOneHasReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a, w := newRig(t, s, "a"), &worker{linger: 30 * time.Second}
		wantNoError(t, a.Register("lingers", w))
		a.start()
		time.Sleep(time.Second)
		s.delete()
		time.Sleep(5 * time.Second)
		wantNoError(t, a.Alive())
		time.Sleep(24 * time.Second)
		wantSays(t, a.Alive(), "lingers", "5s")
		wantLives(t, w, 1, 1)
		if a.lease.requests.Load() > 10 || s.history() != "a (none)" {
			t.Errorf("it campaigned: %d requests, %s", a.lease.requests.Load(), s.history())
		}
		if n := a.log.count("waiting for runnables to return"); n != 2 {
			t.Errorf("the log says %d times what holds it up:\n%s", n, a.log)
		}
		time.Sleep(8 * time.Second) // it claims the lease for three
		wantLives(t, w, 2, 1)
		wantNoError(t, a.Alive())
		w.mu.Lock()
		w.linger = 0
		w.mu.Unlock()
		wantNoError(t, a.stop())
	})
}

func TestL2_AWallClockThatIsSetAheadCostsATermAndNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a, w := newRig(t, s, "a"), &worker{}
		wantNoError(t, a.Register("w", w))
		var work context.Context
		a.lead("one", func(ctx context.Context) error {
			work = ctx
			<-ctx.Done()
			return nil
		})
		a.start()
		time.Sleep(time.Second)
		synctest.Wait()
		ctx := work
		a.ahead.Store(int64(time.Hour))
		wantIs(t, a.write(t.Context()), ErrNotLeading) // no timer has fired: the write itself looks
		wantIs(t, context.Cause(ctx), ErrLeaseLost)    // and to close is to lose
		synctest.Wait()
		wantIs(t, w.lastCause(), ErrLeaseLost)
		time.Sleep(2 * time.Second)
		wantLives(t, w, 2, 1)
		wantNoError(t, a.write(t.Context()))
		a.ahead.Store(0) // and back
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			wantNoError(t, a.write(t.Context()))
		}
		a.ahead.Store(int64(-time.Hour))
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			wantNoError(t, a.write(t.Context()))
		}
		wantLives(t, w, 2, 1)
		wantNoError(t, a.stop())
	})
}

// Nothing else looks: no write asks, and the elector is in a renewal that hangs.
func TestL2_AWallClockThatJumpsIsSeenWithoutAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, w := newRig(t, &server{}, "a"), &worker{}
		wantNoError(t, a.Register("w", w))
		a.start()
		time.Sleep(time.Second)
		var hangs atomic.Bool
		a.lease.set(func(ctx context.Context, _ string, _ func() error) error {
			hangs.Store(true)
			<-ctx.Done() // for a second
			return ctx.Err()
		})
		until(t, time.Second, hangs.Load)
		a.ahead.Store(int64(time.Hour))
		time.Sleep(500 * time.Millisecond) // RetryPeriod
		synctest.Wait()
		wantIs(t, w.ended(), ErrLeaseLost)
		a.crash()
	})
}

// Both clocks have gone on and no timer has fired: what was stopped in the middle of its work and asks its context first
// does no more of it.
func TestL2_AContextThatIsAskedLooksAtTheClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, &server{}, "a")
		given := make(chan context.Context, 1)
		a.lead("w", func(ctx context.Context) error {
			given <- ctx
			<-ctx.Done()
			return ctx.Err()
		})
		a.start()
		ctx := <-given
		type key struct{}
		value := context.WithValue(ctx, key{}, 1)
		derived, cancel := context.WithCancel(value)
		defer cancel()
		wantNoError(t, value.Err())
		a.ahead.Store(int64(time.Hour))
		wantNoError(t, derived.Err()) // as documented
		wantIs(t, value.Err(), context.Canceled)
		wantIs(t, ctx.Err(), context.Canceled)
		wantIs(t, derived.Err(), context.Canceled) // told by then, and by the same goroutine
		for _, c := range []context.Context{ctx, value, derived} {
			wantIs(t, context.Cause(c), ErrLeaseLost)
		}
		if n, ok := Term(derived); n != 1 || !ok {
			t.Errorf("term %d, %t", n, ok)
		}
		a.ahead.Store(0)
		wantNoError(t, a.stop())
	})
}

// The process was stopped between the request that wins and its answer.
func TestL2_ATermThatWasLostBeforeItBeganStartsNothing(t *testing.T) {
	for range 100 { // select picks
		synctest.Test(t, func(t *testing.T) {
			s := &server{}
			a := newRig(t, s, "a")
			var starts atomic.Int64
			a.lead("w", func(ctx context.Context) error {
				starts.Add(1)
				<-ctx.Done()
				return nil
			})
			a.lease.set(func(_ context.Context, verb string, do func() error) error {
				err := do()
				if verb == "create" {
					time.Sleep(10 * time.Second)
				}
				return err
			})
			a.start()
			time.Sleep(10*time.Second + time.Millisecond)
			if n := starts.Load(); n != 0 || a.log.count(`"msg"="leading"`) != 0 {
				t.Errorf("%d starts, and the log says\n%s", n, a.log)
			}
			time.Sleep(2 * time.Second)
			if n := starts.Load(); n != 1 || !a.Status().Leading {
				t.Errorf("%d starts, status %+v", n, a.Status())
			}
			wantNoError(t, a.stop())
		})
	}
}

func TestARequestForTheLeaseMayTakeHalfOfRenewDeadline(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Options)
		limit  time.Duration
	}{
		"the defaults":           {realistic, 5 * time.Second},
		"at least one second":    {func(o *Options) { o.RenewDeadline = 1500 * time.Millisecond }, time.Second},
		"not more than it lasts": {func(o *Options) { o.RenewDeadline = 700 * time.Millisecond }, 700 * time.Millisecond},
	} {
		for _, slow := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, slower: %t", name, slow), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a := newRig(t, &server{}, "a", c.change)
					takes := c.limit - 10*time.Millisecond
					if slow {
						takes = c.limit + 10*time.Millisecond
					}
					a.lease.set(func(ctx context.Context, _ string, do func() error) error {
						select {
						case <-time.After(takes):
							return do()
						case <-ctx.Done():
							return ctx.Err()
						}
					})
					a.start()
					var led bool
					for range 600 {
						time.Sleep(100 * time.Millisecond)
						led = led || a.Status().Leading
					}
					if got := a.Status(); led == slow || got.Leading == slow || got.Term > 1 {
						t.Errorf("it has led: %t, status %+v", led, got)
					}
					a.lease.heal()
					wantNoError(t, a.stop())
				})
			})
		}
	}
}
