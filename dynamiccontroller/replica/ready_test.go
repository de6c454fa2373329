package replica

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
)

// A rolling update restarts the next replica when the last one is ready. Lists take longer than a restart.
func TestReady_RollingUpdateWaitsForTheShardsOfTheNewReplica(t *testing.T) {
	for name, surge := range map[string]bool{"one replica less": false, "one replica more": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testRollingUpdate(t, surge) })
		})
	}
}

func testRollingUpdate(t *testing.T, surge bool) {
	s, runs := newFakeLeases(), newShardRuns()
	old := startFleet(t, s, runs, "a b c")
	eventually(t, time.Minute, isBalanced(runs, 8, "a", "b", "c"))
	time.Sleep(time.Minute)
	rigs := map[string]*fleetRig{"a": old[0], "b": old[1], "c": old[2]}
	longest, since := time.Duration(0), time.Now()
	observe := func() bool { // how long not all shards are reconciled
		if runs.served(rigs) == 8 {
			since = time.Now()
		}
		longest = max(longest, time.Since(since))
		return false
	}
	for i, name := range []string{"d", "e", "f"} {
		if !surge {
			wantNoError(t, old[i].stop())
		}
		next := newFleetRig(t, s, runs, name)
		next.warmUp.Store(int64(8 * time.Second))
		rigs[name] = next.start()
		took := eventually(t, time.Minute, func() bool { return observe() || next.Ready() == nil })
		t.Logf("%s is ready after %s", name, took)
		if surge {
			wantNoError(t, old[i].stop())
		}
	}
	eventually(t, time.Minute, func() bool { return observe() || runs.served(rigs) == 8 })
	if longest > 2*time.Second {
		t.Errorf("a shard was not reconciled for %s", longest)
	}
	runs.check(t)
}

// served returns the number of shards that a replica runs whose caches have synced.
func (r *shardRuns) served(rigs map[string]*fleetRig) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for shard, name := range r.running {
		if since, ok := r.warm[name][shard]; ok && time.Since(since) >= time.Duration(rigs[name].warmUp.Load()) {
			n++
		}
	}
	return n
}

// Once a replica is ready, it remains ready, although it gets shards that have not synced.
func TestReady_OnceWithShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		rigs := startFleet(t, s, runs, "a b c")
		eventually(t, time.Minute, func() bool { return rigs[0].Ready() == nil })
		rigs[0].warmUp.Store(int64(time.Hour))
		eventually(t, time.Minute, func() bool { return rigs[1].Ready() == nil && rigs[2].Ready() == nil })
		rigs[1].crash()
		rigs[2].crash()
		for range 100 {
			time.Sleep(time.Second)
			wantNoError(t, rigs[0].Ready())
		}
	})
}

func TestReady_NamesTheShardsThatHaveNotSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		r := newFleetRig(t, s, runs, "a", shardOptions(2))
		r.warmUp.Store(int64(10 * time.Minute))
		r.start()
		time.Sleep(time.Millisecond)
		wantErrorContains(t, r.Ready(), `check "sync" failed`)
		time.Sleep(5 * time.Minute)
		wantErrorContains(t, r.Ready(), `check "sync" failed`, "shards have not synced: 0, 1")
		eventually(t, 6*time.Minute, func() bool { return r.Ready() == nil })
	})
}

// Nobody plans: the Lease of the fleet cannot be acquired, or a replica without shards leads.
func TestReady_DoesNotDependOnAPlanForEver(t *testing.T) {
	for name, prepare := range map[string]func(*testing.T, *fleetRig){
		"the lease cannot be read": func(_ *testing.T, r *fleetRig) {
			r.failFor(func(name string) bool { return name == "test" })
		},
		"there is no plan": func(_ *testing.T, r *fleetRig) {
			r.failFor(func(name string) bool { return name == "test-plan" })
		},
		"a replica without shards leads": func(t *testing.T, r *fleetRig) {
			plain, whole := newPlain(t, r.client.server, "plain")
			plain.start()
			eventually(t, time.Minute, whole.isRunning)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, runs := newFakeLeases(), newShardRuns()
				r := newFleetRig(t, s, runs, "a")
				prepare(t, r)
				r.start()
				took := eventually(t, time.Minute, func() bool { return r.Ready() == nil })
				if took < time.Second || took > (fleet.LeaseFactor+1)*testLeaseDuration {
					t.Errorf("ready after %s", took)
				}
			})
		})
	}
}
