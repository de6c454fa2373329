package replica

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestShutdown_StandbyThatLedBeforeHasTheFullTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a, perReplica := newRig(t, s, "a"), &worker{linger: 3 * time.Second}
		a.registerPerReplica("per-replica", perReplica)
		a.start()
		time.Sleep(time.Second)
		b := newRig(t, s, "b").start()
		a.lease.disconnect()
		time.Sleep(10 * time.Second)
		a.lease.reconnect()
		time.Sleep(time.Hour)
		if got := a.Status(); got.Leading || got.Term != 1 {
			t.Fatalf("status %+v", got)
		}
		wantNoError(t, a.stop())
		wantStarts(t, perReplica, 1, 0)
		wantNoError(t, b.stop())
	})
}

// TestShutdown_IsBounded checks that all steps of a shutdown share one ShutdownTimeout, regardless of the reason for
// the shutdown.
func TestShutdown_IsBounded(t *testing.T) {
	withoutElectionStepDown := func(o *Options) { withoutElection(o); stepDown(o) }
	for name, test := range map[string]boundedShutdown{
		"cancelled":                   {linger: testShutdownTimeout - time.Millisecond},
		"cancelled, runnable hangs":   {linger: time.Hour},
		"cancelled, runnable returns": {},
		"failure":                     {failAfter: 2 * time.Second, linger: 4 * time.Second},
		"failure, runnable hangs":     {failAfter: 2 * time.Second, linger: time.Hour},
		"loss":                        {change: exitOnLoss, lose: true, linger: 4 * time.Second},
		"loss, runnable hangs":        {change: exitOnLoss, lose: true, linger: time.Hour},
		"failure without election, hang": {
			change: withoutElectionStepDown, failAfter: 2 * time.Second, linger: time.Hour,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, test.run)
		})
	}
}

type boundedShutdown struct {
	change    func(*Options)
	failAfter time.Duration // when a leader-gated runnable fails; 0 if none fails
	lose      bool          // the lease is lost
	linger    time.Duration // how long a leader-gated runnable takes to return
}

func (test boundedShutdown) run(t *testing.T) {
	s := &fakeServer{}
	change := func(*Options) {}
	if test.change != nil {
		change = test.change
	}
	a := newRig(t, s, "a", defaultDurations, change)
	slow := &worker{linger: test.linger}
	a.register("slow", slow)
	a.registerPerReplica("per-replica", &worker{linger: time.Hour})
	if test.failAfter > 0 {
		a.registerFunc("failing", func(context.Context) error {
			time.Sleep(test.failAfter)
			return errBroken
		})
	}
	a.start()
	time.Sleep(2 * time.Second)
	began := time.Now()
	switch {
	case test.lose:
		s.setHolder("intruder")
		eventually(t, time.Minute, func() bool { return slow.cancelCause() != nil })
		began = time.Now()
		a.lease.hang()
	case test.failAfter > 0 && a.lease != nil:
		a.lease.hang()
	case test.failAfter == 0:
		a.lease.hang()
		a.cancel()
	}
	err := a.result()
	wantErrorContains(t, err, "per-replica")
	if test.linger == time.Hour {
		wantErrorContains(t, err, "slow")
	}
	if test.failAfter > 0 {
		wantErrorIs(t, err, errBroken)
	}
	if test.lose {
		wantErrorIs(t, err, ErrLeaseLost)
	}
	const shortest = testShutdownTimeout - 10*time.Millisecond // eventually observes a loss up to a millisecond late
	if took := time.Since(began); took > testShutdownTimeout+2*minStepTimeout || took < shortest {
		t.Errorf("Run returned after %s", took)
	}
	wantErrorIs(t, a.write(t.Context()), ErrNotLeading)
	time.Sleep(time.Hour) // wait until the hung runnables have returned
}

