package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/leasename"
)

// watchFleet reports, every 10 ms, whether the condition is violated.
func watchFleet(t *testing.T, violated func() string) (stop func()) {
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		reported := false
		for {
			select {
			case <-done:
				return
			case <-time.After(10 * time.Millisecond):
			}
			if v := violated(); v != "" && !reported {
				reported = true
				t.Errorf("after %s: %s", time.Now().Format("15:04:05.000"), v)
			}
		}
	}()
	return func() { close(done); <-stopped }
}

func longDurations(o *Options) { o.LeaseDuration, o.RenewDeadline = 12*time.Second, 9*time.Second }

// A rejected renewal makes shardLease verify the layout again in the middle of a term. If that fails, it releases the
// lease although the runnables are still running.
func TestFleet_RejectedRenewalDoesNotReleaseTheLeaseOfARunningTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		rigs := startFleet(t, s, runs, "a b")
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b"))
		time.Sleep(30 * time.Second)
		shard := leasename.Shard("test", runs.shardsOf("a")[0])
		var rejected atomic.Bool
		before := func(_ context.Context, verb, name string) error {
			switch {
			case verb == verbUpdate && name == shard && !rejected.Swap(true):
				return apierrors.NewTooManyRequests("busy", 1)
			case verb == verbGet && name == "test" && rejected.Load():
				return errDown
			}
			return nil
		}
		rigs[0].client.before.Store(&before)
		time.Sleep(3 * testRetryPeriod)
		runs.check(t)
	})
}

// A runnable of the fleet's leader that returns slowly keeps the lease renewed after the planner has returned. These
// renewals do not announce the change any more, so that members lead shards again before the final release.
func TestFleet_FinalReleaseWhileShardsAreLed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		old := startFleet(t, s, runs, "a", shardOptions(4))
		eventually(t, maxFleetStart, func() bool { return runs.count() == 4 })
		for _, name := range []string{"b", "c"} {
			r := newFleetRig(t, s, runs, name, shardOptions(8))
			wantNoError(t, r.Register("singleton", &worker{linger: 4500 * time.Millisecond}, ScopeLeader))
			r.start()
		}
		time.Sleep(30 * time.Second)
		plain, whole := newPlain(t, s, "plain")
		plain.start()
		defer watchFleet(t, func() string {
			if whole.isRunning() && runs.count() > 0 {
				return "a replica without shards leads while shards are led"
			}
			if h, ok := fleet.ParseHolder(s.holder("test")); (!ok || h.Shards != 4) && runs.count() > 0 {
				runs.mu.Lock()
				defer runs.mu.Unlock()
				last := strings.Join(runs.runs[len(runs.runs)-4:], ", ")
				return fmt.Sprintf("the layout was removed while shards are led: %s; %s", s.holder("test"), last)
			}
			return ""
		})()
		wantNoError(t, old[0].stop())
		eventually(t, time.Minute, func() bool { h, ok := fleet.ParseHolder(s.holder("test")); return !ok || h.Shards != 4 })
		time.Sleep(50 * time.Millisecond)
		runs.check(t)
	})
}

// The members replace a leader that is configured for a longer LeaseDuration too early.
func TestFleet_OneFleetLeaderWithDifferentLeaseDurations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		a := startFleet(t, s, runs, "a", longDurations)[0]
		eventually(t, time.Minute, func() bool { return runs.count() == 8 })
		b := startFleet(t, s, runs, "b")[0]
		time.Sleep(10 * time.Second)
		a.client.down.Store(true)
		defer watchFleet(t, func() string {
			if a.Status().Leading && b.Status().Leading {
				return "two replicas lead the fleet"
			}
			return ""
		})()
		time.Sleep(15 * time.Second)
	})
}

// A replica without shards that recreates the deleted lease leads after LeaseDuration. A member that cannot read the
// lease leads its shards for almost four.
func TestFleet_RecreatedFleetLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		a := startFleet(t, s, runs, "a")[0]
		eventually(t, time.Minute, func() bool { return runs.count() == 8 })
		plain, whole := newPlain(t, s, "plain")
		plain.start()
		time.Sleep(10 * time.Second)
		defer watchFleet(t, func() string {
			if n := runs.count(); whole.isRunning() && n > 0 {
				return "a replica without shards leads while shards are led"
			}
			return ""
		})()
		a.failFor(func(name string) bool { return name == "test" })
		s.edit("test", nil)
		time.Sleep(30 * time.Second)
	})
}

