package replica

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// meter is a runnable for shards with given loads.
type meter struct {
	mu      sync.Mutex // guards the fields below
	since   time.Time
	busy    map[int]float64 // workers since then
	objects map[int]int
}

func (m *meter) set(busy map[int]float64, objects map[int]int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.since, m.busy, m.objects = time.Now(), busy, objects
}

func (m *meter) ShardLoad(index, _ int) (objects int, busy time.Duration, changes int64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.objects[index], time.Duration(m.busy[index] * float64(time.Since(m.since))), 0, true
}

func (m *meter) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

var _ ShardMeter = (*meter)(nil)

// startMetered starts replicas whose shards have the loads of the meter.
func startMetered(
	t *testing.T, s *fakeLeases, runs *shardRuns, m *meter, capacity int, names ...string,
) (rigs []*fleetRig) {
	for _, name := range names {
		r := newFleetRig(t, s, runs, name, func(o *Options) { o.Capacity = capacity })
		wantNoError(t, r.Register("meter", m, ScopeShard))
		rigs = append(rigs, r.start())
	}
	return rigs
}

// A hot shard must not share its leader with as many others as a cold one.
func TestFleet_ShardsAreBalancedByTheirLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs, m := newFakeLeases(), newShardRuns(), &meter{}
		startMetered(t, s, runs, m, 0, "a", "b")
		eventually(t, time.Minute, isBalanced(runs, 8, "a", "b"))
		time.Sleep(time.Minute)
		if led := runs.led(); led["a"] != 4 || led["b"] != 4 {
			t.Errorf("without loads: %v", led)
		}
		before := len(runs.since(0))
		m.set(map[int]float64{3: 1}, nil) // one worker is always busy
		took := eventually(t, 5*time.Minute, func() bool {
			leader := runs.of(3)
			return leader != "" && len(runs.shardsOf(leader)) == 1 && runs.count() == 8
		})
		moved := len(runs.since(before))
		t.Logf("balanced after %s, %d moves", took, moved)
		time.Sleep(10 * time.Minute)
		if again := len(runs.since(before)); again != moved || moved > 4 {
			t.Errorf("%d moves, then %d", moved, again-moved)
		}
		runs.check(t)
	})
}

func TestFleet_ShardsWithoutCapacityAreNotLed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs, m := newFakeLeases(), newShardRuns(), &meter{}
		objects := map[int]int{}
		for i := range 8 {
			objects[i] = 100
		}
		m.set(nil, objects)
		rigs := startMetered(t, s, runs, m, 310, "a", "b") // 6 of the 16 copies of 100 objects
		eventually(t, maxFleetStart, func() bool { return runs.count() == 8 })
		time.Sleep(5 * time.Minute)
		if runs.count() != 8 { // the loads were unknown when the shards were assigned
			t.Errorf("%d shards are led", runs.count())
		}
		wantNoError(t, rigs[1].stop())
		rigs[1] = startMetered(t, s, runs, m, 310, "b")[0]
		time.Sleep(5 * time.Minute)
		wantNoError(t, rigs[0].stop())
		rigs[0] = startMetered(t, s, runs, m, 310, "a")[0]
		time.Sleep(5 * time.Minute)
		unled := map[string]int{}
		for _, shard := range rigs[0].Status().Shards {
			unled[shard.Unled]++
		}
		if runs.count() != 6 || unled["capacity"] != 2 || unled[""] != 6 {
			t.Errorf("%d shards are led, status: %v", runs.count(), unled)
		}
		startMetered(t, s, runs, m, 310, "c", "d", "e")
		eventually(t, 5*time.Minute, func() bool { return runs.count() == 8 })
		runs.check(t)
	})
}

// A type of shard 3 ends each process that reconciles it for 5 seconds.
func TestFleet_ShardWhoseLeadersCrashIsHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, runs := newFakeLeases(), newShardRuns()
		var mu sync.Mutex
		rigs, crashes := map[string]*fleetRig{}, 0
		var start func(name string)
		crash := func(name string) {
			mu.Lock()
			r := rigs[name]
			crashes++
			mu.Unlock()
			r.crash()
			time.Sleep(time.Second)
			start(name)
		}
		start = func(name string) {
			r := newFleetRig(t, s, runs, name)
			wantNoError(t, r.Register("poison", RunFunc(func(ctx context.Context) error {
				if index, _ := Shard(ctx); index == 3 {
					select {
					case <-time.After(5 * time.Second):
						go crash(name)
					case <-ctx.Done():
					}
				}
				<-ctx.Done()
				return nil
			}), ScopeShard))
			mu.Lock()
			rigs[name] = r
			mu.Unlock()
			r.start()
		}
		for _, name := range []string{"a", "b", "c", "d"} {
			start(name)
		}
		status := func() ShardStatus {
			mu.Lock()
			defer mu.Unlock()
			if shards := rigs["a"].Status().Shards; len(shards) == 8 {
				return shards[3]
			}
			return ShardStatus{}
		}
		eventually(t, 5*time.Minute, func() bool { return status().Unled == "held" })
		time.Sleep(10 * time.Minute) // it has been tried again, and is held back for longer
		mu.Lock()
		tried := crashes
		mu.Unlock()
		if tried < minPoisonCrashes || tried > 4*minPoisonCrashes { // each hold takes twice as long as the last one
			t.Errorf("%d crashes", tried)
		}
		eventually(t, time.Minute, func() bool { return status().Unled == "held" && runs.count() == 7 })
		runs.check(t)
	})
}

// minPoisonCrashes is the number of crashes after which a shard is held back.
const minPoisonCrashes = 3
