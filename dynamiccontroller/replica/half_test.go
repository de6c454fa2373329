package replica

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func alone(o *Options) { o.LeaderElection = ptr.To(false) }

func TestNamesAreUniqueAndNothingIsRegisteredForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &server{}, "a", alone)
		wantNoError(t, r.Register("x", &worker{}))
		wantSays(t, r.Register("x", &worker{}), `"x"`, "taken")
		wantSays(t, r.RegisterWithoutLeaderElection("x", &worker{}), "taken")
		wantNoError(t, r.RegisterWithoutLeaderElection("y", &worker{}))
		wantSays(t, r.Register("y", &worker{}), "taken")
		wantSays(t, r.Register("", &worker{}), "empty")
		wantSays(t, r.Register("z", nil), "nil")
		r.start()
		synctest.Wait()
		wantIs(t, r.Run(t.Context()), errRunning)
		wantNoError(t, r.stop())
		wantIs(t, r.Register("z", &worker{}), errEnded)
		wantIs(t, r.RegisterWithoutLeaderElection("z", &worker{}), errEnded)
		wantIs(t, r.Run(t.Context()), errEnded)
	})
}

func TestWhatIsRegisteredWhileItRunsStartsInItsHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		leader, standby := newRig(t, s, "a").start(), newRig(t, s, "b")
		time.Sleep(time.Second)
		standby.start()
		time.Sleep(time.Second)
		for _, r := range []*rig{leader, standby} {
			every, lead := &worker{}, &worker{}
			wantNoError(t, r.RegisterWithoutLeaderElection("every", every))
			wantNoError(t, r.Register("lead", lead))
			synctest.Wait()
			wantLives(t, every, 1, 1)
			if r == leader {
				wantLives(t, lead, 1, 1)
			} else {
				wantLives(t, lead, 0, 0)
				wantNoError(t, leader.stop())
				time.Sleep(2 * time.Second)
				wantLives(t, lead, 1, 1)
				wantLives(t, every, 1, 1)
			}
		}
		wantNoError(t, standby.stop())
	})
}

func TestARunnableThatEndsByItselfEndsRunWithItsName(t *testing.T) {
	for name, f := range map[string]func(context.Context) error{
		"failed: broken": func(context.Context) error { return errBroken },
		"panic: oh":      func(context.Context) error { panic("oh") },
		"returned before its context was cancelled": func(context.Context) error { return nil },
		"its goroutine":    func(context.Context) error { runtime.Goexit(); return nil },
		"context canceled": func(context.Context) error { return context.Canceled },
	} {
		for _, leads := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &server{}
					r, other, every := newRig(t, s, "a"), &worker{}, &worker{}
					wantNoError(t, r.Register("other", other))
					wantNoError(t, r.RegisterWithoutLeaderElection("every", every))
					late := func(ctx context.Context) error {
						time.Sleep(time.Second)
						return f(ctx)
					}
					if leads {
						wantNoError(t, r.Register("culprit", RunFunc(late)))
					} else {
						wantNoError(t, r.RegisterWithoutLeaderElection("culprit", RunFunc(late)))
					}
					wantSays(t, r.Run(t.Context()), `"culprit"`, name)
					wantLives(t, other, 1, 0)
					wantLives(t, every, 1, 0)
					// Who has returned has joined what it started. A panic says nothing of it.
					want := "a "
					if leads && (strings.Contains(name, "panic") || strings.Contains(name, "goroutine")) {
						want = "a"
					}
					if h := s.history(); h != want {
						t.Errorf("the lease's holders were %q, not %q", h, want)
					}
					wantIs(t, r.write(t.Context()), ErrNotLeading)
				})
			})
		}
	}
}

func TestAFailureMayStepDownInsteadAndBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		r := newRig(t, s, "a", func(o *Options) { o.OnFailure = StepDown })
		every := &worker{}
		wantNoError(t, r.RegisterWithoutLeaderElection("every", every))
		var mu sync.Mutex
		var terms []int64
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(terms)
		}
		r.lead("culprit", func(ctx context.Context) error {
			n, _ := Term(ctx)
			mu.Lock()
			defer mu.Unlock()
			terms = append(terms, n)
			return errBroken
		})
		r.start()
		time.Sleep(time.Minute)
		if n := count(); n < 4 || n > 7 {
			t.Errorf("%d terms in a minute", n)
		}
		wantLives(t, every, 1, 1)
		if got := s.now().HolderIdentity; got != "" {
			t.Errorf("the lease is held by %q during the backoff", got)
		}
		time.Sleep(time.Hour)
		if n := count(); n > 70 {
			t.Errorf("%d terms in an hour", n)
		}
		wantNoError(t, r.stop())
	})
}

func TestASteppedDownReplicaLetsAnotherLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a, b, w := newRig(t, s, "a", func(o *Options) { o.OnFailure = StepDown }), newRig(t, s, "b"), &worker{}
		a.lead("culprit", func(context.Context) error {
			time.Sleep(5 * time.Second)
			return errBroken
		})
		wantNoError(t, b.Register("w", w))
		a.start()
		time.Sleep(time.Second)
		b.start()
		time.Sleep(4 * time.Second)
		wantLives(t, w, 0, 0)
		time.Sleep(1100 * time.Millisecond) // 2.2 x RetryPeriod
		wantLives(t, w, 1, 1)
		wantNoError(t, b.stop())
		wantNoError(t, a.stop())
	})
}

func TestL1_WhatAPanicLeftRunningKeepsOthersFromLeading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a, b, next := newRig(t, s, "a", func(o *Options) { o.OnFailure = StepDown }), newRig(t, s, "b"), &worker{}
		var left atomic.Bool
		a.lead("careless", func(context.Context) error {
			go func() {
				left.Store(true)
				time.Sleep(5 * time.Second)
				left.Store(false)
			}()
			time.Sleep(3 * time.Second)
			panic("oh")
		})
		wantNoError(t, b.Register("next", next))
		a.start()
		time.Sleep(time.Second)
		b.start()
		for lives := 0; lives == 0; lives, _ = next.counts() { // the other has its turn, though a's own lease would let a lead at once
			time.Sleep(10 * time.Millisecond)
		}
		if left.Load() {
			t.Error("another leads while what the panic left runs")
		}
		if n := a.Status().Term; n != 1 {
			t.Errorf("it had %d terms before another had one", n)
		}
		wantNoError(t, b.stop())
		wantNoError(t, a.stop())
		time.Sleep(5 * time.Second)
	})
}

func TestL1_OnlyWhoSaysNoMoreThanThatItsContextEndedEndedAsItShould(t *testing.T) {
	still := errors.New("a handler still runs")
	for name, c := range map[string]struct {
		returns func(ctx context.Context) error
		clean   bool
	}{
		"nothing":                     {func(context.Context) error { return nil }, true},
		"the context's error":         {func(ctx context.Context) error { return ctx.Err() }, true},
		"its cause":                   {func(ctx context.Context) error { return context.Cause(ctx) }, true},
		"either, wrapped":             {func(ctx context.Context) error { return fmt.Errorf("get: %w", ctx.Err()) }, true},
		"both, joined":                {func(ctx context.Context) error { return errors.Join(ctx.Err(), context.Cause(ctx)) }, true},
		"something else":              {func(context.Context) error { return still }, false},
		"something else beside":       {func(ctx context.Context) error { return errors.Join(ctx.Err(), still) }, false},
		"something else beside, deep": {func(ctx context.Context) error { return fmt.Errorf("x: %w", errors.Join(ctx.Err(), still)) }, false},
		"another context's error":     {func(context.Context) error { return context.DeadlineExceeded }, false},
		"what cannot be compared":     {func(context.Context) error { return incomparable{"a handler still runs"} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{}
				a := newRig(t, s, "a")
				a.lead("w", func(ctx context.Context) error {
					<-ctx.Done()
					return c.returns(ctx)
				})
				a.start()
				time.Sleep(time.Second)
				err := a.stop()
				if released := s.now().HolderIdentity == ""; released != c.clean || (err == nil) != c.clean {
					t.Errorf("released: %t; error: %v", released, err)
				}
			})
		})
	}
}

