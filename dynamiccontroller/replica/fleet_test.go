package replica

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
)

func TestH2_EachShardIsLedByOneReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		rigs := startFleet(t, s, runs, "a b c")
		took := eventually(t, maxFleetStart, func() bool { return runs.count() == 8 })
		t.Logf("all shards are led after %s", took)
		took = eventually(t, time.Minute, isBalanced(runs, 8, "a", "b", "c"))
		t.Logf("balanced after another %s: %v", took, runs.led())
		time.Sleep(time.Minute)
		n := len(runs.runs)
		time.Sleep(time.Minute)
		if len(runs.runs) != n {
			t.Errorf("shards still move: %v", runs.runs[n:])
		}
		for _, r := range rigs {
			wantNoError(t, r.stop())
		}
		runs.check(t)
	})
}

func TestH6_StandbyLeadsAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		rigs := startFleet(t, s, runs, "a b c")
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b", "c"))
		time.Sleep(30 * time.Second)
		runs.resetGaps()
		rigs[0].crash()
		took := eventually(t, maxShardTakeover, func() bool { return runs.count() == 8 })
		t.Logf("all shards are led %s after the crash", took)
		runs.check(t)
	})
}

func TestH4_ShutdownHandsOverAllShardsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		rigs := startFleet(t, s, runs, "a b c")
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b", "c"))
		time.Sleep(30 * time.Second)
		for i, r := range rigs[:2] {
			runs.resetGaps()
			r.linger.Store(int64(3 * time.Second))
			wantNoError(t, r.stop())
			eventually(t, 2*time.Second, func() bool { return runs.count() == 8 })
			if gap := runs.longestGap(); gap > time.Second {
				t.Errorf("shutdown %d: a shard was not led for %s", i, gap)
			}
			time.Sleep(time.Minute)
		}
		runs.check(t)
	})
}

func TestH3_WriteNeedsTheTermOfItsShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		r := newFleetRig(t, s, runs, "a")
		contexts := make(chan contextOfShard, 100)
		wantNoError(t, r.Register("contexts", RunFunc(contextOfShards(contexts)), ScopeShard))
		r.start()
		eventually(t, maxFleetStart, func() bool { return runs.count() == 8 })
		wantErrorIs(t, r.write(t.Context()), ErrNotLeading)
		first := <-contexts
		wantNoError(t, r.write(first.ctx))
		s.edit("test-shard-"+first.name, nil)
		<-first.ctx.Done()
		wantErrorIs(t, r.write(first.ctx), ErrNotLeading)
		second := <-contexts
		wantNoError(t, r.write(second.ctx)) // the loss of one shard does not affect another one
		wantNoError(t, r.stop())
		wantErrorIs(t, r.write(second.ctx), ErrNotLeading)
		runs.check(t)
	})
}

func TestH2_PlannedMoveWaitsForTheOldLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		first := startFleet(t, s, runs, "a")[0]
		first.linger.Store(int64(2 * time.Second))
		eventually(t, maxFleetStart, func() bool { return runs.count() == 8 })
		runs.resetGaps()
		second := newFleetRig(t, s, runs, "b")
		second.warmUp.Store(int64(5 * time.Second))
		second.start()
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b"))
		if gap := runs.longestGap(); gap > time.Second {
			t.Errorf("a shard was not led for %s", gap)
		}
		runs.check(t)
	})
}

func TestLayout_ReplicasWithoutShardsStandByUntilTheLastMemberHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		members := startFleet(t, s, runs, "a b")
		eventually(t, maxFleetStart, func() bool { return runs.count() == 8 })
		plain, whole := newPlain(t, s, "plain")
		plain.start()
		time.Sleep(5 * fleet.LeaseFactor * testLeaseDuration)
		wantStarts(t, whole, 0, 0)
		wantNoError(t, members[0].stop())
		time.Sleep(5 * fleet.LeaseFactor * testLeaseDuration)
		wantStarts(t, whole, 0, 0)
		wantNoError(t, members[1].stop())
		eventually(t, maxAcquire, whole.isRunning)
		if n := runs.count(); n > 0 {
			t.Errorf("%d shards are led at the same time", n)
		}
		// A member stands by while a replica without shards leads, and leads once that replica has left.
		third := newFleetRig(t, s, runs, "c").start()
		time.Sleep(time.Minute)
		wantStarts(t, whole, 1, 1)
		if n := runs.count(); n > 0 {
			t.Errorf("%d shards are led at the same time", n)
		}
		wantNoError(t, plain.stop())
		took := eventually(t, maxFleetStart, func() bool { return runs.count() == 8 })
		t.Logf("all shards are led %s after the replica without shards has left", took)
		wantNoError(t, third.stop())
		runs.check(t)
	})
}

func TestLayout_ReplicasWithoutShardsLeadAfterTheLastMemberHasCrashed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		member := startFleet(t, s, runs, "a")[0]
		eventually(t, maxFleetStart, func() bool { return runs.count() == 8 })
		plain, whole := newPlain(t, s, "plain")
		plain.start()
		time.Sleep(testLeaseDuration)
		crashed := time.Now()
		member.crash()
		eventually(t, fleet.LeaseFactor*testLeaseDuration+2*maxAcquire, whole.isRunning)
		if took := time.Since(crashed); took < (fleet.LeaseFactor-1)*testLeaseDuration {
			t.Errorf("the replica without shards leads after %s", took)
		}
		runs.check(t)
	})
}

func TestLayout_ChangesOnceAllMembersAreConfiguredForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		old := startFleet(t, s, runs, "a b", shardOptions(4))
		eventually(t, maxFleetStart, func() bool { return runs.count() == 4 })
		startFleet(t, s, runs, "c d", shardOptions(16))
		wantNoError(t, old[0].stop())
		time.Sleep(time.Minute)
		if n := runs.count(); n != 4 {
			t.Fatalf("%d shards are led, want 4 because one member is configured for 4", n)
		}
		wantNoError(t, old[1].stop())
		took := eventually(t, time.Minute, func() bool { return runs.count() == 16 })
		t.Logf("16 shards are led after %s", took)
		eventually(t, time.Minute, isBalanced(runs, 16, "c", "d"))
		runs.check(t)
	})
}

func TestH6_MissingShardLeaseIsLedAfterALeaseDuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		startFleet(t, s, runs, "a b")
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b"))
		runs.resetGaps()
		s.edit("test-shard-3", nil)
		eventually(t, 2*testRetryPeriod, func() bool { return runs.of(3) == "" })
		eventually(t, 2*testLeaseDuration, func() bool { return runs.of(3) != "" })
		if gap := runs.longestGap(); gap < testLeaseDuration-testRetryPeriod {
			t.Errorf("the shard was led again after %s", gap)
		}
		runs.check(t)
	})
}
