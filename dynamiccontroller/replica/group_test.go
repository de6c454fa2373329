package replica

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestRegister_RejectsInvalidAndLateRegistrations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &fakeServer{}, "a", withoutElection)
		wantNoError(t, r.Register("x", &worker{}, ScopeLeader))
		wantErrorContains(t, r.Register("x", &worker{}, ScopeLeader), `"x"`, "already used")
		wantErrorContains(t, r.RegisterWithoutLeaderElection("x", &worker{}), "already used")
		wantNoError(t, r.RegisterWithoutLeaderElection("y", &worker{}))
		wantErrorContains(t, r.Register("y", &worker{}, ScopeLeader), "already used")
		wantErrorContains(t, r.Register("", &worker{}, ScopeLeader), "empty")
		wantErrorContains(t, r.Register("z", nil, ScopeLeader), "nil")
		wantErrorContains(t, r.Register("z", &worker{}, Scope(4)), `"z"`, "unknown scope 4")
		r.start()
		synctest.Wait()
		wantErrorIs(t, r.Run(t.Context()), errRunning)
		wantNoError(t, r.stop())
		wantErrorIs(t, r.Register("z", &worker{}, ScopeLeader), errStopped)
		wantErrorIs(t, r.RegisterWithoutLeaderElection("z", &worker{}), errStopped)
		wantErrorIs(t, r.Run(t.Context()), errStopped)
	})
}

func TestRegister_StartsRunnablesWhileRunIsActive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		leader, standby := newRig(t, s, "a").start(), newRig(t, s, "b")
		time.Sleep(time.Second)
		standby.start()
		time.Sleep(time.Second)

		work, perReplica := &worker{}, &worker{}
		leader.registerPerReplica("per-replica", perReplica)
		leader.register("work", work)
		synctest.Wait()
		wantStarts(t, perReplica, 1, 1)
		wantStarts(t, work, 1, 1)

		standbyWork, standbyPerReplica := &worker{}, &worker{}
		standby.registerPerReplica("per-replica", standbyPerReplica)
		standby.register("work", standbyWork)
		synctest.Wait()
		wantStarts(t, standbyPerReplica, 1, 1)
		wantStarts(t, standbyWork, 0, 0)
		wantNoError(t, leader.stop())
		eventually(t, maxAcquire, standbyWork.isRunning)
		wantStarts(t, standbyWork, 1, 1)
		wantStarts(t, standbyPerReplica, 1, 1)
		wantNoError(t, standby.stop())
	})
}

func TestRun_EndsWhenARunnableFails(t *testing.T) {
	for name, test := range map[string]struct {
		run        func(context.Context) error
		want       string // in the error
		keepsLease bool   // goroutines of a leader-gated runnable may still be running
	}{
		"error":                {run: func(context.Context) error { return errBroken }, want: "failed: broken"},
		"panic":                {run: func(context.Context) error { panic("oh") }, want: "panic: oh", keepsLease: true},
		"early return":         {run: func(context.Context) error { return nil }, want: "before its context was cancelled"},
		"runtime.Goexit":       {run: goexit, want: "runtime.Goexit", keepsLease: true},
		"error from a context": {run: func(context.Context) error { return context.Canceled }, want: "context canceled"},
	} {
		for _, leaderGated := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, leader-gated: %t", name, leaderGated), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &fakeServer{}
					r, work, perReplica := newRig(t, s, "a"), &worker{}, &worker{}
					r.register("work", work)
					r.registerPerReplica("per-replica", perReplica)
					failing := RunFunc(func(ctx context.Context) error {
						time.Sleep(time.Second)
						return test.run(ctx)
					})
					if leaderGated {
						r.register("failing", failing)
					} else {
						r.registerPerReplica("failing", failing)
					}
					wantErrorContains(t, r.Run(t.Context()), `"failing"`, test.want)
					wantStarts(t, work, 1, 0)
					wantStarts(t, perReplica, 1, 0)
					if leaderGated && test.keepsLease {
						wantHolder(t, s, "a")
						r.wantLog(1, "Lease not released, goroutines of a runnable may still be running")
					} else {
						wantReleased(t, s)
					}
					wantErrorIs(t, r.write(t.Context()), ErrNotLeading)
				})
			})
		}
	}
}

func goexit(context.Context) error {
	runtime.Goexit()
	return nil
}

func TestStepDown_BacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		r, perReplica := newRig(t, s, "a", stepDown), &worker{}
		r.registerPerReplica("per-replica", perReplica)
		var terms atomic.Int64
		r.registerFunc("failing", func(context.Context) error {
			terms.Add(1)
			return errBroken
		})
		r.start()
		time.Sleep(time.Minute)
		if n := terms.Load(); n < 4 || n > 7 {
			t.Errorf("%d terms in a minute, want 4 to 7", n)
		}
		wantStarts(t, perReplica, 1, 1)
		wantReleased(t, s)
		time.Sleep(time.Hour)
		if n := terms.Load(); n > 70 {
			t.Errorf("%d terms in about an hour, want at most 70", n)
		}
		wantNoError(t, r.stop())
	})
}

func TestStepDown_LetsAnotherReplicaLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a, b, work := newRig(t, s, "a", stepDown), newRig(t, s, "b"), &worker{}
		fail := make(chan struct{})
		a.registerFunc("failing", func(context.Context) error {
			<-fail
			return errBroken
		})
		b.register("work", work)
		a.start()
		time.Sleep(time.Second)
		b.start()
		time.Sleep(4 * time.Second)
		wantStarts(t, work, 0, 0)
		close(fail)
		eventually(t, maxAcquire, work.isRunning)
		wantNoError(t, b.stop())
		wantNoError(t, a.stop())
	})
}

