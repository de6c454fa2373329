package plan

import "slices"

// transfer moves a copy of a shard from a member to another one. If there is a back, the two members exchange copies.
type transfer struct {
	valid        bool
	source, dest int
	shard, back  int // back can be none
	cost         [7]int
}

// better returns the transfer with the lower cost.
func (t transfer) better(other transfer) transfer {
	if !t.valid || other.valid && slices.Compare(other.cost[:], t.cost[:]) < 0 {
		return other
	}
	return t
}

// completes reports whether both members are in the band after the transfer.
func (t transfer) completes() bool { return t.valid && t.cost[0] <= exchangeCompletes }

// The classes of transfers, in the order of preference.
const (
	moveCompletes     = iota // a move after which both members are in the band
	exchangeCompletes        // an exchange after which both members are in the band
	moveImproves
	exchangeImproves
)

// condition limits which transfers are found.
type condition int

const (
	apart    condition = iota // those that can begin now and put no copies of a shard on one node
	together                  // those that can begin now
	later                     // those that put no copies of a shard on one node, if no move is in progress
)

// search finds transfers.
type search struct {
	*state
	band     band
	copied   [][]int // by member: the shards of which it has a copy
	partners [][]int // by member; see state.partners
}

func (s *state) newSearch(band band) *search {
	found := &search{state: s, band: band, copied: make([][]int, len(s.members)), partners: make([][]int, len(s.members))}
	for m := range s.members {
		found.partners[m] = make([]int, len(s.members))
	}
	for i, c := range s.shards {
		leader, standby := c.planned()
		for _, m := range []int{leader, standby} {
			if m != none {
				found.copied[m] = append(found.copied[m], i)
			}
		}
		if leader != none && standby != none {
			found.partners[leader][standby]++
			found.partners[standby][leader]++
		}
	}
	return found
}

// from returns the best transfer from a member.
func (s *search) from(source int, when condition) (best transfer) {
	for dest := range s.members {
		best = s.between(source, dest, when, best)
	}
	return best
}

// to returns the best transfer to a member.
func (s *search) to(dest int) (best transfer) {
	for source := range s.members {
		if s.canMove(source, 1) {
			best = s.between(source, dest, apart, best)
		}
	}
	return best
}

// between returns the best transfer between two members, or best if that is better.
func (s *search) between(source, dest int, when condition, best transfer) transfer {
	if s.copies[dest] >= s.copies[source] || s.members[dest].new || when != later && !s.canMove(dest, 1) {
		return best
	}
	give := s.movable(source, dest, when)
	for _, i := range give {
		best = best.better(s.evaluate(source, dest, i, none))
	}
	if best.completes() && best.cost[0] == moveCompletes || s.members[source].new ||
		when != later && (!s.canMove(source, 2) || !s.canMove(dest, 2)) {
		return best
	}
	take := s.movable(dest, source, when)
	for _, i := range give {
		for _, j := range take {
			if s.weights[j].size < s.weights[i].size {
				best = best.better(s.evaluate(source, dest, i, j))
			}
		}
	}
	return best
}

// movable returns the shards whose copy can move from source to dest.
func (s *search) movable(source, dest int, when condition) (shards []int) {
	for _, i := range s.copied[source] {
		c := s.shards[i]
		leader, standby := c.planned()
		if leader == dest || standby == dest || c.moving() && when != later || leader == source && s.isKept(i, c) ||
			s.lacks(dest, i) > 0 || when != together && s.joins(i, source, dest) > 0 {
			continue
		}
		shards = append(shards, i)
	}
	return shards
}

// joins returns by how much a move changes the number of shards with both copies on one node.
func (s *search) joins(i, source, dest int) int {
	leader, standby := s.shards[i].planned()
	other := leader + standby - source
	return number(s.sameNode(dest, other)) - number(s.sameNode(source, other))
}

// evaluate returns a transfer with its cost. It is not valid if it does not reduce the greater load.
func (s *search) evaluate(source, dest, shard, back int) transfer {
	t := transfer{source: source, dest: dest, shard: shard, back: back}
	class, weight := moveCompletes, s.weights[shard].size
	if back != none {
		class, weight = exchangeCompletes, weight-s.weights[back].size
	}
	if !s.band.improves(s.copies[source], s.copies[dest], weight) {
		return t
	}
	before := s.band.outside(s.copies[source]) + s.band.outside(s.copies[dest])
	after := s.band.outside(s.copies[source]-weight) + s.band.outside(s.copies[dest]+weight)
	if after > 0 {
		class += moveImproves
	}
	t.valid = true
	t.cost = [7]int{class, 0, 0, after - before, 0, 0, s.copies[dest]}
	s.addMove(&t.cost, shard, source, dest)
	if back != none {
		s.addMove(&t.cost, back, dest, source)
	}
	return t
}

// addMove adds the cost of a move.
func (s *search) addMove(cost *[7]int, i, source, dest int) {
	leader, standby := s.shards[i].planned()
	cost[1] += number(!s.isWarm(dest, i))
	cost[2] += s.joins(i, source, dest)
	cost[4] += number(leader == source) // a standby moves without a handover
	cost[5] += s.partners[dest][max(leader+standby-source, 0)]
}

// begin begins a transfer, and reports whether there is one.
func (s *state) begin(t transfer) bool {
	if !t.valid {
		return false
	}
	s.move(t.shard, t.source, t.dest)
	if t.back != none {
		s.move(t.back, t.dest, t.source)
	}
	return true
}
