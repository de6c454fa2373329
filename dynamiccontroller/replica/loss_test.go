package replica

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestL2_LeaseIsLostBeforeAnotherReplicaCanLead(t *testing.T) {
	for name, test := range map[string]struct {
		fail    func(*fakeLease)
		latency time.Duration // of responses before the failure
	}{
		"requests fail":                      {fail: (*fakeLease).disconnect},
		"requests hang":                      {fail: (*fakeLease).hang},
		"requests fail after late responses": {fail: (*fakeLease).disconnect, latency: 900 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &fakeServer{}
				a, b, work, next, perReplica := newRig(t, s, "a"), newRig(t, s, "b"), &worker{}, &worker{}, &worker{}
				a.register("work", work)
				a.registerPerReplica("per-replica", perReplica)
				b.register("next", next)
				a.start()
				time.Sleep(time.Second)
				b.start()
				a.lease.intercept(func(_ context.Context, _ string, send func() error) error {
					err := send()
					time.Sleep(test.latency)
					return err
				})
				time.Sleep(3 * time.Second)
				test.fail(a.lease)
				eventually(t, testLeaseDuration, func() bool { return work.exitCause() != nil })
				wantErrorIs(t, work.exitCause(), ErrLeaseLost)
				limit := a.options.renewalValidity() + 2*time.Millisecond // eventually adds the 2 ms
				if after := time.Since(s.lease().RenewTime.Time); after > limit {
					t.Errorf("the lease was lost %s after the last renewal, want at most %s", after, limit)
				}
				wantStarts(t, next, 0, 0)
				wantErrorIs(t, a.write(t.Context()), ErrNotLeading)
				eventually(t, maxTakeover, next.isRunning)
				wantStarts(t, perReplica, 1, 1)
				before := a.lease.requests.Load()
				time.Sleep(time.Minute)
				if n := a.lease.requests.Load() - before; n > 130 {
					t.Errorf("%d requests in a minute, want at most 130", n)
				}
				a.lease.reconnect()
				time.Sleep(time.Second)
				wantNoError(t, b.stop())
				eventually(t, maxAcquire, work.isRunning)
				wantStarts(t, work, 2, 1)
				wantStarts(t, perReplica, 1, 1)
				if got := a.Status(); !got.Leading || got.Term != 2 || got.Leader != got.Identity {
					t.Errorf("the status is %+v, want a leader in term 2", got)
				}
				wantNoError(t, a.stop())
				if n := b.log.count("New leader observed"); n < 2 { // a and b
					t.Errorf("b observed %d leaders, want at least 2; log:\n%s", n, b.log)
				}
			})
		})
	}
}

func TestL2_ExitOnLossEndsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a, perReplica := newRig(t, s, "a", exitOnLoss), &worker{}
		a.registerPerReplica("per-replica", perReplica)
		a.start()
		time.Sleep(time.Second)
		s.setHolder("intruder")
		err := a.result()
		wantErrorIs(t, err, ErrLeaseLost)
		wantErrorContains(t, err, "intruder")
		a.wantLine("Lease lost", `"term"=1`, "intruder")
		wantStarts(t, perReplica, 1, 0)
		wantHolder(t, s, "intruder")
	})
}

func TestL2_NextTermWaitsForRunnablesOfTheLostTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a, slow := newRig(t, s, "a"), &worker{linger: 30 * time.Second}
		a.register("slow", slow)
		a.start()
		time.Sleep(time.Second)
		s.delete()
		time.Sleep(5 * time.Second)
		wantNoError(t, a.Alive())
		time.Sleep(24 * time.Second)
		wantErrorContains(t, a.Alive(), `check "runnable-shutdown" failed`, "slow", "5s")
		wantStarts(t, slow, 1, 1)
		if a.lease.requests.Load() > 10 || s.holders() != "a (none)" {
			t.Errorf("%d requests, holders %s", a.lease.requests.Load(), s.holders())
		}
		a.wantLog(2, "Waiting for runnables to return")
		time.Sleep(2 * time.Second)
		eventually(t, testLeaseDuration+maxReacquire, slow.isRunning)
		wantStarts(t, slow, 2, 1)
		wantNoError(t, a.Alive())
		slow.setLinger(0)
		wantNoError(t, a.stop())
	})
}

func TestL2_WallClockSetForwardEndsOnlyOneTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a, work := newRig(t, s, "a"), &worker{}
		a.register("work", work)
		contexts := make(chan context.Context, 2)
		a.registerFunc("context", func(ctx context.Context) error {
			contexts <- ctx
			<-ctx.Done()
			return nil
		})
		a.start()
		time.Sleep(time.Second)
		ctx := <-contexts
		a.ahead.Store(int64(time.Hour))
		wantErrorIs(t, a.write(t.Context()), ErrNotLeading) // no timer has fired; the write checks the clocks
		wantErrorIs(t, context.Cause(ctx), ErrLeaseLost)
		synctest.Wait()
		wantErrorIs(t, work.exitCause(), ErrLeaseLost)
		eventually(t, maxReacquire, work.isRunning)
		wantStarts(t, work, 2, 1)
		for _, ahead := range []time.Duration{time.Hour, 0, -time.Hour} { // setting it back has no effect
			a.ahead.Store(int64(ahead))
			for range 100 {
				wantNoError(t, a.write(t.Context()))
				time.Sleep(100 * time.Millisecond)
			}
		}
		wantStarts(t, work, 2, 1)
		wantNoError(t, a.stop())
	})
}