// A runnable that returns an error during a planned move ends Run, although the policy is StepDown.
func TestFleet_UncleanPlannedMoveDoesNotEndRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		r := newFleetRig(t, s, runs, "a", stepDown)
		wantNoError(t, r.Register("unclean", RunFunc(func(ctx context.Context) error {
			<-ctx.Done()
			return errors.New("unclean")
		}), ScopeShard))
		r.start()
		eventually(t, time.Minute, func() bool { return runs.count() == 8 })
		startFleet(t, s, runs, "b", stepDown)
		time.Sleep(30 * time.Second)
		if err := r.Ready(); err != nil {
			t.Errorf("the replica has ended: %v; Run returned %v", err, r.result())
		}
	})
}

// Like the test above, with a runnable that does not return within ShutdownTimeout.
func TestFleet_SlowPlannedMoveDoesNotEndRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		r := newFleetRig(t, s, runs, "a", stepDown)
		r.linger.Store(int64(testShutdownTimeout + time.Second))
		r.start()
		eventually(t, time.Minute, func() bool { return runs.count() == 8 })
		startFleet(t, s, runs, "b", stepDown)
		time.Sleep(30 * time.Second)
		r.linger.Store(0)
		if err := r.Ready(); err != nil {
			t.Errorf("the replica has ended: %v; Run returned %v", err, r.result())
		}
	})
}

// The shutdown of the shards and that of the fleet's leader take a ShutdownTimeout each.
func TestFleet_ShutdownTakesNoLongerThanShutdownTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		r := newFleetRig(t, s, runs, "a")
		r.linger.Store(int64(testShutdownTimeout - time.Second))
		wantNoError(t, r.Register("singleton", &worker{linger: testShutdownTimeout - time.Second}, ScopeLeader))
		r.start()
		eventually(t, time.Minute, func() bool { return runs.count() == 8 })
		began := time.Now()
		err := r.stop()
		if took := time.Since(began); took > testShutdownTimeout+2*minStepTimeout {
			t.Errorf("the shutdown took %s: %v", took, err)
		}
	})
}

func TestFleet_ShutdownWithHungRunnables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		r := newFleetRig(t, s, runs, "a")
		r.linger.Store(int64(time.Hour))
		wantNoError(t, r.Register("singleton", &worker{linger: time.Hour}, ScopeLeader))
		wantNoError(t, r.RegisterWithoutLeaderElection("every", &worker{linger: time.Hour}))
		r.start()
		eventually(t, time.Minute, func() bool { return runs.count() == 8 })
		began := time.Now()
		err := r.stop()
		if took := time.Since(began); took > testShutdownTimeout+2*minStepTimeout {
			t.Errorf("the shutdown took %s: %v", took, err)
		}
		time.Sleep(2 * time.Hour)
	})
}

// A leader retries a failed renewal every 100 ms instead of every RetryPeriod.
func TestFleet_FailedRenewalsAreRetriedAtRetryPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		r := startFleet(t, s, runs, "a", defaultDurations)[0]
		eventually(t, time.Minute, func() bool { return runs.count() == 8 })
		time.Sleep(time.Minute)
		var requests atomic.Int64
		before := func(_ context.Context, _, name string) error {
			if name != leasename.Shard("test", 0) {
				return nil
			}
			requests.Add(1)
			return apierrors.NewTooManyRequests("busy", 1)
		}
		r.client.before.Store(&before)
		time.Sleep(8 * time.Second) // four RetryPeriods
		if n := requests.Load(); n > 12 {
			t.Errorf("%d requests for one lease within 4 x RetryPeriod", n)
		}
	})
}

// A change of the number of shards ends the members whose policy is ExitOnLoss.
func TestFleet_LayoutChangeDoesNotCountAsLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		old := startFleet(t, s, runs, "a", shardOptions(4))[0]
		eventually(t, time.Minute, func() bool { return runs.count() == 4 })
		r := startFleet(t, s, runs, "b c", shardOptions(8), exitOnLoss)
		time.Sleep(30 * time.Second)
		for _, r := range r {
			r.linger.Store(int64(2 * time.Second)) // less than ShutdownTimeout
		}
		wantNoError(t, old.stop())
		time.Sleep(time.Minute)
		for _, r := range r {
			if err := r.Ready(); err != nil {
				t.Errorf("%s has ended: Run returned %v", r.name, r.result())
			}
		}
	})
}

