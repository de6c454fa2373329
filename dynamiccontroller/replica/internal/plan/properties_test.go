package plan_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

// ids generates IDs of members, some of which are not alive.
func ids() *rapid.Generator[string] {
	return rapid.SampledFrom([]string{"", "a", "b", "c", "d", "e", "f", "x", "y"})
}

// assignments generates any assignments, also impossible ones.
func assignments(id *rapid.Generator[string]) *rapid.Generator[plan.Assignment] {
	return rapid.Custom(func(t *rapid.T) plan.Assignment {
		return plan.Assignment{
			Leader:   id.Draw(t, "leader"),
			Standby:  id.Draw(t, "standby"),
			Warming:  id.Draw(t, "warming"),
			Replaces: id.Draw(t, "replaces"),
			From:     id.Draw(t, "from"),
			Swap:     rapid.Bool().Draw(t, "swap"),
			Unled:    rapid.SampledFrom([]plan.Unled{"", "", plan.UnledHeld, plan.UnledCapacity}).Draw(t, "unled"),
			Load:     anyLoad(0, plan.MaxLoad).Draw(t, "load"),
		}
	})
}

// anyLoad generates loads, many of which are unknown. The extremes are from low to high.
func anyLoad(low, high int) *rapid.Generator[plan.Load] {
	number := rapid.OneOf(rapid.IntRange(0, 20), rapid.IntRange(0, 1000), rapid.IntRange(low, high))
	return rapid.OneOf(rapid.Just(plan.Load{}), rapid.Custom(func(t *rapid.T) plan.Load {
		return plan.Load{Work: number.Draw(t, "work"), Objects: number.Draw(t, "objects")}
	}))
}

// anyCapacity generates capacities, many of which are no limit.
func anyCapacity() *rapid.Generator[int] {
	return rapid.OneOf(rapid.Just(0), rapid.IntRange(-1, 5), rapid.IntRange(0, 3000))
}

// count generates numbers from low to high, which are equally likely.
func count(low, high int) *rapid.Generator[int] {
	numbers := make([]int, high-low+1)
	for i := range numbers {
		numbers[i] = low + i
	}
	return rapid.SampledFrom(numbers)
}

// inputs generates any inputs, also impossible ones, for up to so many shards.
func inputs(shards int) *rapid.Generator[plan.Input] {
	aMember := rapid.Custom(func(t *rapid.T) plan.Member {
		return plan.Member{
			ID:      rapid.SampledFrom([]string{"", "a", "b", "c", "d", "e", "f", "g"}).Draw(t, "id"),
			Node:    rapid.SampledFrom([]string{"", "n1", "n2", "n3", "n4"}).Draw(t, "node"),
			Warm:    rapid.SliceOfN(rapid.IntRange(-2, shards+2), 0, shards).Draw(t, "warm"),
			Kept:    rapid.SliceOfN(rapid.IntRange(-2, shards+2), 0, 3).Draw(t, "kept"),
			Leaving: count(0, 9).Draw(t, "leaving") == 0, New: count(0, 4).Draw(t, "new") == 0,
			Flapping: count(0, 9).Draw(t, "flapping") == 0, Capacity: anyCapacity().Draw(t, "capacity"),
		}
	})
	return rapid.Custom(func(t *rapid.T) plan.Input {
		members := count(0, 12).Draw(t, "number of members")
		holders := count(0, shards+2).Draw(t, "number of holders")
		previous := count(0, shards+2).Draw(t, "length of the previous plan")
		return plan.Input{
			Shards:   count(-1, shards).Draw(t, "shards"),
			Members:  rapid.SliceOfN(aMember, members, members).Draw(t, "members"),
			Holders:  rapid.SliceOfN(ids(), holders, holders).Draw(t, "holders"),
			Settled:  rapid.Bool().Draw(t, "settled"),
			Vacant:   rapid.SliceOfN(rapid.IntRange(-2, shards+2), 0, 3).Draw(t, "vacant"),
			Loads:    rapid.SliceOfN(anyLoad(math.MinInt, math.MaxInt), 0, shards+2).Draw(t, "loads"),
			Held:     rapid.SliceOfN(rapid.IntRange(-2, shards+2), 0, 2).Draw(t, "held"),
			Previous: rapid.SliceOfN(assignments(ids()), previous, previous).Draw(t, "previous"),
		}
	})
}

