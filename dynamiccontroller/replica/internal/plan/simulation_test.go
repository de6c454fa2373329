package plan_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
	"github.com/dynamic-controller/engine/internal/shards"
)

// The times of the simulation, in steps of a second.
const (
	planEvery     = 2
	syncTime      = 5
	leaseDuration = 15
	settleTime    = 30
	downtime      = 20
)

// simReplica is a process of the simulated fleet.
type simReplica struct {
	node    string
	leaving bool
	kept    map[int]int // by shard: when it began to list
}

// fleet simulates replicas that follow the plan.
type fleet struct {
	t        testing.TB
	now      int
	changed  int // when a replica came or went
	started  int // replicas so far
	replicas map[string]*simReplica
	holders  []string
	expires  []int // by shard: when the Lease of a replica that has crashed expires
	plan     plan.Plan

	lists int // shards that were listed
	unled int // seconds of shards without a working leader
}

func newFleet(t testing.TB, count int) *fleet {
	return &fleet{t: t, replicas: map[string]*simReplica{}, holders: make([]string, count), expires: make([]int, count)}
}

// start adds a replica.
func (f *fleet) start(node string) string {
	id := fmt.Sprintf("replica-%03d", f.started)
	f.started++
	f.replicas[id] = &simReplica{node: node, kept: map[int]int{}}
	f.changed = f.now
	return id
}

// startMany adds replicas on 30 nodes.
func (f *fleet) startMany(n int) {
	for range n {
		f.start(fmt.Sprint("node-", f.started%30))
	}
}

// crash removes a replica, whose Leases expire later.
func (f *fleet) crash(id string) {
	delete(f.replicas, id)
	f.changed = f.now
	for i, holder := range f.holders {
		if holder == id {
			f.expires[i] = f.now + leaseDuration
		}
	}
}

// stop shuts a replica down. It releases its Leases.
func (f *fleet) stop(ids ...string) {
	for _, id := range ids {
		f.replicas[id].leaving = true
	}
	f.changed = f.now
	f.run(planEvery)
	for _, id := range ids {
		f.crash(id)
	}
	for i, holder := range f.holders {
		if slices.Contains(ids, holder) {
			f.holders[i] = ""
		}
	}
}

// ids returns the replicas in the order of their starts.
func (f *fleet) ids() []string { return slices.Sorted(maps.Keys(f.replicas)) }

// input returns what the planner observes.
func (f *fleet) input() plan.Input {
	in := plan.Input{
		Shards: len(f.holders), Holders: f.holders, Previous: f.plan, Settled: f.now-f.changed >= settleTime,
	}
	for id, r := range f.replicas {
		m := plan.Member{ID: id, Node: r.node, Leaving: r.leaving}
		for i := range r.kept {
			if r.warm(i, f.now) {
				m.Warm = append(m.Warm, i)
			}
		}
		in.Members = append(in.Members, m)
	}
	return in
}

func (r *simReplica) warm(i, now int) bool {
	since, ok := r.kept[i]
	return ok && now-since >= syncTime
}

// run simulates some seconds.
func (f *fleet) run(seconds int) {
	for range seconds {
		if f.now%planEvery == 0 {
			in := f.input()
			f.plan = plan.Next(in)
			if err := checkPlan(in, f.plan); err != nil {
				f.t.Fatalf("%s: %v", format(f.plan), err)
			}
			for id, n := range moves(f.plan) {
				if n > 2 {
					f.t.Fatalf("%s: %s takes part in %d moves", format(f.plan), id, n)
				}
			}
			f.keep()
		}
		f.lead()
		f.now++
	}
}

// keep begins and ends watches as the plan says.
func (f *fleet) keep() {
	wanted := map[string]map[int]bool{}
	for i, a := range f.plan {
		for _, id := range []string{a.Leader, a.Standby, a.Warming, f.holders[i]} {
			if wanted[id] == nil {
				wanted[id] = map[int]bool{}
			}
			wanted[id][i] = true
		}
	}
	for id, r := range f.replicas {
		maps.DeleteFunc(r.kept, func(i, _ int) bool { return !wanted[id][i] })
		for i := range wanted[id] {
			if _, ok := r.kept[i]; !ok {
				r.kept[i] = f.now
				f.lists++
			}
		}
	}
}

// lead releases and acquires Leases.
func (f *fleet) lead() {
	for i, a := range f.plan {
		holder := f.holders[i]
		_, alive := f.replicas[holder]
		switch {
		case alive && holder == a.From:
			f.holders[i] = ""
		case holder != "" && !alive && f.now >= f.expires[i]:
			f.holders[i] = ""
		case holder == "":
			for _, id := range []string{a.Leader, a.Standby} {
				if r := f.replicas[id]; f.holders[i] == "" && r != nil && !r.leaving && id != a.From && r.warm(i, f.now) {
					f.holders[i] = id
				}
			}
		}
		if _, alive := f.replicas[f.holders[i]]; !alive {
			f.unled++
		}
	}
}