// If ctx is already cancelled, Run does not request the lease.
func TestFleet_CancelledRunRequestsNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		r := newFleetRig(t, s, runs, "a")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wantNoError(t, r.Run(ctx))
		if n := r.client.requests.Load(); n > 0 {
			t.Errorf("%d requests: %v", n, s.names())
		}
	})
}

// A warm runnable that does not return when the shard cools down fails the liveness check.
func TestFleet_HungWarmRunnableIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		a := newFleetRig(t, s, runs, "a")
		wantNoError(t, a.Register("hung", RunFunc(func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(time.Hour)
			return nil
		}), ScopeWarmShard))
		a.start()
		eventually(t, time.Minute, func() bool { return runs.count() == 8 })
		others := startFleet(t, s, runs, "b c")
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b", "c"))
		time.Sleep(time.Minute)
		if a.Alive() == nil {
			t.Error("a runnable that does not return is not reported")
		}
		runs.check(t)
		for _, r := range append(others, a) {
			_ = r.stop()
		}
		time.Sleep(2 * time.Hour)
	})
}

// The plan has lost its label.
func TestFleet_PlanWithoutLabelIsRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		a := startFleet(t, s, runs, "a")[0]
		eventually(t, time.Minute, func() bool { return runs.count() == 8 })
		s.edit("test-plan", func(l *coordinationv1.Lease) { l.Labels = nil })
		b := startFleet(t, s, runs, "b")[0]
		time.Sleep(time.Minute)
		_ = a.stop()
		_ = b
		time.Sleep(time.Minute)
		if n := runs.count(); n != 8 {
			t.Errorf("%d shards are led", n)
		}
	})
}

// All members end at about the same time, as in a Deployment with the strategy Recreate that is rolled back.
func TestFleet_AllMembersLeaveAtOnce(t *testing.T) {
	for _, gap := range []time.Duration{0, 20 * time.Millisecond, testRetryPeriod / 3} {
		t.Run(gap.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, runs := newFakeLeases(), newShardRuns()
				rigs := startFleet(t, s, runs, "a b c")
				eventually(t, time.Minute, isBalanced(runs, 8, "a", "b", "c"))
				time.Sleep(30 * time.Second)
				for _, r := range rigs { // any of them can lead the fleet
					r.cancel()
					time.Sleep(gap)
				}
				for _, r := range rigs {
					wantNoError(t, r.result())
				}
				if h := s.holder("test"); h != "" {
					t.Errorf("the lease still keeps replicas without shards from leading: %q; leases left: %v", h, s.names())
				}
			})
		})
	}
}

// The view of the fleet's leader is stale.
func TestFleet_StaleViewDoesNotDeleteTheLeasesOfMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		a := startFleet(t, s, runs, "a")[0]
		eventually(t, time.Minute, func() bool { return runs.count() == 8 })
		b := startFleet(t, s, runs, "b")[0]
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b"))
		s.mu.Lock()
		for w := range s.watchers { // all watches hang
			delete(s.watchers, w)
		}
		s.mu.Unlock()
		var deleted atomic.Int64
		before := func(_ context.Context, verb, name string) error {
			if verb == "delete" {
				deleted.Add(1)
			}
			return nil
		}
		a.client.before.Store(&before)
		time.Sleep(20 * time.Second)
		if n := deleted.Load(); n > 2 || s.holder(leasename.Member("test", b.options.Identity)) == "" {
			t.Errorf("%d requests to delete the Leases of living members, want one for each", n)
		}
	})
}

// HasSyncedShard is called with a lock.
func TestFleet_HasSyncedShardCanCallStatus(t *testing.T) {
	s, runs := newFakeLeases(), newShardRuns()
	r := newFleetRig(t, s, runs, "a")
	wantNoError(t, r.Register("status", &statusRunnable{r}, ScopeWarmShard))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = r.Run(ctx) }()
	for began := time.Now(); runs.count() < 8; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > 10*time.Second {
			t.Fatal("no shard is led: deadlock")
		}
	}
	cancel()
	<-ended
}

type statusRunnable struct{ rig *fleetRig }

func (r *statusRunnable) Run(ctx context.Context) error { <-ctx.Done(); return nil }

func (r *statusRunnable) HasSyncedShard(int, int) bool { return len(r.rig.Status().Shards) > 0 }