type incomparable []string

func (i incomparable) Error() string { return i[0] }

func TestAFailureIsReportedThoughRunEndsAtThatMoment(t *testing.T) {
	for _, leads := range []bool{true, false} {
		for range 100 { // select picks
			synctest.Test(t, func(t *testing.T) {
				a := newRig(t, &server{}, "a")
				culprit := RunFunc(func(context.Context) error {
					time.Sleep(time.Second)
					return errBroken
				})
				if leads {
					wantNoError(t, a.Register("culprit", culprit))
				} else {
					wantNoError(t, a.RegisterWithoutLeaderElection("culprit", culprit))
				}
				a.start()
				time.Sleep(time.Second)
				wantIs(t, a.stop(), errBroken)
			})
		}
	}
}

func TestAFailureIsReportedThoughNobodyWatchesAnyMore(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	for range 1000 { // while Run goes from the end of one half to that of the other
		a := newRig(t, &server{}, "a", alone)
		wantNoError(t, a.RegisterWithoutLeaderElection("culprit", RunFunc(func(context.Context) error { return errBroken })))
		wantIs(t, a.Run(ended), errBroken)
	}
}

func TestABackoffIsForgottenByALongTermAndNotByALongWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a := newRig(t, s, "a", func(o *Options) { o.OnFailure = StepDown })
		var mu sync.Mutex
		var terms []time.Time
		var lasts time.Duration
		a.lead("culprit", func(context.Context) error {
			mu.Lock()
			terms = append(terms, time.Now())
			d := lasts
			mu.Unlock()
			time.Sleep(d)
			return errBroken
		})
		term := func(n int) time.Time {
			for {
				mu.Lock()
				if len(terms) >= n {
					defer mu.Unlock()
					return terms[n-1]
				}
				mu.Unlock()
				time.Sleep(time.Millisecond)
			}
		}
		a.start()
		term(1)
		synctest.Wait()
		// Another leads for two minutes.
		for range 120 {
			s.edit(func(*record) *record {
				return &record{HolderIdentity: "other", LeaseDurationSeconds: 3, RenewTime: metav1.Now()}
			})
			time.Sleep(time.Second)
		}
		s.edit(func(*record) *record { return &record{LeaseDurationSeconds: 1} })
		second := term(2)
		if pause := term(3).Sub(second); pause < 2*time.Second || pause > 3*time.Second {
			t.Errorf("after a term that failed at once, the second, it waits %s", pause)
		}
		mu.Lock()
		lasts = 61 * time.Second
		mu.Unlock()
		fourth := term(4)
		if pause := term(5).Sub(fourth) - lasts; pause < time.Second || pause > 2*time.Second {
			t.Errorf("after a long term it waits %s", pause)
		}
		mu.Lock()
		lasts = 0
		mu.Unlock()
		time.Sleep(2 * time.Minute)
		wantNoError(t, a.stop())
	})
}

// callsBack is an error whose text needs the replica that it is returned to.
type callsBack struct{ call func() error }

func (e callsBack) Error() string { return fmt.Sprint("called back: ", e.call()) }

func TestL1_MethodsOfAnErrorAreCalledWithoutALock(t *testing.T) {
	for name, early := range map[string]bool{"returned before its context was cancelled": true, "returned afterwards": false} {
		t.Run(name, func(t *testing.T) {
			a := newRig(t, &server{}, "a")
			started := make(chan struct{})
			var names atomic.Int64
			a.lead("w", func(ctx context.Context) error {
				close(started)
				if !early {
					<-ctx.Done()
				}
				return callsBack{func() error { return a.Register(fmt.Sprint(names.Add(1)), &worker{}) }}
			})
			returnsSoon(t, "Run", func() {
				a.start()
				<-started
				if !early {
					a.cancel()
				}
				wantSays(t, a.result(), `"w"`, "called back")
			})
		})
	}
}
