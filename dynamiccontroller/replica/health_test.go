package replica

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// syncingWorker is a worker with a method HasSynced.
type syncingWorker struct {
	worker
	synced atomic.Bool
}

func (s *syncingWorker) HasSynced() bool { return s.synced.Load() }

func TestReady_DoesNotDependOnLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		leader := newRig(t, s, "leader").start()
		time.Sleep(time.Second)
		r, watches := newRig(t, s, "standby"), &syncingWorker{}
		r.registerPerReplica("watches", watches)
		r.registerPerReplica("plain", &worker{})
		r.register("leader-gated", &syncingWorker{}) // never synced, but Ready does not check it
		wantErrorContains(t, r.Ready(), `check "running" failed`)
		r.start()
		time.Sleep(time.Second)
		wantErrorContains(t, r.Ready(), `check "sync" failed`, "have not synced: watches")
		watches.synced.Store(true)
		wantNoError(t, r.Ready())
		if got := r.Status(); got.Leading || got.Term != 0 || got.Leader != leader.Status().Identity {
			t.Errorf("the status is %+v, want a standby that reports the leader", got)
		}
		wantNoError(t, leader.stop())
		eventually(t, maxAcquire, r.isLeading())
		wantNoError(t, r.Ready())
		wantNoError(t, r.stop())
		wantErrorContains(t, r.Ready(), `check "running" failed`)
	})
}

func TestAlive_FailsIfATermOutlivesItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &fakeServer{}, "a")
		wantNoError(t, r.Alive())
		// No goroutine renews this term or checks its clocks.
		fence := r.leadership.fence
		lost := fence.open(fence.clock.now(), r.options)
		time.Sleep(testLeaseDuration)
		wantNoError(t, r.Alive())
		time.Sleep(time.Millisecond)
		wantNoError(t, r.Alive()) // the grace period begins
		time.Sleep(testRetryPeriod)
		wantErrorContains(t, r.Alive(), `check "lease-renewal" failed`, "term 1", "3.501s ago")
		wantErrorIs(t, lost.check(), ErrLeaseLost)
		wantNoError(t, r.Alive())
	})
}

func TestAlive_NamesAllFailedChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		r := newRig(t, s, "a")
		r.register("slow", &worker{linger: time.Minute})
		r.start()
		time.Sleep(time.Second)
		s.delete()
		time.Sleep(testRetryPeriod + testShutdownTimeout + time.Millisecond)
		fence := r.leadership.fence
		fence.open(instant{Mono: time.Now().Add(-time.Minute), Wall: time.Now()}, r.options)
		_ = r.Alive() // begins the grace period of the lease renewal
		time.Sleep(testRetryPeriod)
		wantErrorContains(t, r.Alive(), `check "lease-renewal" failed`, `check "runnable-shutdown" failed`, "slow")
		_ = r.stop()
		time.Sleep(time.Minute)
	})
}

func TestAlive_DoesNotDependOnTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &fakeServer{}, "a").start()
		time.Sleep(time.Second)
		r.lease.disconnect()
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			wantNoError(t, r.Alive())
		}
		r.crash()
	})
}

func TestAlive_AllowsTimeToEndATerm(t *testing.T) {
	for name, jump := range map[string]func(r *rig){
		"wall clock set forward": func(r *rig) { r.ahead.Store(int64(time.Hour)) },
		"process suspended for longer than the lease": func(r *rig) { // both clocks have advanced and no timer has fired
			r.leadership.fence.latest().update(func(s *termState) {
				s.renewed.Mono = s.renewed.Mono.Add(-time.Minute)
				s.renewed.Wall = s.renewed.Wall.Add(-time.Minute)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, &fakeServer{}, "a").start()
				time.Sleep(1100 * time.Millisecond)
				jump(r)
				for range 100 {
					wantNoError(t, r.Alive())
					time.Sleep(10 * time.Millisecond)
				}
				wantNoError(t, r.stop())
			})
		})
	}
}

func TestRun_WithoutLeaderElectionLeadsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		r, work, perReplica := newRig(t, s, "a", withoutElection), &worker{}, &worker{}
		r.register("work", work)
		r.registerPerReplica("per-replica", perReplica)
		wantErrorIs(t, r.write(t.Context()), ErrNotLeading)
		r.start()
		synctest.Wait()
		wantStarts(t, work, 1, 1)
		wantStarts(t, perReplica, 1, 1)
		r.ahead.Store(int64(time.Hour))
		time.Sleep(10 * time.Hour)
		wantNoError(t, r.write(context.Background()))
		wantNoError(t, r.Alive())
		if got := r.Status(); !got.Leading || got.Term != 1 || got.Leader != got.Identity || work.terms[0] != 1 {
			t.Errorf("the status is %+v and the terms are %v, want a leader in term 1", got, work.terms)
		}
		wantNoError(t, r.stop())
		wantErrorIs(t, r.write(context.Background()), ErrNotLeading)
		if s.holders() != "" {
			t.Errorf("the lease was held by %s, want no holder", s.holders())
		}
	})
}