// A release consists of two requests, each of which has the full timeout.
func TestL1_SlowRequestsDoNotPreventTheRelease(t *testing.T) {
	const lateTenths = 9 // the latency of a request in tenths of its timeout
	for name, change := range map[string]func(*Options){
		"default durations":                         func(o *Options) { defaultDurations(o); o.ShutdownTimeout = 0 },
		"timeout longer than half of RenewDeadline": func(o *Options) { o.RenewDeadline = 1200 * time.Millisecond },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &fakeServer{}
				a := newRig(t, s, "a", change).start()
				time.Sleep(time.Second)
				a.lease.intercept(func(ctx context.Context, _ string, send func() error) error {
					select {
					case <-time.After(requestTimeout(a.options) * lateTenths / 10):
						return send()
					case <-ctx.Done():
						return ctx.Err()
					}
				})
				wantNoError(t, a.stop())
				wantReleased(t, s)
			})
		})
	}
}

// After a StepDown, the release of the lease can take RenewDeadline, unless Run begins to shut down in the meantime.
func TestShutdown_BoundsAReleaseThatHasBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a := newRig(t, s, "a", defaultDurations, stepDown, func(o *Options) { o.ShutdownTimeout = time.Second })
		a.registerFunc("failing", func(context.Context) error {
			time.Sleep(time.Second)
			return errBroken
		})
		a.start()
		time.Sleep(500 * time.Millisecond)
		a.lease.hang()
		time.Sleep(time.Second)
		began := time.Now()
		_ = a.stop()
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("Run returned after %s", took)
		}
	})
}

// After a loss, or after a failure with StepDown, the replica waits for the runnables without a limit until the
// shutdown begins.
func TestShutdown_TimeoutStartsAgainAfterTheEndOfATerm(t *testing.T) {
	for name, test := range map[string]struct {
		fail     bool          // a runnable fails; otherwise the lease is lost
		before   time.Duration // between the end of the term and the shutdown
		linger   time.Duration
		min, max time.Duration
	}{
		"loss, runnable returns": {
			before: time.Minute, linger: time.Minute + 4*time.Second, min: 3 * time.Second, max: 4 * time.Second,
		},
		"loss, runnable hangs": {
			before: time.Minute, linger: time.Hour, min: testShutdownTimeout, max: testShutdownTimeout,
		},
		"loss during the first timeout, runnable hangs": {
			before: 4 * time.Second, linger: time.Hour, min: testShutdownTimeout, max: testShutdownTimeout,
		},
		"failure during the first timeout, runnable hangs": {
			fail: true, before: 4 * time.Second, linger: time.Hour, min: testShutdownTimeout, max: testShutdownTimeout,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &fakeServer{}
				a, slow := newRig(t, s, "a", stepDown), &worker{linger: test.linger}
				a.register("slow", slow)
				if test.fail {
					a.registerFunc("failing", func(context.Context) error {
						time.Sleep(time.Second)
						return errBroken
					})
				}
				a.start()
				time.Sleep(time.Second)
				if !test.fail {
					s.setHolder("intruder")
				}
				eventually(t, time.Minute, func() bool { return slow.cancelCause() != nil })
				time.Sleep(test.before)
				began := time.Now()
				err := a.stop()
				if took := time.Since(began); took < test.min || took > test.max {
					t.Errorf("Run returned %v after %s, want %s to %s", err, took, test.min, test.max)
				}
				if test.linger == time.Hour {
					wantErrorContains(t, err, "slow")
					if strings.Contains(err.Error(), "expire") != test.fail { // after a loss, the error does not mention expiry
						t.Error(err)
					}
				}
				time.Sleep(time.Hour)
			})
		})
	}
}

func TestRun_CancelledContextRequestsNoLease(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"leader election": func(*Options) {}, "no leader election": withoutElection,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, work := newRig(t, &fakeServer{}, "a", change), &worker{}
				a.register("work", work)
				cancelled, cancel := context.WithCancel(t.Context())
				cancel()
				wantNoError(t, a.Run(cancelled))
				wantStarts(t, work, 0, 0)
				if a.lease != nil && a.lease.requests.Load() > 0 || a.Status().Term != 0 {
					t.Errorf("status %+v", a.Status())
				}
			})
		})
	}
}
