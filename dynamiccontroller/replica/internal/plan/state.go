package plan

import (
	"cmp"
	"maps"
	"slices"
)

// maxMoves is how many moves a member takes part in at a time.
const maxMoves = 2

// none is the index of a member that does not exist.
const none = -1

// weight is the load that a shard puts on each of its copies, and that its leadership puts on its leader. It is the
// only place that assigns a load to a shard.
func weight(int) int { return 1 }

// member is a member that can be assigned shards.
type member struct {
	id   string
	node int    // members with the same number are on the same machine
	warm []bool // by shard
	kept []bool // by shard
	new  bool
}

// copies is the assignment of one shard. Members are indexes into state.members, or none.
type copies struct {
	leader, standby, warming, replaces, from int
	holder                                   int // holds the Lease
}

// nobody is the assignment of a shard without any member.
var nobody = copies{leader: none, standby: none, warming: none, replaces: none, from: none, holder: none}

// planned returns the copies that remain when the shard's move is completed.
func (c copies) planned() (leader, standby int) {
	switch {
	case c.warming == none:
		return c.leader, c.standby
	case c.replaces == c.leader:
		return c.warming, c.standby
	default:
		return c.leader, c.warming
	}
}

// moving reports whether a move of the shard is in progress.
func (c copies) moving() bool { return c.warming != none || c.from != none }

// stopWarming ends the warming.
func (c *copies) stopWarming() { c.warming, c.replaces = none, none }

// state is the plan that Next is working on. The loads are those after all moves.
type state struct {
	members []member // without those that leave, by ID
	index   map[string]int
	nodes   int // the number of machines
	shards  []copies
	total   int   // the weight of all shards
	led     []int // by member: the weight of the shards that it leads
	copies  []int // by member: the weight of its copies
	moves   []int // by member: the moves that it takes part in
}

func newState(in Input) *state {
	s := &state{index: map[string]int{}, shards: make([]copies, min(max(in.Shards, 0), MaxShards))}
	for i := range s.shards {
		s.shards[i] = nobody
		s.total += weight(i)
	}
	merged := mergeMembers(in.Members)
	steady := false // whether a member neither leaves nor flaps
	for _, m := range merged {
		steady = steady || !m.Leaving && !m.Flapping
	}
	nodes := map[string]int{}
	for _, id := range slices.Sorted(maps.Keys(merged)) {
		m := merged[id]
		if m.Leaving || m.Flapping && steady {
			continue
		}
		node, known := nodes[m.Node]
		if !known || m.Node == "" {
			node = s.nodes
			nodes[m.Node] = node
			s.nodes++
		}
		s.index[id] = len(s.members)
		s.members = append(s.members, member{id: id, node: node, warm: s.flags(m.Warm), kept: s.flags(m.Kept), new: m.New})
	}
	s.led, s.copies = make([]int, len(s.members)), make([]int, len(s.members))
	s.moves = make([]int, len(s.members))
	return s
}

// flags returns a slice that is true for the given shards.
func (s *state) flags(shards []int) []bool {
	flags := make([]bool, len(s.shards))
	for _, i := range shards {
		if i >= 0 && i < len(flags) {
			flags[i] = true
		}
	}
	return flags
}

// mergeMembers returns the members by ID. The result does not depend on the order of members, even if an ID occurs
// several times.
func mergeMembers(members []Member) map[string]Member {
	merged := make(map[string]Member, len(members))
	for _, m := range members {
		if m.ID == "" {
			continue
		}
		if other, ok := merged[m.ID]; ok {
			m.Leaving = m.Leaving || other.Leaving
			m.New, m.Flapping = m.New || other.New, m.Flapping || other.Flapping
			m.Node = max(m.Node, other.Node)
			m.Warm, m.Kept = slices.Concat(m.Warm, other.Warm), slices.Concat(m.Kept, other.Kept)
		}
		merged[m.ID] = m
	}
	return merged
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

// update changes the assignment of a shard, and the loads and moves with it.
func (s *state) update(i int, change func(*copies)) {
	s.count(s.shards[i], weight(i), -1)
	change(&s.shards[i])
	s.count(s.shards[i], weight(i), 1)
}

// count adds a shard's load and moves to those of its members, or subtracts them if sign is -1.
func (s *state) count(c copies, load, sign int) {
	add := func(sums []int, m, n int) {
		if m != none {
			sums[m] += sign * n
		}
	}
	leader, standby := c.planned()
	add(s.led, leader, load)
	add(s.copies, leader, load)
	add(s.copies, standby, load)
	if c.warming != none {
		add(s.moves, c.warming, 1)
		add(s.moves, c.replaces, 1)
	}
	if c.from != none {
		add(s.moves, c.from, 1)
		add(s.moves, c.leader, 1)
	}
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

// bounds returns the loads between which a member needs no balancing: a tenth below and above the mean, and at least
// the mean rounded down and up. A load above high therefore exceeds a load below the mean by at least 2.
func bounds(total, members int) (low, high int) {
	if members == 0 {
		return 0, 0
	}
	low = min(ceilDiv(9*total, 10*members), total/members)
	high = max(11*total/(10*members), ceilDiv(total, members))
	return low, high
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

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
		}
	}
	return p
}
