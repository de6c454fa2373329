package replica

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/leasename"
)

// startWithOrphans starts a fleet, and returns its leader and a function that crashes both copies of some shards.
func startWithOrphans(t *testing.T, s *fakeLeases, runs *shardRuns) (
	leader *fleetRig, rigs []*fleetRig, crash func() (x, y *fleetRig),
) {
	rigs = startFleet(t, s, runs, "a b c d")
	eventually(t, time.Minute, isBalanced(runs, 8, "a", "b", "c", "d"))
	time.Sleep(time.Minute)
	var others []*fleetRig
	for _, r := range rigs {
		if r.Status().Leading {
			leader = r
		} else {
			others = append(others, r)
		}
	}
	return leader, rigs, func() (x, y *fleetRig) {
		// Of the three pairs, one has both copies of a shard.
		assignments := *leader.member.shards.plan.Load()
		for _, pair := range [][2]int{{0, 1}, {0, 2}, {1, 2}} {
			x, y = others[pair[0]], others[pair[1]]
			for _, a := range assignments {
				copies := [2]string{a.Leader, a.Standby}
				if copies == [2]string{x.options.Identity, y.options.Identity} ||
					copies == [2]string{y.options.Identity, x.options.Identity} {
					x.crash()
					y.crash()
					return x, y
				}
			}
		}
		t.Fatalf("no shard has both copies on other members than the leader: %v", assignments)
		return nil, nil
	}
}

// The watch of the fleet's leader delivers nothing, although the connection is open.
func TestH6_OrphanedShardIsLedAlthoughTheWatchOfTheFleetsLeaderHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		leader, _, crash := startWithOrphans(t, s, runs)
		leader.client.deaf.Store(true)
		time.Sleep(time.Second)
		x, y := crash()
		eventually(t, 2*fleet.HeartbeatPeriods*testRetryPeriod+testLeaseDuration, func() bool {
			return len(fleet.AssignedTo(*leader.member.shards.plan.Load(), x.options.Identity)) == 0 &&
				len(fleet.AssignedTo(*leader.member.shards.plan.Load(), y.options.Identity)) == 0
		})
		took := eventually(t, 5*testLeaseDuration, func() bool { return runs.count() == 8 })
		t.Logf("all shards are led after %s", took)
		runs.check(t)
	})
}

// The Leases cannot be listed either.
func TestFleet_LeaderThatObservesNothingStepsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		leader, _, crash := startWithOrphans(t, s, runs)
		before := func(_ context.Context, verb, _ string) error {
			if verb == "list" || verb == "watch" {
				return errDown
			}
			return nil
		}
		leader.client.before.Store(&before)
		leader.client.deaf.Store(true)
		crash()
		eventually(t, 5*testLeaseDuration, func() bool {
			h, _ := fleet.ParseHolder(s.holder("test"))
			return h.Leader != "" && h.Leader != leader.options.Identity && !leader.Status().Leading
		})
		if n := leader.log.count("Stepping down as the leader of the fleet"); n != 1 {
			t.Errorf("logged %d times", n)
		}
		eventually(t, 5*testLeaseDuration, func() bool { return runs.count() == 8 })
		// It keeps its shards: it still observes that the Lease of the fleet is renewed.
		time.Sleep(2 * fleet.LeaseFactor * testLeaseDuration)
		if led := runs.shardsOf(leader.name); len(led) == 0 || leader.log.count("Lease lost") > 0 {
			t.Errorf("the member leads %v; log:\n%s", led, leader.log)
		}
		// It can lead again when it observes changes.
		leader.client.before.Store(nil)
		leader.client.deaf.Store(false)
		time.Sleep(time.Minute)
		if leader.member.heartbeat.IsStale() {
			t.Error("the member still observes nothing")
		}
		runs.check(t)
	})
}

// There is nobody else to lead the fleet.
func TestFleet_OnlyMemberContinuesAlthoughItObservesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		r := startFleet(t, s, runs, "a")[0]
		eventually(t, maxFleetStart, func() bool { return runs.count() == 8 })
		before := func(_ context.Context, verb, _ string) error {
			if verb == "list" || verb == "watch" {
				return errDown
			}
			return nil
		}
		r.client.before.Store(&before)
		r.client.deaf.Store(true)
		n := len(runs.runs)
		time.Sleep(5 * time.Minute)
		if led := runs.count(); led != 8 || len(runs.runs) != n {
			t.Errorf("%d shards are led, after %d interruptions", led, len(runs.runs)-n)
		}
		most := int(5*time.Minute/(fleet.LeaseFactor*testLeaseDuration)) + 1
		if n := r.log.count("Stepping down"); n == 0 || n > most {
			t.Errorf("the member has stepped down %d times, want at most %d", n, most)
		}
		eventually(t, 2*testLeaseDuration, func() bool { return r.Status().Leading })
	})
}

// The API server cannot be reached, which is not the fault of the watch.
func TestFleet_HeartbeatIgnoresAnUnreachableAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		r := startFleet(t, s, runs, "a")[0]
		eventually(t, maxFleetStart, func() bool { return runs.count() == 8 })
		r.client.down.Store(true)
		time.Sleep(time.Minute)
		r.client.down.Store(false)
		time.Sleep(time.Minute)
		if n := r.log.count("Stepping down"); n != 0 {
			t.Errorf("the member has stepped down %d times", n)
		}
	})
}

// Nobody can publish a plan.
func TestH6_OrphanedShardIsLedWithoutAPlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		_, rigs, crash := startWithOrphans(t, s, runs)
		before := func(_ context.Context, verb, name string) error {
			if name == leasename.Plan("test") {
				return errDown
			}
			if name == "test" && verb == verbGet {
				time.Sleep(50 * time.Millisecond) // the member observes its acquisition before it may lead
			}
			return nil
		}
		for _, r := range rigs {
			r.client.before.Store(&before)
		}
		crash()
		took := eventually(t, (fleet.OrphanPeriods+4)*testLeaseDuration, func() bool { return runs.count() == 8 })
		t.Logf("all shards are led after %s", took)
		time.Sleep(time.Minute)
		if n := runs.count(); n != 8 {
			t.Errorf("%d shards are led", n)
		}
		runs.check(t)
	})
}