// In this test, no write checks the clocks, and the elector is waiting for a response.
func TestL2_WallClockIsCheckedWithoutWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, work := newRig(t, &fakeServer{}, "a"), &worker{}
		a.register("work", work)
		a.start()
		time.Sleep(time.Second)
		var waiting atomic.Bool
		a.lease.intercept(func(ctx context.Context, _ string, _ func() error) error {
			waiting.Store(true)
			<-ctx.Done() // for one second
			return ctx.Err()
		})
		eventually(t, time.Second, waiting.Load)
		a.ahead.Store(int64(time.Hour))
		time.Sleep(testRetryPeriod)
		synctest.Wait()
		wantErrorIs(t, work.cancelCause(), ErrLeaseLost)
		a.crash()
	})
}

// A process that is suspended in the middle of its work checks its context after it resumes, before any timer has
// fired.
func TestL2_TermContextErrChecksTheClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newRig(t, &fakeServer{}, "a")
		contexts := make(chan context.Context, 1)
		a.registerFunc("work", func(ctx context.Context) error {
			contexts <- ctx
			<-ctx.Done()
			return ctx.Err()
		})
		a.start()
		ctx := <-contexts
		type key struct{}
		value := context.WithValue(ctx, key{}, 1)
		derived, cancel := context.WithCancel(value)
		defer cancel()
		wantNoError(t, value.Err())
		a.ahead.Store(int64(time.Hour))
		wantNoError(t, derived.Err()) // as documented
		wantErrorIs(t, value.Err(), context.Canceled)
		wantErrorIs(t, ctx.Err(), context.Canceled)
		wantErrorIs(t, derived.Err(), context.Canceled) // cancelled by the call to value.Err
		for _, c := range []context.Context{ctx, value, derived} {
			wantErrorIs(t, context.Cause(c), ErrLeaseLost)
		}
		if n, ok := Term(derived); n != 1 || !ok {
			t.Errorf("term %d, %t", n, ok)
		}
		if n, ok := Term(t.Context()); n != 0 || ok {
			t.Errorf("a context without a term has term %d, %t", n, ok)
		}
		a.ahead.Store(0)
		wantNoError(t, a.stop())
	})
}

// The process is suspended between the request that acquires the lease and its response.
func TestL2_ExpiredTermStartsNoRunnables(t *testing.T) {
	for range 100 { // select chooses at random
		synctest.Test(t, func(t *testing.T) {
			a := newRig(t, &fakeServer{}, "a")
			var starts atomic.Int64
			a.registerFunc("work", func(ctx context.Context) error {
				starts.Add(1)
				<-ctx.Done()
				return nil
			})
			a.lease.intercept(func(_ context.Context, verb string, send func() error) error {
				err := send()
				if verb == verbCreate {
					time.Sleep(10 * time.Second)
				}
				return err
			})
			a.start()
			time.Sleep(10*time.Second + time.Millisecond)
			if n := starts.Load(); n != 0 {
				t.Errorf("%d starts", n)
			}
			a.wantLog(0, "Started leading")
			eventually(t, maxReacquire, func() bool { return starts.Load() == 1 && a.Status().Leading })
			wantNoError(t, a.stop())
		})
	}
}

func renewDeadline(d time.Duration) func(*Options) { return func(o *Options) { o.RenewDeadline = d } }

func TestRun_RequestForTheLeaseCanTakeHalfOfRenewDeadline(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Options)
		limit  time.Duration
	}{
		"half of RenewDeadline":         {defaultDurations, 5 * time.Second},
		"at least one second":           {renewDeadline(1500 * time.Millisecond), time.Second},
		"not longer than RenewDeadline": {renewDeadline(700 * time.Millisecond), 700 * time.Millisecond},
	} {
		for _, slower := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, slower: %t", name, slower), func(t *testing.T) {
				latency := test.limit - 10*time.Millisecond
				if slower {
					latency = test.limit + 10*time.Millisecond
				}
				synctest.Test(t, func(t *testing.T) { requestsTake(t, latency, !slower, test.change) })
			})
		}
	}
}

// requestsTake starts a replica whose requests take as long as latency. If leads is true, the replica must become the
// leader. Otherwise, it must never lead.
func requestsTake(t *testing.T, latency time.Duration, leads bool, change func(*Options)) {
	a := newRig(t, &fakeServer{}, "a", change)
	a.lease.intercept(func(ctx context.Context, _ string, send func() error) error {
		select {
		case <-time.After(latency):
			return send()
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	a.start()
	led := false
	for range 600 {
		time.Sleep(100 * time.Millisecond)
		led = led || a.Status().Leading
	}
	if got := a.Status(); led != leads || got.Leading != leads || got.Term > 1 {
		t.Errorf("led: %t, want %t; status %+v", led, leads, got)
	}
	a.lease.reconnect()
	wantNoError(t, a.stop())
}
