package plan_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
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

	loads    func(i int) plan.Load // what the leader of a shard reports; nil if nothing
	capacity map[string]int        // by replica; the default is that of ""
	heldBack []int                 // plan.Input.Held
	late     int                   // age of the planner's view in seconds
	views    []plan.Input          // the latest views of the planner, one for each second

	lists   int   // shards that were listed
	unled   []int // by shard: seconds without a working leader
	changes []int // by shard: how often it got another holder
	begun   []int // by shard: moves that have begun
	lost    []int // by shard: crashes of its leader
}

func newFleet(t testing.TB, count int) *fleet {
	f := &fleet{
		t: t, replicas: map[string]*simReplica{}, holders: make([]string, count), expires: make([]int, count),
		capacity: map[string]int{},
	}
	f.reset()
	return f
}

// reset begins to count lists, moves and seconds without a leader.
func (f *fleet) reset() {
	n := len(f.holders)
	f.lists, f.unled, f.changes, f.begun, f.lost = 0, make([]int, n), make([]int, n), make([]int, n), make([]int, n)
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
	f.remove(id)
	for i, holder := range f.holders {
		if holder == id {
			f.expires[i] = f.now + leaseDuration
			f.lost[i]++
		}
	}
}

func (f *fleet) remove(id string) {
	delete(f.replicas, id)
	f.changed = f.now
}

// stop shuts replicas down. They release their Leases.
func (f *fleet) stop(ids ...string) {
	for _, id := range ids {
		f.replicas[id].leaving = true
	}
	f.changed = f.now
	f.run(planEvery)
	for _, id := range ids {
		f.remove(id)
	}
	for i, holder := range f.holders {
		if slices.Contains(ids, holder) {
			f.holders[i] = ""
		}
	}
}

// ids returns the replicas in the order of their starts.
func (f *fleet) ids() []string { return slices.Sorted(maps.Keys(f.replicas)) }

// input returns what a planner observes that is not late.
func (f *fleet) input() plan.Input {
	in := plan.Input{
		Shards: len(f.holders), Holders: slices.Clone(f.holders), Previous: f.plan,
		Settled: f.now-f.changed >= settleTime, Held: f.heldBack,
	}
	if f.loads != nil {
		in.Loads = make([]plan.Load, len(f.holders))
		for i, holder := range f.holders {
			if r := f.replicas[holder]; r != nil && r.warm(i, f.now) {
				in.Loads[i] = f.loads(i)
			}
		}
	}
	for id, r := range f.replicas {
		m := plan.Member{ID: id, Node: r.node, Leaving: r.leaving, Capacity: f.capacity[""]}
		if capacity, ok := f.capacity[id]; ok {
			m.Capacity = capacity
		}
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
		f.views = append(f.views, f.input())
		f.views = f.views[max(len(f.views)-1-f.late, 0):]
		if f.now%planEvery == 0 {
			f.follow(f.views[0])
		}
		f.lead()
		f.now++
	}
}

// follow computes a plan, and begins and ends watches as it says.
func (f *fleet) follow(in plan.Input) {
	p := plan.Next(in)
	if err := checkPlan(in, p); err != nil {
		f.t.Fatalf("%s: %v", format(p), err)
	}
	for id, n := range moves(p) {
		if n > 2 {
			f.t.Fatalf("%s: %s takes part in %d moves", format(p), id, n)
		}
	}
	for i, a := range p {
		if a.Warming != "" && a.From != "" {
			f.t.Fatalf("shard %d takes part in two moves: %v", i, a)
		}
		if i < len(f.plan) && begins(f.plan[i], a) {
			f.begun[i]++
		}
	}
	f.plan = p
	f.keep()
}

// begins reports whether a move of a shard has begun between two plans.
func begins(before, after plan.Assignment) bool {
	warming := after.Warming != "" && after.Warming != before.Warming
	handover := after.From != "" && after.From != before.From && after.Leader != before.Warming
	return warming || handover
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
		case alive && (holder == a.From || a.Unled != ""):
			f.holders[i] = ""
		case holder != "" && !alive && f.now >= f.expires[i]:
			f.holders[i] = ""
		case holder == "":
			f.acquire(i)
		}
		if _, alive := f.replicas[f.holders[i]]; !alive {
			f.unled[i]++
		}
	}
}

// acquire gives a Lease that is free to one of the shard's copies.
func (f *fleet) acquire(i int) {
	a := f.plan[i]
	for _, id := range []string{a.Leader, a.Standby} {
		if r := f.replicas[id]; r != nil && !r.leaving && id != a.From && r.warm(i, f.now) {
			f.holders[i] = id
			f.changes[i]++
			return
		}
	}
}

// balance runs until nothing moves any more, requires a balanced plan, and logs the cost of what has happened since the
// last call.
func (f *fleet) balance(event string) (lists int) {
	f.t.Helper()
	seconds := f.settle(event)
	together := 0
	for i, a := range f.plan {
		if f.holders[i] != a.Leader || a.Leader == "" || a.Standby == "" {
			f.t.Errorf("%s: shard %d is held by %q, planned %v", event, i, f.holders[i], a)
		}
		if f.replicas[a.Leader].node == f.replicas[a.Standby].node {
			together++
		}
	}
	q := f.quality()
	f.t.Logf("%-28s %3d s, %4d lists, %3d moves, %5d s unled; led %.3f, copies %.3f of the best; %d on one node",
		event, seconds, f.lists, sumOf(f.begun), sumOf(f.unled), q.led, q.copies, together)
	if q.led > 1.05 || q.copies > 1.05 {
		f.t.Errorf("%s: the most work is %.3f, and the most copies are %.3f of the best", event, q.led, q.copies)
	}
	if f.loads == nil && q.fewest < 0.9 && q.fewest < 1-1/q.mean {
		f.t.Errorf("%s: a member has %.2f of the mean of copies", event, q.fewest)
	}
	if together > 0 {
		f.t.Errorf("%s: %d shards have both copies on one node", event, together)
	}
	lists = f.lists
	f.reset()
	return lists
}

// settle runs until nothing moves any more, and returns how long it took.
func (f *fleet) settle(event string) (seconds int) {
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
	return f.now - begin
}

func sumOf(numbers []int) (sum int) {
	for _, n := range numbers {
		sum += n
	}
	return sum
}

// atMost requires that at most twice the necessary number of shards were listed.
func (f *fleet) atMost(event string, lists int, necessary float64) {
	f.t.Helper()
	if float64(lists) > 2*necessary {
		f.t.Errorf("%s: %d lists, necessary are %.0f", event, lists, necessary)
	}
}

// onlyHandovers requires that shards have not been led only while their Leases changed hands: a second for each other
// holder, and leaseDuration for each crash.
func (f *fleet) onlyHandovers(event string, except ...int) {
	f.t.Helper()
	for i, seconds := range f.unled {
		if limit := f.changes[i] + f.lost[i]*leaseDuration; seconds > limit && !slices.Contains(except, i) {
			f.t.Errorf("%s: shard %d was not led for %d s, want at most %d", event, i, seconds, limit)
		}
	}
}