// usable returns the members that can be assigned shards, by ID.
func usable(members []plan.Member) map[string]bool {
	ids := map[string]bool{}
	for _, m := range members {
		ids[m.ID] = true
	}
	for _, m := range members {
		if m.Leaving {
			delete(ids, m.ID)
		}
	}
	steady := maps.Clone(ids)
	for _, m := range members {
		if m.Flapping {
			delete(steady, m.ID)
		}
	}
	delete(ids, "")
	delete(steady, "")
	if len(steady) > 0 {
		return steady
	}
	return ids
}

// checkPlan returns an error if a plan is not a possible result for in.
func checkPlan(in plan.Input, p plan.Plan) error {
	alive := usable(in.Members)
	if len(p) != max(in.Shards, 0) {
		return fmt.Errorf("%d shards, want %d", len(p), in.Shards)
	}
	for i, a := range p {
		holder := ""
		if i < len(in.Holders) && alive[in.Holders[i]] {
			holder = in.Holders[i]
		}
		held := slices.Contains(in.Held, i)
		if err := checkMembers(i, a, alive, held); err != nil {
			return err
		}
		switch {
		case held:
		case a.Leader != "" && a.Leader == a.Standby:
			return fmt.Errorf("shard %d: leader and standby are the same", i)
		case a.Warming != "" && (a.Warming == a.Leader || a.Warming == a.Standby):
			return fmt.Errorf("shard %d: a copy is warming", i)
		case (a.Warming == "") != (a.Replaces == ""), a.Replaces != "" && a.Replaces != a.Leader && a.Replaces != a.Standby:
			return fmt.Errorf("shard %d: warming replaces no copy", i)
		case a.Swap && (a.Standby == "" || a.Warming != "" || a.From != ""):
			return fmt.Errorf("shard %d: the leader cannot swap with the standby", i)
		case a.From != "" && a.From == a.Leader:
			return fmt.Errorf("shard %d: the leader hands over to itself", i)
		case holder != "" && holder != a.Leader && holder != a.From:
			return fmt.Errorf("shard %d: the holder neither leads nor hands over", i)
		}
	}
	if err := checkNew(in, p); err != nil {
		return err
	}
	return checkCapacity(in, p)
}

// checkMembers returns an error if the assignment names members that are not alive, or none without a reason.
func checkMembers(i int, a plan.Assignment, alive map[string]bool, held bool) error {
	for _, id := range []string{a.Leader, a.Standby, a.Warming, a.Replaces, a.From} {
		if id != "" && !alive[id] {
			return fmt.Errorf("shard %d: %q is not alive", i, id)
		}
	}
	switch {
	case held != (a.Unled == plan.UnledHeld):
		return fmt.Errorf("shard %d: held: %t, but got %v", i, held, a)
	case !held && (a.Leader == "" && len(alive) > 0) != (a.Unled != ""):
		return fmt.Errorf("shard %d has leader %q and is unled because of %q", i, a.Leader, a.Unled)
	case a.Leader == "" && a != plan.Assignment{Unled: a.Unled, Load: a.Load}:
		return fmt.Errorf("shard %d has copies, but no leader", i)
	}
	return nil
}

// checkNew returns an error if a move to a new member has begun.
func checkNew(in plan.Input, p plan.Plan) error {
	for _, m := range in.Members {
		for i, a := range p {
			if m.New && m.ID != "" && a.Warming == m.ID && takes(in, i, a, m.ID) {
				return fmt.Errorf("shard %d moves to %s, which is new", i, m.ID)
			}
		}
	}
	return nil
}

// moves returns the moves that each member takes part in.
func moves(p plan.Plan) map[string]int {
	n := map[string]int{}
	for _, a := range p {
		if a.Warming != "" {
			n[a.Warming]++
			n[a.Replaces]++
		}
		if a.From != "" {
			n[a.From]++
			n[a.Leader]++
		}
	}
	return n
}

