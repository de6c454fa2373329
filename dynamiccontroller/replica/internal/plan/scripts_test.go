package plan_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

// scriptShards is the number of shards in the scripts.
const scriptShards = 256

// balancedFleet returns a balanced fleet of 50 replicas.
func balancedFleet(t *testing.T, loads []plan.Load) *fleet {
	f := newFleet(t, len(loads))
	f.startMany(50)
	f.run(planEvery)
	f.loads = reports(loads)
	f.settle("cold start")
	f.reset()
	return f
}

// stays requires that nothing moves for some time.
func (f *fleet) stays(seconds int) {
	f.t.Helper()
	f.reset()
	f.run(seconds)
	if n := sumOf(f.begun); n > 0 || f.lists > 0 {
		f.t.Errorf("%d moves and %d lists of a balanced fleet", n, f.lists)
	}
}

// crashZone crashes the replicas on every third node.
func (f *fleet) crashZone() (crashed int) {
	f.t.Helper()
	for _, id := range f.ids() {
		var node int
		if _, err := fmt.Sscanf(f.replicas[id].node, "node-%d", &node); err != nil {
			f.t.Fatal(err)
		}
		if node%3 == 0 {
			f.crash(id)
			crashed++
		}
	}
	return crashed
}

// restartAll replaces each replica 15 s after the last one has started, so that the fleet never settles.
func (f *fleet) restartAll() {
	for _, id := range f.ids() {
		node := f.replicas[id].node
		f.stop(id)
		f.run(downtime)
		f.start(node)
		f.run(settleTime / 2)
	}
}

func TestSimulation_LoadsThatBecomeKnown(t *testing.T) {
	f := newFleet(t, scriptShards)
	f.startMany(50)
	f.balance("cold start, unknown loads")
	f.loads = reports(shardLoads("log-normal", 1, scriptShards))
	f.balance("loads become known")
	f.stays(600)
}

func TestSimulation_LoadedFleetThatIsScaledAndLosesAZone(t *testing.T) {
	f := balancedFleet(t, shardLoads("log-normal", 1, scriptShards))
	f.startMany(5)
	f.balance("50 to 55")
	f.stop(f.ids()[:15]...)
	f.balance("55 to 40")
	crashed := f.crashZone()
	f.settle("zone lost")
	f.onlyHandovers("zone lost")
	f.balance(fmt.Sprint("zone of ", crashed, " lost"))
}

func TestSimulation_RollingRestartMovesEachShardAtMostOnce(t *testing.T) {
	for _, name := range []string{"equal", "log-normal", "Zipf"} {
		t.Run(name, func(t *testing.T) {
			f := balancedFleet(t, shardLoads(name, 1, scriptShards))
			f.restartAll()
			f.settle("rolling restart")
			f.onlyHandovers("rolling restart")
			if most := slices.Max(f.begun); most > 1 {
				t.Errorf("a shard was moved %d times", most)
			}
			f.balance("rolling restart")
		})
	}
}