func TestL1_StepDownAfterPanicWaitsUntilTheLeaseExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a, b, work := newRig(t, s, "a", stepDown), newRig(t, s, "b"), &worker{}
		var leaked atomic.Bool // whether the goroutine that outlives the panic is running
		a.registerFunc("failing", func(context.Context) error {
			go func() {
				leaked.Store(true)
				time.Sleep(5 * time.Second)
				leaked.Store(false)
			}()
			time.Sleep(3 * time.Second)
			panic("oh")
		})
		b.register("work", work)
		a.start()
		time.Sleep(time.Second)
		b.start()
		// The lease still names a, so a could acquire it at any time. Replica a must leave the lease to b.
		eventually(t, time.Minute, work.isRunning)
		if leaked.Load() {
			t.Error("b leads while a goroutine of a's runnable is running")
		}
		if n := a.Status().Term; n != 1 {
			t.Errorf("a had %d terms before b led, want 1", n)
		}
		wantNoError(t, b.stop())
		wantNoError(t, a.stop())
		time.Sleep(5 * time.Second) // wait until the leaked goroutine has ended
	})
}

func TestStepDown_BackoffIsResetOnlyByALongTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a := newRig(t, s, "a", stepDown)
		var mu sync.Mutex // guards the two variables below
		var starts []time.Time
		var duration time.Duration
		a.registerFunc("failing", func(context.Context) error {
			mu.Lock()
			starts = append(starts, time.Now())
			d := duration
			mu.Unlock()
			time.Sleep(d)
			return errBroken
		})
		setDuration := func(d time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			duration = d
		}
		waitForTerm := func(n int) (start time.Time) {
			eventually(t, 5*time.Minute, func() bool {
				mu.Lock()
				defer mu.Unlock()
				if len(starts) < n {
					return false
				}
				start = starts[n-1]
				return true
			})
			return start
		}
		a.start()
		waitForTerm(1)
		synctest.Wait()
		for range 120 { // another replica leads for two minutes
			s.edit(func(*record) *record {
				return &record{HolderIdentity: "other", LeaseDurationSeconds: 3, RenewTime: metav1.Now()}
			})
			time.Sleep(time.Second)
		}
		s.release()
		second := waitForTerm(2)
		if pause := waitForTerm(3).Sub(second); pause < 2*time.Second || pause > 3*time.Second {
			t.Errorf("the pause after the second failure is %s, want 2 s to 3 s", pause)
		}
		setDuration(61 * time.Second)
		fourth := waitForTerm(4)
		if pause := waitForTerm(5).Sub(fourth) - 61*time.Second; pause < time.Second || pause > 2*time.Second {
			t.Errorf("the pause after a long term is %s, want 1 s to 2 s", pause)
		}
		setDuration(0)
		time.Sleep(2 * time.Minute)
		wantNoError(t, a.stop())
	})
}

func TestRun_ReportsAFailureThatCoincidesWithShutdown(t *testing.T) {
	failing := RunFunc(func(context.Context) error {
		time.Sleep(time.Second)
		return errBroken
	})
	for _, leaderGated := range []bool{true, false} {
		for range 100 { // select chooses at random
			synctest.Test(t, func(t *testing.T) {
				a := newRig(t, &fakeServer{}, "a")
				if leaderGated {
					a.register("failing", failing)
				} else {
					a.registerPerReplica("failing", failing)
				}
				a.start()
				time.Sleep(time.Second)
				wantErrorIs(t, a.stop(), errBroken)
			})
		}
	}
}

func TestRun_ReportsAFailureAfterLeadingHasEnded(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for range 1000 { // in some iterations, the runnable fails after leading has ended and before the group is stopped
		a := newRig(t, &fakeServer{}, "a", withoutElection)
		a.registerPerReplica("failing", RunFunc(func(context.Context) error { return errBroken }))
		wantErrorIs(t, a.Run(cancelled), errBroken)
	}
}

// callbackError is an error whose Error method calls back into the replica that receives the error.
type callbackError struct{ call func() error }

func (e callbackError) Error() string { return fmt.Sprint("called back: ", e.call()) }

func TestL1_ErrorMethodsAreCalledWithoutALock(t *testing.T) {
	for name, early := range map[string]bool{"before the context was cancelled": true, "afterwards": false} {
		t.Run(name, func(t *testing.T) {
			a := newRig(t, &fakeServer{}, "a")
			started := make(chan struct{})
			var names atomic.Int64
			a.registerFunc("failing", func(ctx context.Context) error {
				close(started)
				if !early {
					<-ctx.Done()
				}
				return callbackError{func() error { return a.Register(fmt.Sprint(names.Add(1)), &worker{}, ScopeLeader) }}
			})
			mustReturn(t, "Run", func() {
				a.start()
				<-started
				if !early {
					a.cancel()
				}
				wantErrorContains(t, a.result(), `"failing"`, "called back")
			})
		})
	}
}

// mustReturn fails the test if f does not return. A goroutine that waits for a mutex is not durably blocked, so
// synctest cannot detect the deadlocks that these tests look for.
func mustReturn(t *testing.T, name string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		stacks := make([]byte, 1<<20)
		t.Fatalf("%s has not returned; goroutines:\n%s", name, stacks[:runtime.Stack(stacks, true)])
	}
}