func TestNext_AcceptsAnyInput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(10).Draw(t, "in")
		p := plan.Next(in)
		if err := checkPlan(in, p); err != nil {
			t.Fatalf("%s: %v", format(p), err)
		}
		handovers := map[string]int{} // Next does not end handovers, even if there are too many
		for _, a := range p {
			if a.From != "" {
				handovers[a.From]++
				handovers[a.Leader]++
			}
		}
		for id, n := range moves(p) {
			if n > max(2, handovers[id]) {
				t.Fatalf("%s: %s takes part in %d moves", format(p), id, n)
			}
		}
	})
}

func TestNext_LimitsTheNumberOfShards(t *testing.T) {
	if n := len(plan.Next(plan.Input{Shards: 1 << 62})); n != plan.MaxShards {
		t.Errorf("got %d shards", n)
	}
}

func TestNext_DoesNotDependOnTheOrderOfMembers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(10).Draw(t, "in")
		want := plan.Next(in)
		in.Members = rapid.Permutation(in.Members).Draw(t, "permutation")
		if got := plan.Next(in); !slices.Equal(got, want) {
			t.Fatalf("got %s, want %s", format(got), format(want))
		}
	})
}

func TestNext_DoesNotChangeItsInput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := inputs(10).Draw(t, "in")
		before := fmt.Sprint(in)
		plan.Next(in)
		if after := fmt.Sprint(in); after != before {
			t.Fatalf("got %s, want %s", after, before)
		}
	})
}

// follow returns the input after the members have done what the plan asks for: they have synced their shards, and From
// has handed its Lease over.
func follow(in plan.Input, p plan.Plan) plan.Input {
	next := in
	next.Previous = p
	next.Holders = make([]string, len(p))
	next.Members = slices.Clone(in.Members)
	alive := usable(in.Members)
	for m := range next.Members {
		next.Members[m].Warm = nil
	}
	for i, a := range p {
		holder := ""
		if i < len(in.Holders) && alive[in.Holders[i]] {
			holder = in.Holders[i]
		}
		if holder == "" || holder == a.From || a.Unled != "" {
			holder = a.Leader
		}
		next.Holders[i] = holder
		for m, member := range next.Members {
			switch member.ID {
			case a.Leader, a.Standby, a.Warming, holder:
				next.Members[m].Warm = append(next.Members[m].Warm, i)
			}
		}
	}
	return next
}

// settle applies Next until the plan does not change any more, and returns the plan and the number of steps.
func settle(t interface{ Fatalf(string, ...any) }, in plan.Input) (plan.Plan, int) {
	last := plan.Plan(nil)
	limit := 20 + 10*max(in.Shards, 0)
	for step := range limit {
		p := plan.Next(in)
		if err := checkPlan(in, p); err != nil {
			t.Fatalf("%s: %v", format(p), err)
		}
		begun, before := moves(p), moves(in.Previous)
		for id, n := range begun {
			if n > max(2, before[id]) {
				t.Fatalf("%s: %s takes part in %d moves", format(p), id, n)
			}
		}
		if step > 2 && slices.Equal(p, last) && len(begun) == 0 {
			return p, step
		}
		if step > 2 {
			if err := checkProgress(in, p); err != nil {
				t.Fatalf("from %s to %s: %v", format(in.Previous), format(p), err)
			}
		}
		in, last = follow(in, p), p
	}
	t.Fatalf("no fixed point after %d steps: %s", limit, format(last))
	return nil, 0
}

// checkProgress returns an error if a plan changes copies without decreasing the measure.
func checkProgress(in plan.Input, p plan.Plan) error {
	changed := false
	for i, a := range p {
		before := in.Previous[i]
		changed = changed || a.Warming != "" && a.Warming != before.Warming || a.From != "" && before.Warming != a.Leader &&
			before.Leader != a.Leader && !before.Swap || a.Swap && !before.Swap
	}
	next := in
	next.Previous = p
	before, after := plan.Measure(in), plan.Measure(next)
	if order := slices.Compare(after, before); order > 0 || order == 0 && changed {
		return fmt.Errorf("the measure was %v and is %v", before, after)
	}
	return nil
}

