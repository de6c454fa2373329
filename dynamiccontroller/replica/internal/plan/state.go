package plan

import (
	"cmp"
	"slices"
)

// maxMoves is how many moves a member takes part in at a time.
const maxMoves = 2

// none is the index of a member that does not exist.
const none = -1

// copies is the assignment of one shard. Members are indexes into state.members, or none.
type copies struct {
	leader, standby, warming, replaces, from int
	holder                                   int // holds the Lease
	swap                                     bool
}

// nobody is the assignment of a shard without any member.
var nobody = copies{leader: none, standby: none, warming: none, replaces: none, from: none, holder: none}

// planned returns the copies that remain when the shard's move is completed.
func (c copies) planned() (leader, standby int) {
	switch {
	case c.swap:
		return c.standby, c.leader
	case c.warming == none:
		return c.leader, c.standby
	case c.replaces == c.leader:
		return c.warming, c.standby
	default:
		return c.leader, c.warming
	}
}

// moving reports whether a move of the shard is in progress or planned.
func (c copies) moving() bool { return c.warming != none || c.from != none || c.swap }

// stopWarming ends the warming.
func (c *copies) stopWarming() { c.warming, c.replaces = none, none }

// state is the plan that Next is working on.
type state struct {
	members []member // without those that leave, by ID
	index   map[string]int
	nodes   int // the number of machines
	shards  []copies
	held    []bool    // by shard
	loads   []Load    // by shard
	weights []weights // by shard

	// The sums by member, after all moves.
	led     []int // the work of the shards that it leads
	copies  []int // the size of its copies
	objects []int // the objects of its copies

	// The sums by member, during the moves.
	present []int // the objects of its copies, with those that it gets and those that it loses
	moves   []int // the moves that it takes part in
}

func newState(in Input) *state {
	s := &state{index: map[string]int{}, shards: make([]copies, min(max(in.Shards, 0), MaxShards))}
	s.held, s.loads = s.flags(in.Held), make([]Load, len(s.shards))
	for i := range s.shards {
		s.shards[i] = nobody
		if i < len(in.Previous) {
			s.loads[i] = Load{}.next(in.Previous[i].Load)
		}
		if i < len(in.Loads) {
			s.loads[i] = s.loads[i].next(in.Loads[i])
		}
	}
	s.weights = weigh(s.loads)
	s.addMembers(in.Members)
	for _, sums := range []*[]int{&s.led, &s.copies, &s.objects, &s.present, &s.moves} {
		*sums = make([]int, len(s.members))
	}
	return s
}

// find returns the index of a member that can be assigned shards, or none.
func (s *state) find(id string) int {
	if m, ok := s.index[id]; ok {
		return m
	}
	return none
}

// id returns the ID of a member, which is empty for none.
func (s *state) id(m int) string {
	if m == none {
		return ""
	}
	return s.members[m].id
}

// update changes the assignment of a shard, and the sums of its members with it.
func (s *state) update(i int, change func(*copies)) {
	s.count(s.shards[i], s.weights[i], -1)
	change(&s.shards[i])
	s.count(s.shards[i], s.weights[i], 1)
}

// count adds a shard's weights and moves to the sums of its members, or subtracts them if sign is -1.
func (s *state) count(c copies, w weights, sign int) {
	add := func(sums []int, m, n int) {
		if m != none {
			sums[m] += sign * n
		}
	}
	leader, standby := c.planned()
	add(s.led, leader, w.work)
	for _, m := range []int{leader, standby} {
		add(s.copies, m, w.size)
		add(s.objects, m, w.objects)
	}
	for _, m := range []int{c.leader, c.standby, c.warming} {
		add(s.present, m, w.objects)
	}
	if c.from != c.standby {
		add(s.present, c.from, w.objects)
	}
	if c.warming != none {
		add(s.moves, c.warming, 1)
		add(s.moves, c.replaces, 1)
	}
	if c.from != none {
		add(s.moves, c.from, 1)
		add(s.moves, c.leader, 1)
	}
}

// bands returns the bands of led and of copies, as if no standby were missing.
func (s *state) bands() (led, copies band) {
	var works, sizes []share
	for i, c := range s.shards {
		if c.leader != none {
			works = append(works, share{weight: s.weights[i].work, copies: 1})
			sizes = append(sizes, share{weight: s.weights[i].size, copies: 2})
		}
	}
	return bandOf(works, len(s.members)), bandOf(sizes, len(s.members))
}

// canMove reports whether a member can take part in n more moves.
func (s *state) canMove(m, n int) bool { return s.moves[m]+n <= maxMoves }

// canReceive reports whether n moves to a member can begin.
func (s *state) canReceive(m, n int) bool { return !s.members[m].new && s.canMove(m, n) }

// isWarm reports whether a member keeps a shard warm and has synced it.
func (s *state) isWarm(m, i int) bool { return m != none && s.members[m].warm[i] }

// isKept reports whether the holder of a shard's Lease cannot hand it over now.
func (s *state) isKept(i int, c copies) bool { return c.holder != none && s.members[c.holder].kept[i] }

// sameNode reports whether two members are on the same machine.
func (s *state) sameNode(a, b int) bool {
	return a != none && b != none && s.members[a].node == s.members[b].node
}

// partners returns how many shards each member shares with m. The shards of a leader should have different standbys,
// so that its crash does not move all its work to one member.
func (s *state) partners(m int) []int {
	n := make([]int, len(s.members))
	for _, c := range s.shards {
		switch leader, standby := c.planned(); {
		case leader == m && standby != none:
			n[standby]++
		case standby == m && leader != none:
			n[leader]++
		}
	}
	return n
}

// ascending returns the members in the order of their loads. Members with the same load are ordered by ID.
func ascending(loads []int) []int { return ordered(loads, 1) }

// descending returns the members with the greatest loads first. Members with the same load are ordered by ID.
func descending(loads []int) []int { return ordered(loads, -1) }

func ordered(loads []int, sign int) []int {
	members := make([]int, len(loads))
	for m := range members {
		members[m] = m
	}
	slices.SortStableFunc(members, func(a, b int) int { return sign * cmp.Compare(loads[a], loads[b]) })
	return members
}

// plan returns the result.
func (s *state) plan() Plan {
	p := make(Plan, len(s.shards))
	for i, c := range s.shards {
		p[i] = Assignment{
			Leader:   s.id(c.leader),
			Standby:  s.id(c.standby),
			Warming:  s.id(c.warming),
			Replaces: s.id(c.replaces),
			From:     s.id(c.from),
			Swap:     c.swap,
			Load:     s.loads[i],
			Unled:    s.unled(i),
		}
	}
	return p
}