// layoutRuns records which layouts are being run.
type layoutRuns struct {
	mu      sync.Mutex
	running map[int]map[string]int
}

func (l *layoutRuns) register(t *testing.T, r *fleetRig) {
	wantNoError(t, r.Register("layout", RunFunc(func(ctx context.Context) error {
		_, count := Shard(ctx)
		l.add(count, r.name, 1)
		defer l.add(count, r.name, -1)
		<-ctx.Done()
		linger := time.After(time.Duration(r.linger.Load()))
		select {
		case <-linger:
		case <-ctx.Value(termKey{}).(*term).over:
		}
		return nil
	}), ScopeShard))
}

func (l *layoutRuns) add(count int, name string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running[count] == nil {
		l.running[count] = map[string]int{}
	}
	if l.running[count][name] += n; l.running[count][name] == 0 {
		delete(l.running[count], name)
	}
	if len(l.running[count]) == 0 {
		delete(l.running, count)
	}
}

func (l *layoutRuns) violated() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.running) > 1 {
		return fmt.Sprintf("two layouts at once: %v", l.running)
	}
	return ""
}

// The fleet's lease is deleted, and recreated by a member that is configured for another number of shards. A member
// that reads the new layout without having noticed the deletion continues its terms of the old layout until its
// runnables have returned.
func TestFleet_OneLayoutAfterTheFleetLeaseWasRecreated(t *testing.T) {
	for offset := range 5 {
		synctest.Test(t, func(t *testing.T) {
			s, runs := newFakeLeases(), newShardRuns()
			l := &layoutRuns{running: map[int]map[string]int{}}
			slow := func(o *Options) { o.ShutdownTimeout = 30 * time.Second }
			a := newFleetRig(t, s, runs, "a", shardOptions(8), slow)
			l.register(t, a)
			a.start()
			eventually(t, time.Minute, func() bool { return runs.count() == 8 })
			for _, name := range []string{"b", "c", "d"} {
				r := newFleetRig(t, s, runs, name, shardOptions(16), slow)
				l.register(t, r)
				r.linger.Store(int64(20 * time.Second))
				r.start()
			}
			a.linger.Store(int64(20 * time.Second))
			time.Sleep(30*time.Second + time.Duration(offset)*100*time.Millisecond)
			defer watchFleet(t, l.violated)()
			s.edit("test", nil)
			time.Sleep(time.Minute)
		})
	}
}

// A failing runnable of the fleet's leader stops the shards.
func TestFleet_FailingSingletonDoesNotStopTheShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		for _, name := range []string{"a", "b"} {
			r := newFleetRig(t, s, runs, name, stepDown)
			wantNoError(t, r.Register("failing", RunFunc(func(ctx context.Context) error {
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
				}
				return errors.New("failed")
			}), ScopeLeader))
			r.start()
		}
		eventually(t, time.Minute, func() bool { return runs.count() == 8 })
		runs.resetGaps()
		time.Sleep(10 * time.Minute)
		if gap := runs.longestGap(); gap > maxShardTakeover {
			t.Errorf("a shard was not led for %s", gap)
		}
		if n := runs.count(); n != 8 {
			t.Errorf("%d shards are led, the lease is held by %q", n, s.holder("test"))
		}
		runs.check(t)
	})
}

// A user's label must not hide the leases of the fleet.
func TestFleet_LabelsOfTheFleetCannotBeReplaced(t *testing.T) {
	if got := leasename.Labels("test", map[string]string{leasename.Label: "other"})[leasename.Label]; got != "test" {
		t.Errorf("the label is %q", got)
	}
}

// The Lease of a shard that a smaller layout no longer has is not deleted, because the API server could not find out
// then that a late write belongs to a term that is over; see package serverfence.
func TestFleet_LeasesOfRemovedShardsAreReleased(t *testing.T) {
	for name, end := range map[string]func(*fleetRig){
		"the last leader has left":    func(r *fleetRig) { _ = r.stop() },
		"the last leader has crashed": (*fleetRig).crash,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, runs := newFakeLeases(), newShardRuns()
				old := startFleet(t, s, runs, "a", shardOptions(16))
				eventually(t, maxFleetStart, func() bool { return runs.count() == 16 })
				startFleet(t, s, runs, "c d", shardOptions(4))
				time.Sleep(time.Minute)
				end(old[0])
				time.Sleep(2 * time.Minute)
				if n := runs.count(); n != 4 {
					t.Errorf("%d shards are led", n)
				}
				for i := 4; i < 16; i++ {
					if name := leasename.Shard("test", i); !slices.Contains(s.names(), name) || !s.isReleased(name) {
						t.Errorf("%s is held by %q, want it to be released", name, s.holder(name))
					}
				}
				if names := s.names(); len(names) != 16+1+1+2 {
					t.Errorf("leases: %v", names)
				}
			})
		})
	}
}