// loads returns the numbers of shards that each member leads, and of its copies.
func loads(p plan.Plan, members []plan.Member) (led, copies map[string]int) {
	led, copies = map[string]int{}, map[string]int{}
	for id := range usable(members) {
		led[id], copies[id] = 0, 0
	}
	for _, a := range p {
		led[a.Leader]++
		copies[a.Leader]++
		copies[a.Standby]++
	}
	delete(copies, "")
	return led, copies
}

// greatest returns the greatest value.
func greatest(loads map[string]int) int {
	n := 0
	for _, load := range loads {
		n = max(n, load)
	}
	return n
}

// limit returns the greatest load of a balanced plan: 1.1 times the mean, or the mean rounded up.
func limit(total, members int) int {
	return max(11*total/(10*members), (total+members-1)/members)
}

// lopsided generates the input after a while in which some members kept all shards.
func lopsided() *rapid.Generator[plan.Input] {
	return rapid.Custom(func(t *rapid.T) plan.Input {
		in := plan.Input{Shards: count(0, 60).Draw(t, "shards"), Settled: true}
		nodes := count(1, 12).Draw(t, "nodes")
		for m := range count(1, 12).Draw(t, "members") {
			node := fmt.Sprint("n", count(1, nodes).Draw(t, "node"))
			in.Members = append(in.Members, plan.Member{ID: string(rune('a' + m)), Node: node})
		}
		id := count(0, count(0, len(in.Members)-1).Draw(t, "last member with copies"))
		for range in.Shards {
			in.Previous = append(in.Previous, plan.Assignment{
				Leader:  in.Members[id.Draw(t, "leader")].ID,
				Standby: in.Members[id.Draw(t, "standby")].ID,
			})
		}
		return follow(in, in.Previous)
	})
}

// equalLoads returns in without loads, capacities and held shards.
func equalLoads(in plan.Input) plan.Input {
	in.Loads, in.Held = nil, nil
	for m := range in.Members {
		in.Members[m].Capacity = 0
	}
	for i := range in.Previous {
		in.Previous[i].Load = plan.Load{}
	}
	return in
}

func TestNext_ReachesAFixedPointWithAnyLoadsAndCapacities(t *testing.T) {
	steps := 0
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.OneOf(lopsided(), inputs(40)).Draw(t, "in")
		loads, capacities := anyLoad(0, plan.MaxLoad), anyCapacity()
		if rapid.Bool().Draw(t, "similar loads") {
			loads, capacities = anyLoad(0, 50), rapid.IntRange(0, 500)
		}
		in.Loads = rapid.SliceOfN(loads, 0, 60).Draw(t, "loads")
		in.Settled = true
		for i := range in.Members {
			in.Members[i].Kept = nil // its moves would not end
			if rapid.Bool().Draw(t, "limited") {
				in.Members[i].Capacity = capacities.Draw(t, "capacity")
			}
		}
		_, n := settle(t, in)
		steps = max(steps, n)
	})
	t.Logf("at most %d steps", steps)
}

func TestNext_ReachesAFixedPointThatIsBalanced(t *testing.T) {
	steps := 0
	rapid.Check(t, func(t *rapid.T) {
		in := equalLoads(rapid.OneOf(lopsided(), inputs(40)).Draw(t, "in"))
		in.Settled = true
		for i := range in.Members {
			in.Members[i].Kept = nil // its moves would not end
		}
		p, n := settle(t, in)
		steps = max(steps, n)
		alive := len(usable(in.Members))
		if alive < 2 || slices.ContainsFunc(in.Members, func(m plan.Member) bool { return m.New }) {
			return // a fixed point, but not a balanced one
		}
		led, copies := loads(p, in.Members)
		if got, want := greatest(copies), limit(2*len(p), alive); got > want {
			t.Fatalf("%s: %d copies, want at most %d", format(p), got, want)
		}
		if got, want := greatest(led), limit(len(p), alive); got > want {
			t.Fatalf("%s: %d shards led, want at most %d", format(p), got, want)
		}
	})
	t.Logf("at most %d steps", steps)
}

