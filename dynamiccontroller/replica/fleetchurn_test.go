package replica

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
)

const testSettleTime = fleet.SettlePeriods * testLeaseDuration

// One replica restarts all the time. The shards of another one that crashes get standbys, and the fleet is balanced.
func TestFleet_CrashLoopingReplicaDoesNotStopBalance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		startFleet(t, s, runs, "a b c")
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b", "c"))
		time.Sleep(time.Minute)
		end, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			for {
				x := newFleetRig(t, s, runs, "x").start()
				select {
				case <-time.After(2 * time.Second):
				case <-end:
				}
				x.crash()
				select {
				case <-time.After(time.Second):
				case <-end:
					return
				}
			}
		}()
		time.Sleep(time.Minute)
		d := startFleet(t, s, runs, "d")[0]
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b", "c", "d"))
		d.crash()
		eventually(t, testLeaseDuration+testSettleTime+5*time.Second, func() bool {
			copies := 0
			for _, name := range []string{"a", "b", "c"} {
				copies += runs.warmOf(name)
			}
			return copies == 16
		})
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b", "c"))
		close(end)
		<-ended
		runs.check(t)
	})
}

// A fleet grows by one member after another. Each member gets its share soon, although others follow.
func TestFleet_MembersGetShardsWhileOthersJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		startFleet(t, s, runs, "a", shardOptions(32))
		eventually(t, time.Minute, func() bool { return runs.count() == 32 })
		const members, distance = 12, testSettleTime / 2
		for i := range members {
			startFleet(t, s, runs, fmt.Sprintf("m%d", i), shardOptions(32))
			time.Sleep(distance)
		}
		// All but the last few have been there for longer than a member is new.
		idle := 0
		for i := range members - 4 {
			if runs.warmOf(fmt.Sprintf("m%d", i)) == 0 {
				idle++
			}
		}
		if idle > 0 {
			t.Errorf("%d of %d members have nothing", idle, members-4)
		}
		runs.check(t)
	})
}
