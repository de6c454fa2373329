package replica

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
)

// The only member can renew the Leases of its shards, but not that of the fleet.
func TestH2_ShardsEndBeforeReplicasWithoutShardsLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		member := startFleet(t, s, runs, "a")[0]
		eventually(t, maxFleetStart, func() bool { return runs.count() == 8 })
		plain, whole := newPlain(t, s, "plain")
		plain.start()
		time.Sleep(testLeaseDuration)
		member.failFor(func(name string) bool { return name == "test" })
		failed := time.Now()
		eventually(t, fleet.LeaseFactor*testLeaseDuration, func() bool { return runs.count() == 0 })
		if lasted := time.Since(failed); lasted < (fleet.LeaseFactor-1)*testLeaseDuration {
			t.Errorf("the shards ended after %s", lasted)
		}
		if whole.isRunning() {
			t.Error("the replica without shards led before the shards had ended")
		}
		eventually(t, testLeaseDuration, whole.isRunning)
		runs.check(t)
	})
}

// Another member renews the fleet's Lease, so the shards of a member that cannot are not affected.
func TestH2_ShardsContinueWhileAnotherMemberLeadsTheFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		rigs := startFleet(t, s, runs, "a b")
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b"))
		time.Sleep(30 * time.Second)
		leader := rigs[0]
		if !leader.Status().Leading {
			leader = rigs[1]
		}
		runs.resetGaps()
		updates := func(_ context.Context, verb, name string) error {
			if name == "test" && verb == verbUpdate {
				return errDown
			}
			return nil
		}
		leader.client.before.Store(&updates)
		time.Sleep(10 * fleet.LeaseFactor * testLeaseDuration)
		if gap := runs.longestGap(); gap > 0 || runs.count() != 8 {
			t.Errorf("%d shards are led; a shard was not led for %s", runs.count(), gap)
		}
		runs.check(t)
	})
}

func TestShards_FailureOfARunnableEndsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, register := range map[string]func(*fleetRig, Runnable) error{
			"led":  func(r *fleetRig, f Runnable) error { return r.Register("failing", f, ScopeShard) },
			"warm": func(r *fleetRig, f Runnable) error { return r.Register("failing", f, ScopeWarmShard) },
		} {
			s, runs := newFakeLeases(), newShardRuns()
			r := newFleetRig(t, s, runs, "a")
			failing := RunFunc(func(ctx context.Context) error {
				if index, _ := Shard(ctx); index == 3 {
					time.Sleep(time.Second)
					return errBroken
				}
				<-ctx.Done()
				return nil
			})
			wantNoError(t, register(r, failing))
			err := r.start().result()
			wantErrorIs(t, err, errBroken)
			wantErrorContains(t, err, `"failing"`)
			if n := runs.count(); n > 0 {
				t.Errorf("%s: %d shards are led after Run has returned", name, n)
			}
			if s.holder("test-shard-0") != "" || s.holder("test") != "" {
				t.Errorf("%s: Leases were not released: %q, %q", name, s.holder("test-shard-0"), s.holder("test"))
			}
		}
	})
}

func TestShards_StepDownHandsTheFailingShardOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		rigs := []*fleetRig{newFleetRig(t, s, runs, "a", stepDown), newFleetRig(t, s, runs, "b", stepDown)}
		fail := make(chan struct{}, 1)
		for _, r := range rigs {
			wantNoError(t, r.Register("failing", RunFunc(func(ctx context.Context) error {
				if index, _ := Shard(ctx); index != 3 {
					<-ctx.Done()
					return nil
				}
				select {
				case <-fail:
					return errBroken
				case <-ctx.Done():
					return nil
				}
			}), ScopeShard))
			r.start()
		}
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b"))
		time.Sleep(30 * time.Second)
		before := runs.of(3)
		runs.resetGaps()
		fail <- struct{}{}
		eventually(t, maxShardTakeover, func() bool { return runs.of(3) != "" && runs.of(3) != before })
		time.Sleep(time.Minute) // the backoff is over, and the shard may move back
		if gap := runs.longestGap(); gap > time.Second {
			t.Errorf("a shard was not led for %s", gap)
		}
		runs.check(t)
	})
}