func TestSimulation_ShardThatGrows(t *testing.T) {
	const hot = 100
	loads := shardLoads("log-normal", 1, scriptShards)
	f := balancedFleet(t, loads)
	loads[hot].Work *= 1000
	loads[hot].Objects *= 1000
	f.settle("a shard grows")
	f.onlyHandovers("a shard grows")
	led, moved := 0, 0
	for i, holder := range f.holders {
		led += number(holder == f.holders[hot])
		moved += number(f.begun[i] > 0)
	}
	if led != 1 {
		t.Errorf("the leader of the shard leads %d shards", led)
	}
	t.Logf("%d shards moved, one of them %d times", moved, slices.Max(f.begun))
	f.balance("a shard grows 1,000-fold")
	f.stays(1200)
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestSimulation_NoiseMovesNothing(t *testing.T) {
	loads := shardLoads("log-normal", 1, scriptShards)
	f := balancedFleet(t, loads)
	random := rand.New(rand.NewPCG(5, 6)) //nolint:gosec // a test needs no secure numbers
	noise := func(n int) int { return int(float64(n) * (0.8 + 0.4*random.Float64())) }
	f.loads = func(i int) plan.Load { return plan.Load{Work: noise(loads[i].Work), Objects: noise(loads[i].Objects)} }
	f.settle("noise begins")
	f.stays(3600)
}

// The plans are computed from a view that is 30 to 60 s old, including the plan that they replace.
func TestSimulation_PlannerThatIsLate(t *testing.T) {
	f := balancedFleet(t, shardLoads("log-normal", 1, scriptShards))
	random := rand.New(rand.NewPCG(7, 8)) //nolint:gosec // a test needs no secure numbers
	for range 20 {
		f.late = 30 + random.IntN(31)
		switch ids := f.ids(); random.IntN(3) {
		case 0:
			f.startMany(3)
		case 1:
			f.crash(ids[random.IntN(len(ids))])
		case 2:
			f.stop(ids[random.IntN(len(ids))])
		}
		f.run(20 + random.IntN(60))
	}
	f.late = 0
	f.balance("planner that was late")
	f.stays(600)
}

// poison simulates half an hour in which each leader of a shard crashes 3 s after it has begun to lead, and restarts
// after 5 s. After each three crashes, the shard is held, each time for twice as long, unless pause is zero.
func (f *fleet) poison(shard, pause int) (crashes int) {
	led, release, inSuccession, restarts := 0, 0, 0, map[int]string{}
	for end := f.now + 1800; f.now < end; {
		holder := f.holders[shard]
		switch r := f.replicas[holder]; {
		case r == nil:
			led = f.now
		case f.now-led >= 3:
			restarts[f.now+5] = r.node
			f.crash(holder)
			crashes++
			inSuccession++
		}
		if node, ok := restarts[f.now]; ok {
			f.start(node)
		}
		switch {
		case pause > 0 && inSuccession == 3:
			f.heldBack, release = []int{shard}, f.now+pause
			pause, inSuccession = 2*pause, 0
		case f.heldBack != nil && f.now >= release:
			f.heldBack = nil
		}
		f.run(1)
	}
	return crashes
}

// Without Held, there are 95 crashes instead of 15, and the fleet is never settled in this half hour, so that it is
// not balanced.
func TestSimulation_PoisonousShardThatIsHeldFromTimeToTime(t *testing.T) {
	const shard = 7
	f := balancedFleet(t, shardLoads("log-normal", 1, scriptShards))
	crashes := f.poison(shard, 60)
	if crashes > 15 {
		t.Errorf("%d crashes, want at most 15", crashes)
	}
	f.onlyHandovers("poisonous shard", shard)
	f.heldBack = []int{shard}
	f.settle("the shard is held")
	if a := f.plan[shard]; a.Unled != plan.UnledHeld || f.holders[shard] != "" {
		t.Errorf("the shard is held, but its plan is %v and its holder is %s", a, f.holders[shard])
	}
	f.heldBack = nil
	f.balance("poisonous shard is cured")
}

// counts returns how many shards have no leader, and how many have no standby.
func (f *fleet) counts() (unled, vacant int) {
	for i, a := range f.plan {
		unled += number(f.holders[i] == "")
		vacant += number(a.Standby == "")
	}
	return unled, vacant
}

func TestSimulation_CapacityThatIsTooSmall(t *testing.T) {
	loads := typeLoads("log-normal", 1, scriptShards)
	total := 0
	for _, load := range loads {
		total += load.Objects
	}
	f := newFleet(t, scriptShards)
	f.loads = reports(loads)
	f.capacity[""] = total * 3 / 2 / 50
	f.startMany(50)
	f.run(60) // nobody knows the loads when the replicas start
	for _, id := range f.ids() {
		f.crash(id)
	}
	f.startMany(50)
	f.settle("room for three quarters of the copies")
	unled, vacant := f.counts()
	t.Logf("room for three quarters of the copies: %d shards without a leader, %d without a standby", unled, vacant)
	if unled > 0 || vacant == 0 || vacant > scriptShards*6/10 {
		t.Errorf("%d shards have no leader, and %d no standby", unled, vacant)
	}

	f.capacity[""] = total * 9 / 10 / 50
	f.reset()
	f.settle("room for nine tenths of the leaders")
	f.onlyHandovers("room for nine tenths of the leaders")
	for _, id := range f.ids() {
		f.crash(id)
	}
	f.startMany(50)
	f.settle("restart")
	before, _ := f.counts()
	t.Logf("room for nine tenths of the leaders: %d shards without a leader", before)
	if before < scriptShards/10 || before > scriptShards*2/10 {
		t.Errorf("%d shards have no leader", before)
	}
	f.reset()
	f.startMany(1)
	f.settle("a replica is added")
	unled, _ = f.counts()
	t.Logf("a replica is added: %d shards without a leader", unled)
	if unled >= before {
		t.Errorf("%d shards have no leader, after %d", unled, before)
	}
	f.startMany(100)
	f.balance("enough replicas are added")
}
