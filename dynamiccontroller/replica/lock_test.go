package replica

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestL1_EmptiedLeaseBlocksForTheConfiguredDuration(t *testing.T) {
	for name, seconds := range map[string]int{"huge": 1_000_000, "zero": 0, "longer": 10} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &fakeServer{}
				a := newRig(t, s, "a").start()
				time.Sleep(time.Second)
				s.edit(func(r *record) *record {
					r.HolderIdentity, r.LeaseDurationSeconds = "", seconds
					return r
				})
				changed := time.Now()
				eventually(t, testRetryPeriod, func() bool { return !a.Status().Leading })
				eventually(t, testLeaseDuration+maxReacquire, func() bool { return a.Status().Leading })
				if after := time.Since(changed); after < testLeaseDuration {
					t.Errorf("the replica leads again after %s, want at least %s", after, testLeaseDuration)
				}
				wantNoError(t, a.stop())
			})
		})
	}
}

func TestL1_HoldersLongerDurationIsRespected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		s.set(&record{HolderIdentity: "other", LeaseDurationSeconds: 60})
		a := newRig(t, s, "a").start()
		time.Sleep(60 * time.Second)
		if a.Status().Leading {
			t.Error("the replica leads before the holder's longer duration has passed")
		}
		eventually(t, maxAcquire, func() bool { return a.Status().Leading })
		wantNoError(t, a.stop())
	})
}

// A claim blocks other replicas while the previous holder may not have noticed that the lease was deleted. If the claim
// were released, another replica could lead too early.
func TestL1_ShutdownDoesNotReleaseAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a, b, c, work, next := newRig(t, s, "a"), newRig(t, s, "b"), newRig(t, s, "c"), &worker{}, &worker{}
		a.register("work", work)
		c.register("next", next)
		a.start()
		time.Sleep(time.Second)
		b.start()
		c.start()
		time.Sleep(time.Second)
		// The leader is disconnected, the lease is deleted, and b claims it. b is stopped before the response.
		a.lease.disconnect()
		c.lease.disconnect()
		b.lease.intercept(func(ctx context.Context, verb string, send func() error) error {
			err := send()
			if verb == verbCreate {
				<-ctx.Done()
				return ctx.Err()
			}
			return err
		})
		s.delete()
		eventually(t, maxAcquire, func() bool { return strings.HasPrefix(s.lease().HolderIdentity, "b_") })
		time.Sleep(testRetryPeriod)
		wantNoError(t, b.stop())
		c.lease.reconnect()
		time.Sleep(100 * time.Millisecond)
		wantHolder(t, s, "b")
		eventually(t, 10*time.Second, next.isRunning)
		if work.cancelCause() == nil {
			t.Error("two replicas lead at the same time")
		}
		wantNoError(t, c.stop())
		a.crash()
	})
}

func TestStatus_LeaderIsEmptyWhileNoReplicaLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a := newRig(t, s, "a").start()
		time.Sleep(time.Second)
		b := newRig(t, s, "b").start()
		time.Sleep(time.Second)
		if got := b.Status().Leader; got != a.Status().Identity {
			t.Errorf("the leader is %q, want replica a", got)
		}
		a.crash()
		b.lease.reject(verbCreate, errors.New("rejected"))
		s.delete()
		eventually(t, maxAcquire, func() bool { return b.Status().Leader == "" })
		b.wantLog(1, "No replica leads")
		b.lease.reconnect()
		eventually(t, maxAcquire, func() bool { return strings.HasPrefix(s.lease().HolderIdentity, "b_") })
		claimed := time.Now()
		for i := 1; !b.Status().Leading; i++ { // until then, b holds only a claim
			if got := b.Status().Leader; got != "" {
				t.Fatalf("the leader is %q, want none before b leads", got)
			}
			b.wantLog(1, "New leader observed")
			if i%700 == 0 {
				s.edit(func(r *record) *record { r.LeaseDurationSeconds++; return r }) // the elector observes a change
			}
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(claimed); took < testLeaseDuration-100*time.Millisecond {
			t.Errorf("b leads %s after its claim, want about %s", took, testLeaseDuration)
		}
		synctest.Wait()
		if got := b.Status(); got.Leader != got.Identity {
			t.Errorf("the status is %+v, want b as the leader", got)
		}
		b.wantLog(2, "New leader observed")
		wantNoError(t, b.stop())
	})
}

// A replica whose claim has ended does not lead before it has updated the lease.
func TestStatus_LeaderIsEmptyUntilTheUpdateOfAClaimSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a := newRig(t, s, "a").start()
		time.Sleep(time.Second)
		a.lease.reject(verbUpdate, errors.New("rejected"))
		s.delete()
		eventually(t, maxReacquire, s.exists)
		for end := time.Now().Add(3 * testLeaseDuration); time.Now().Before(end); time.Sleep(testRetryPeriod / 2) {
			if got := a.Status(); got.Leader != "" || got.Leading {
				t.Fatalf("the status is %+v, want no leader", got)
			}
		}
		a.lease.reconnect()
		eventually(t, maxAcquire, a.isLeading())
		wantNoError(t, a.stop())
	})
}

func TestL1_ClaimIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a := newRig(t, s, "a").start()
		synctest.Wait()
		s.delete()
		eventually(t, maxReacquire, s.exists)
		renewed := s.lease().RenewTime
		for claimed := time.Now(); time.Since(claimed) < testLeaseDuration-10*time.Millisecond; time.Sleep(time.Millisecond) {
			if a.Status().Leading {
				t.Fatal("the replica leads during the claim")
			}
			wantHolder(t, s, "a")
		}
		if got := s.lease().RenewTime; got != renewed {
			t.Errorf("the claim was renewed at %s, want no request that cannot succeed", got)
		}
		eventually(t, maxAcquire, a.isLeading())
		wantNoError(t, a.stop())
	})
}

func TestL2_LossCauseIncludesTheLastRequestError(t *testing.T) {
	for name, latency := range map[string]time.Duration{"elector gives up": 0, "validity ends": 900 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, work := newRig(t, &fakeServer{}, "a"), &worker{}
				a.register("work", work)
				a.start()
				a.lease.intercept(func(_ context.Context, _ string, send func() error) error {
					err := send()
					time.Sleep(latency)
					return err
				})
				time.Sleep(4 * time.Second)
				a.lease.disconnect()
				eventually(t, testLeaseDuration, func() bool { return work.cancelCause() != nil })
				wantErrorIs(t, work.cancelCause(), ErrLeaseLost)
				wantErrorContains(t, work.cancelCause(), "last request", "connection refused")
				a.crash()
			})
		})
	}
}