func TestShards_RunnablesOfOneShardAreLeaderGatedAndPerReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		a, b := newRig(t, s, "a", shardOptions(1)), newRig(t, s, "b")
		var work, watches [2]worker
		for i, r := range []*rig{a, b} {
			wantNoError(t, r.Register("work", &work[i], ScopeShard))
			wantNoError(t, r.Register("watches", &watches[i], ScopeWarmShard))
			r.start()
			time.Sleep(time.Second)
		}
		wantStarts(t, &work[0], 1, 1)
		wantStarts(t, &work[1], 0, 0)
		wantStarts(t, &watches[0], 1, 1)
		wantStarts(t, &watches[1], 1, 1)
		if n := len(a.Status().Shards); n > 0 {
			t.Errorf("the status contains %d shards", n)
		}
		if index, count := Shard(t.Context()); index != 0 || count != 1 {
			t.Errorf("got shard %d of %d", index, count)
		}
	})
}

func TestShards_RunnablesCanBeRegisteredWhileRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		r := startFleet(t, s, runs, "a")[0]
		eventually(t, maxFleetStart, func() bool { return runs.count() == 8 })
		var led, warm, once worker
		wantNoError(t, r.Register("led", &led, ScopeShard))
		wantNoError(t, r.Register("warm", &warm, ScopeWarmShard))
		wantNoError(t, r.Register("once", &once, ScopeLeader))
		for _, scope := range []Scope{ScopeLeader, ScopeReplica, ScopeShard, ScopeWarmShard} {
			for _, name := range []string{"led", "warm", "once"} {
				wantErrorContains(t, r.Register(name, &worker{}, scope), "already used")
			}
		}
		synctest.Wait()
		wantStarts(t, &led, 8, 8)
		wantStarts(t, &warm, 8, 8)
		wantStarts(t, &once, 1, 1)
		wantNoError(t, r.stop())
		wantStarts(t, &led, 8, 0)
		wantStarts(t, &warm, 8, 0)
		wantStarts(t, &once, 1, 0)
	})
}

func TestShards_LeavingFleetLeavesNoMembersBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		rigs := startFleet(t, s, runs, "a b c")
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b", "c"))
		rigs[0].crash()
		time.Sleep(3 * testLeaseDuration)
		wantNoError(t, rigs[1].stop())
		time.Sleep(3 * testLeaseDuration)
		if n := runs.warmOf("c"); n != 8 {
			t.Errorf("the last replica keeps %d shards warm, want 8", n)
		}
		wantNoError(t, rigs[2].stop())
		// The Leases of the fleet, of its shards and of the plan are used again.
		if names := s.names(); len(names) != 10 {
			t.Errorf("got the Leases %v", names)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.watchers) > 0 {
			t.Errorf("%d watches are open", len(s.watchers))
		}
	})
}

func TestStatus_DescribesTheShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		rigs := startFleet(t, s, runs, "a b c")
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b", "c"))
		time.Sleep(30 * time.Second)
		for index := range 8 {
			leading, warm := 0, 0
			for _, r := range rigs {
				status := r.Status()
				shard := status.Shards[index]
				isLeader := runs.of(index) == r.name
				if shard.Leading != isLeader || (shard.Leader == status.Identity) != isLeader || isLeader && shard.Term == 0 {
					t.Errorf("shard %d on %s: got %+v", index, r.name, shard)
				}
				leading, warm = leading+count(shard.Leading), warm+count(shard.Warm)
			}
			if leading != 1 || warm != 2 {
				t.Errorf("shard %d: %d replicas lead it, and %d keep it warm", index, leading, warm)
			}
		}
		for _, r := range rigs {
			wantNoError(t, r.Alive())
			wantNoError(t, r.Ready())
		}
	})
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestOptions_InvalidShardsAreRejected(t *testing.T) {
	for _, count := range []int{-1, 3, 12, 512} {
		o := testOptions()
		o.Shards = count
		wantErrorContains(t, o.validate(), "Options.Shards", "power of two")
	}
	for _, count := range []int{0, 1, 2, 256} {
		o := testOptions()
		o.Shards = count
		wantNoError(t, o.validate())
	}
}
