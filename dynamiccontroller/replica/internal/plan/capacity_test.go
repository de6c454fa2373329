package plan_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

// objectsOf returns the objects that each copy of the shards has. Unknown loads count as the mean of the known ones.
func objectsOf(p plan.Plan) []int {
	sum, known := 0, 0
	for _, a := range p {
		if a.Load != (plan.Load{}) {
			sum += a.Load.Objects
			known++
		}
	}
	objects := make([]int, len(p))
	for i, a := range p {
		switch {
		case a.Load != plan.Load{}:
			objects[i] = a.Load.Objects
		case known == 0:
			objects[i] = 1
		default:
			objects[i] = sum / known
		}
	}
	return objects
}

// copiesIn returns the members that have a copy of a shard, or get or lose one.
func copiesIn(a plan.Assignment) (ids []string) {
	for _, id := range []string{a.Leader, a.Standby, a.Warming, a.From} {
		if id != "" && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// checkCapacity returns an error if a member gets more than its capacity, or if a copy is missing although a member has
// room.
func checkCapacity(in plan.Input, p plan.Plan) error {
	capacity := map[string]int{}
	for _, m := range in.Members {
		if other, ok := capacity[m.ID]; m.Capacity > 0 && (!ok || m.Capacity < other) {
			capacity[m.ID] = m.Capacity
		}
	}
	objects, present, droppable := objectsOf(p), map[string]int{}, map[string]int{}
	for i, a := range p {
		for _, id := range copiesIn(a) {
			present[id] += objects[i]
		}
		if a.Warming == "" && a.From == "" && a.Standby != "" {
			droppable[a.Standby] += objects[i]
		}
	}
	alive := usable(in.Members)
	for i, a := range p {
		for id := range alive {
			limit, limited := capacity[id]
			room := !limited || objects[i] == 0 || objects[i] <= limit-present[id]
			fits := room || objects[i] <= limit-present[id]+droppable[id]
			switch {
			case limited && present[id] > limit && objects[i] > 0 && takes(in, i, a, id):
				return fmt.Errorf("shard %d: %s has %d objects, and its capacity is %d", i, id, present[id], limit)
			case a.Unled == plan.UnledCapacity && fits:
				return fmt.Errorf("shard %d is unled, but %s has room", i, id)
			case in.Settled && a.Leader != "" && a.Standby == "" && id != a.Leader && room:
				return fmt.Errorf("shard %d has no standby, but %s has room", i, id)
			}
		}
	}
	return nil
}

// takes reports whether a member gets a copy of shard i that it did not have.
func takes(in plan.Input, i int, a plan.Assignment, id string) bool {
	had := i < len(in.Previous) && slices.Contains(copiesIn(in.Previous[i]), id)
	held := i < len(in.Holders) && in.Holders[i] == id
	return !had && !held && slices.Contains(copiesIn(a), id)
}

func TestNext_Capacity(t *testing.T) {
	a, b, c := member("a", 0, 1), member("b", 0, 1), member("c")
	runCases(t, map[string]testCase{
		"a standby is not given to a member without room": {
			members: members{a, limited(9, b)}, holders: []string{"a"}, settled: true, loads: "1/10",
			previous: []string{"a -"}, want: []string{"a - 1/10"},
		},
		"it is given to a member with room": {
			members: members{a, limited(10, b)}, holders: []string{"a"}, settled: true, loads: "1/10",
			previous: []string{"a -"}, want: []string{"a b 1/10"},
		},
		"a shard without objects needs no room": {
			members: members{a, limited(1, member("b", 1))}, holders: []string{"a", "b"}, settled: true, loads: "1/0 1/10",
			previous: []string{"a -", "b a"}, want: []string{"a b 1/0", "b a 1/10"},
		},
		"a shard for which no member has room is not led": {
			members: members{limited(9, c)}, loads: "1/10",
			previous: []string{"x y 1/10"}, want: []string{"- - !capacity 1/10"},
		},
		"it is led when a member has room": {
			members:  members{limited(9, a), limited(10, c)},
			previous: []string{"- - !capacity 1/10"}, want: []string{"c - 1/10"},
		},
		"a standby is dropped for a shard without a leader": {
			members: members{limited(10, member("a", 1)), limited(10, member("b", 1))}, holders: []string{"", "a"},
			previous: []string{"x y 1/8", "a b 1/10"}, want: []string{"b - 1/8", "a - 1/10"},
		},
		"no standby is dropped if that is not enough": {
			members: members{limited(10, member("a", 1)), limited(10, member("b", 1))}, holders: []string{"", "a"},
			previous: []string{"x y 1/11", "a b 1/10"}, want: []string{"- - !capacity 1/11", "a b 1/10"},
		},
		"the smallest shards are led if there is not enough room for all": {
			members:  members{limited(10, c)},
			previous: []string{"- - 1/8", "- - 1/5", "- - 1/5"}, want: []string{"- - !capacity 1/8", "c - 1/5", "c - 1/5"},
		},
		"the largest shard gets a leader first if there is enough room": {
			members:  members{limited(8, member("a")), limited(8, member("b"))},
			previous: []string{"- - 1/4", "- - 1/4", "- - 1/8"}, want: []string{"b - 1/4", "b - 1/4", "a - 1/8"},
		},
		"a shard that has grown remains led": {
			members: members{limited(9, a)}, holders: []string{"a"}, settled: true, loads: "1/1000",
			previous: []string{"a - 1/10"}, want: []string{"a - 1/1000"},
		},
		"it moves when another member has room": {
			members: members{limited(9, a), b, c}, holders: []string{"a"}, settled: true,
			previous: []string{"a b 1/1000"}, want: []string{"a b c>a 1/1000"},
		},
		"a member that is too full loses standbys first": {
			members: members{limited(12, a), b, c}, holders: []string{"a", "b"}, settled: true,
			previous: []string{"a b 1/6", "b a 1/10"}, want: []string{"a b 1/6", "b a c>a 1/10"},
		},
		"it does not lose them before the fleet has settled": {
			members: members{limited(15, a), b}, holders: []string{"a", "b"},
			previous: []string{"a b 1/10", "b a 1/10"}, want: []string{"a b 1/10", "b a 1/10"},
		},
		"it drops them if no other member has room": {
			members: members{limited(15, a), b, limited(5, c)}, holders: []string{"a", "b"}, settled: true,
			previous: []string{"a b 1/10", "b a 1/10"}, want: []string{"a b 1/10", "b - 1/10"},
		},
		"it does not drop those without objects": {
			members: members{limited(9, member("a", 0)), b, {ID: "c", New: true}}, holders: []string{"a", "b"}, settled: true,
			previous: []string{"a b 1/10", "b a 1/0"}, want: []string{"a b 1/10", "b a 1/0"},
		},
		"the smallest of several capacities of a member counts": {
			members:  members{limited(9, c), limited(20, c), c},
			previous: []string{"x y 1/10"}, want: []string{"- - !capacity 1/10"},
		},
		"a member has room for another copy only when it has handed its copy over": {
			members: members{limited(10, a), limited(10, b), member("c", 0, 1)}, holders: []string{"a", "c"}, settled: true,
			previous: []string{"c b <a 1/10", "c - 1/10"}, want: []string{"c b <a 1/10", "c - 1/10"},
		},
		"no copies move to a member without room": {
			members: members{a, b, limited(9, c)}, holders: []string{"a", "b"}, settled: true,
			previous: []string{"a b 1/10", "b a 1/10"}, want: []string{"a b 1/10", "b a 1/10"},
		},
		"copies that a member loses take up room until they have moved": {
			members: members{a, b, limited(10, member("c", 2)), member("d")}, holders: []string{"a", "b", "b"}, settled: true,
			previous: []string{"a b 1/10", "b a 1/10", "b c d>c 1/10"},
			want:     []string{"a b d>b 1/10", "b a 1/10", "b c d>c 1/10"},
		},
	})
}

func TestNext_HeldShards(t *testing.T) {
	a, b := member("a", 0), member("b", 0)
	runCases(t, map[string]testCase{
		"lose their copies": {
			members: members{a, b}, holders: []string{"a"}, held: []int{0},
			previous: []string{"a b 1/10"}, want: []string{"- - !held 1/10"},
		},
		"lose the copies that move": {
			members: members{a, b}, holders: []string{"a"}, held: []int{0}, settled: true,
			previous: []string{"b - a>b"}, want: []string{"- - !held"},
		},
		"are held although there are no members": {
			held: []int{0}, previous: []string{""}, want: []string{"- - !held"},
		},
		"get a leader at once when they are not held any more": {
			members: members{a, b}, previous: []string{"- - !held 1/10"}, want: []string{"a b 1/10"},
		},
		"do not count": {
			members: members{member("a", 0, 1, 2), member("b", 0, 1, 2)}, holders: []string{"a", "a", "b"}, held: []int{2},
			settled: true, previous: []string{"a b", "a b", "b a"}, want: []string{"b a <a", "a b", "- - !held"},
		},
		"that do not exist are ignored": {
			members: members{a, b}, holders: []string{"a"}, held: []int{-1, 9},
			previous: []string{"a b"}, want: []string{"a b"},
		},
	})
}