// balance runs until nothing moves any more, requires a balanced plan, and logs the cost of what has happened since the
// last call.
func (f *fleet) balance(event string) (lists int) {
	f.t.Helper()
	begin := f.now
	f.run(settleTime + planEvery)
	for quiet := 0; quiet < 3*syncTime; quiet++ {
		if f.now-begin > 1200 {
			f.t.Fatalf("%s: still moving after %d s: %s", event, f.now-begin, format(f.plan))
		}
		before := f.plan
		f.run(planEvery)
		if !slices.Equal(before, f.plan) || len(moves(f.plan)) > 0 {
			quiet = 0
		}
	}
	members := f.input().Members
	led, copies := loads(f.plan, members)
	together := 0
	for i, a := range f.plan {
		if f.holders[i] != a.Leader || a.Leader == "" || a.Standby == "" {
			f.t.Errorf("%s: shard %d is held by %q, planned %v", event, i, f.holders[i], a)
		}
		if f.replicas[a.Leader].node == f.replicas[a.Standby].node {
			together++
		}
	}
	f.t.Logf("%-28s %3d s, %4d lists, %5d shard-seconds unled; led %.2f, copies %.2f of the mean; %d shards on one node",
		event, f.now-begin, f.lists, f.unled, overMean(led), overMean(copies), together)
	for what, loads := range map[string]map[string]int{"led": led, "copies": copies} {
		mean := float64(sum(loads)) / float64(len(loads))
		if most := float64(greatest(loads)); most > 1.1*mean && most > mean+1 {
			f.t.Errorf("%s: %s: the most is %v, the mean %v", event, what, most, mean)
		}
	}
	mean := float64(sum(copies)) / float64(len(copies))
	if fewest := float64(slices.Min(slices.Collect(maps.Values(copies)))); fewest < 0.9*mean && fewest < mean-1 {
		f.t.Errorf("%s: copies: the fewest is %v, the mean %v", event, fewest, mean)
	}
	if together > 0 {
		f.t.Errorf("%s: %d shards have both copies on one node", event, together)
	}
	lists, f.lists, f.unled = f.lists, 0, 0
	return lists
}

func sum(loads map[string]int) int {
	n := 0
	for _, load := range loads {
		n += load
	}
	return n
}

// overMean returns the greatest load divided by the mean.
func overMean(loads map[string]int) float64 {
	return float64(greatest(loads)) * float64(len(loads)) / float64(sum(loads))
}

// atMost requires that at most twice the necessary number of shards were listed.
func (f *fleet) atMost(event string, lists int, necessary float64) {
	f.t.Helper()
	if float64(lists) > 2*necessary {
		f.t.Errorf("%s: %d lists, necessary are %.0f", event, lists, necessary)
	}
}

func TestSimulation(t *testing.T) {
	counts := []int{64, 256, 1024}
	if testing.Short() {
		counts = counts[:1]
	}
	for _, count := range counts {
		t.Run(fmt.Sprint(count, " shards"), func(t *testing.T) {
			total := float64(2 * count)
			f := newFleet(t, count)
			f.startMany(50)
			f.atMost("cold start", f.balance("cold start of 50"), total)
			logDistributions(t, f.plan)

			f.startMany(5)
			f.atMost("50 to 55", f.balance("50 to 55"), total*5/55)

			f.stop(f.ids()[:15]...)
			f.atMost("55 to 40", f.balance("55 to 40"), total*15/55)

			for _, id := range f.ids() { // the next replica stops 15 s after the last one has started
				node := f.replicas[id].node
				f.stop(id)
				f.run(downtime)
				f.start(node)
				f.run(settleTime / 2)
			}
			lists := f.balance("rolling restart of 40")
			if float64(lists) > 1.2*total { // each process lists its own shards
				t.Errorf("rolling restart: %d lists, necessary are %.0f", lists, total)
			}

			crashed := 0.0
			for _, id := range f.ids() {
				var node int
				if _, err := fmt.Sscanf(f.replicas[id].node, "node-%d", &node); err != nil {
					t.Fatal(err)
				}
				if node%3 == 0 {
					f.crash(id)
					crashed++
				}
			}
			f.atMost("zone lost", f.balance("a third lost"), total*crashed/40)
		})
	}
}

// logDistributions logs the heaviest replica over the mean for 10,000 types with different weights. The planner does
// not know the weights.
func logDistributions(t *testing.T, p plan.Plan) {
	const types = 10_000
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test needs no secure numbers
	for _, d := range []struct {
		name   string
		weight func(i int) float64
	}{
		{"equal", func(int) float64 { return 1 }},
		{"log-normal", func(int) float64 { return math.Exp(random.NormFloat64()) }},
		{"Zipf", func(i int) float64 { return 1 / float64(i+1) }},
	} {
		led, copies, total := map[string]float64{}, map[string]float64{}, 0.0
		for i := range types {
			gr := schema.GroupResource{Group: "example.com", Resource: fmt.Sprint("type", i)}
			a, weight := p[shards.Of(gr, len(p))], d.weight(i)
			led[a.Leader] += weight
			copies[a.Leader] += weight
			copies[a.Standby] += weight
			total += weight
		}
		mean := total / float64(len(copies))
		t.Logf("%-28s led %.2f, copies %.2f of the mean", "10,000 types, "+d.name,
			slices.Max(slices.Collect(maps.Values(led)))/mean, slices.Max(slices.Collect(maps.Values(copies)))/(2*mean))
	}
}

// BenchmarkNext measures a plan in which nothing changes, and one for which 5 of 50 members have just been replaced.
func BenchmarkNext(b *testing.B) {
	f := newFleet(b, 256)
	f.startMany(50)
	f.run(600)
	still := f.input()
	f.startMany(5)
	for _, id := range f.ids()[:5] {
		f.crash(id)
	}
	f.now += settleTime
	changed := f.input()
	for name, in := range map[string]plan.Input{"still": still, "changed": changed} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				plan.Next(in)
			}
		})
	}
}