// A layout is recorded that differs from the running one, the plan still has the old number of shards, and one runnable
// returns slowly: the other shards are started and stopped in a busy loop.
func TestFleet_OldLayoutIsNotRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		a := newFleetRig(t, s, runs, "a", shardOptions(8))
		var starts atomic.Int64
		wantNoError(t, a.Register("counter", RunFunc(func(ctx context.Context) error {
			if starts.Add(1) > 1000 {
				return errors.New("too many starts")
			}
			<-ctx.Done()
			return nil
		}), ScopeWarmShard))
		wantNoError(t, a.Register("slow", RunFunc(func(ctx context.Context) error {
			<-ctx.Done()
			if index, _ := Shard(ctx); index == 0 {
				time.Sleep(4 * time.Second)
			}
			return nil
		}), ScopeShard))
		a.start()
		eventually(t, time.Minute, func() bool { return runs.count() == 8 })
		time.Sleep(10 * time.Second)
		starts.Store(0)
		s.setHolder("test", fleet.Holder{Shards: 16, Leader: "b"}.String())
		time.Sleep(3 * time.Second)
		if n := starts.Load(); n > 16 {
			t.Errorf("runnables of warm shards were started %d times within 3 s", n)
		}
	})
}

// The API server answers requests for one Lease with 429 while a fleet's last member shuts down.
func TestFleet_ShutdownEndsInTimeAlthoughALeaseCannotBeReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		r := startFleet(t, s, runs, "a", defaultDurations)[0]
		eventually(t, time.Minute, func() bool { return runs.count() == 8 })
		time.Sleep(time.Minute)
		busy := leasename.Shard("test", 3)
		before := func(_ context.Context, _, name string) error {
			if name != busy {
				return nil
			}
			return apierrors.NewTooManyRequests("busy", 1)
		}
		r.client.before.Store(&before)
		began := time.Now()
		wantNoError(t, r.stop())
		if took := time.Since(began); took > testShutdownTimeout {
			t.Errorf("the shutdown took %s", took)
		}
		for _, message := range []string{
			"Lease not released, other replicas wait until it expires",
			"Number of shards not removed, replicas without shards wait until the fleet's lease expires",
		} {
			if r.log.count(message+`" "lease"="default/`+busy+`"`) != 1 {
				t.Errorf("%q does not name the lease:\n%s", message, r.log)
			}
		}
		if h, _ := fleet.ParseHolder(s.holder("test")); h.Shards != 8 || h.Leader != "" {
			t.Errorf("the fleet's lease is held by %q, want its leader to have left", s.holder("test"))
		}
	})
}

// The last two members leave one after the other, at any distance. A replica without shards leads when both have left.
func TestH2_ReplicaWithoutShardsLeadsWhenTheLastTwoMembersHaveLeft(t *testing.T) {
	for distance := time.Duration(0); distance <= 3*time.Second; distance += 200 * time.Millisecond {
		for _, leaderFirst := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, leader first: %t", distance, leaderFirst), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s, runs := newFakeLeases(), newShardRuns()
					rigs := startFleet(t, s, runs, "a b")
					eventually(t, maxFleetStart, isBalanced(runs, 8, "a", "b"))
					time.Sleep(time.Minute)
					plain, whole := newPlain(t, s, "plain")
					plain.start()
					time.Sleep(time.Second)
					if leads := rigs[0].Status().Leading; leads != leaderFirst {
						rigs[0], rigs[1] = rigs[1], rigs[0]
					}
					first := make(chan error)
					go func() { first <- rigs[0].stop() }()
					time.Sleep(distance)
					began := time.Now()
					wantNoError(t, rigs[1].stop())
					wantNoError(t, <-first)
					if took := time.Since(began); took > testShutdownTimeout {
						t.Errorf("the shutdown took %s", took)
					}
					eventually(t, maxAcquire, whole.isRunning)
					runs.check(t)
				})
			})
		}
	}
}