func TestNext_CopiesAreOnDifferentNodesIfNodesHaveAsManyMembers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := lopsided().Draw(t, "in")
		nodes := count(2, 6).Draw(t, "nodes of the same size")
		in.Members = in.Members[:len(in.Members)/nodes*nodes]
		for m := range in.Members {
			in.Members[m].Node = fmt.Sprint("n", m%nodes)
		}
		p, _ := settle(t, in)
		for i, a := range p {
			if together(in.Members, a) {
				t.Fatalf("shard %d of %s has both copies on one node", i, format(p))
			}
		}
	})
}

// together reports whether both copies of a shard are on one node.
func together(members []plan.Member, a plan.Assignment) bool {
	node := func(id string) string {
		for _, m := range members {
			if m.ID == id {
				return m.Node
			}
		}
		return ""
	}
	return node(a.Leader) != "" && node(a.Leader) == node(a.Standby)
}

// Members come and go at any time, and do what the plan says only sometimes.
func TestNext_NeverBeginsMoreThanTwoMovesOfAMember(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := plan.Input{Shards: count(1, 20).Draw(t, "shards")}
		for step := range 30 {
			switch count(0, 3).Draw(t, "event") {
			case 0:
				id := fmt.Sprint("m", step)
				in.Members = append(slices.Clone(in.Members), plan.Member{ID: id, Node: id[1:2]})
			case 1:
				if len(in.Members) > 0 {
					gone := count(0, len(in.Members)-1).Draw(t, "gone")
					in.Members = slices.Delete(slices.Clone(in.Members), gone, gone+1)
				}
			case 2:
				in = follow(in, in.Previous)
			}
			in.Settled = rapid.Bool().Draw(t, "settled")
			p := plan.Next(in)
			if err := checkPlan(in, p); err != nil {
				t.Fatalf("%s: %v", format(p), err)
			}
			for id, n := range moves(p) {
				if n > 2 {
					t.Fatalf("%s: %s takes part in %d moves", format(p), id, n)
				}
			}
			in.Previous = p
		}
	})
}

// optimum returns the smallest possible maximum of the numbers of led shards and of copies. It tries all plans.
func optimum(shards, members int) (led, copies int) {
	led, copies = shards, shards
	ledBy, copiesOf := make([]int, members), make([]int, members)
	var try func(shard int)
	try = func(shard int) {
		if shard == shards {
			led, copies = min(led, slices.Max(ledBy)), min(copies, slices.Max(copiesOf))
			return
		}
		for leader := range members {
			for standby := range members {
				if leader == standby {
					continue
				}
				ledBy[leader]++
				copiesOf[leader]++
				copiesOf[standby]++
				try(shard + 1)
				ledBy[leader]--
				copiesOf[leader]--
				copiesOf[standby]--
			}
		}
	}
	try(0)
	return led, copies
}

func TestNext_FixedPointIsOptimalInSmallFleets(t *testing.T) {
	for members := 2; members <= 4; members++ {
		for shards := 1; shards <= 5; shards++ {
			wantLed, wantCopies := optimum(shards, members)
			random := rand.New(rand.NewPCG(uint64(members), uint64(shards))) //nolint:gosec // a test needs no secure numbers
			for range 50 {
				in := plan.Input{Shards: shards, Settled: true}
				for m := range members {
					in.Members = append(in.Members, plan.Member{ID: string(rune('a' + m))})
				}
				for range shards { // any copies to begin with
					leader := random.IntN(members)
					standby := (leader + 1 + random.IntN(members-1)) % members
					in.Previous = append(in.Previous, plan.Assignment{
						Leader: in.Members[leader].ID, Standby: in.Members[standby].ID,
					})
				}
				p, _ := settle(t, in)
				led, copies := loads(p, in.Members)
				if greatest(led) != wantLed || greatest(copies) != wantCopies {
					t.Fatalf("%d members, %d shards: from %s to %s; want at most %d led and %d copies",
						members, shards, format(in.Previous), format(p), wantLed, wantCopies)
				}
			}
		}
	}
}
