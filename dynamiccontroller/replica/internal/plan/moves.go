package plan

import "slices"

// moveCopies begins moves of copies. Moves that reduce the load of members above the limit come first, then those that
// put the copies of a shard on different nodes, then those to members that have too little.
func (s *state) moveCopies() {
	if len(s.members) < 3 {
		return // each member has a copy of each shard
	}
	low, high := bounds(2*s.total, len(s.members))
	for s.relieve(high) {
	}
	for i := range s.shards {
		s.separate(i, high)
	}
	for s.fill(low) {
	}
}

// relieve begins a move from a member above the limit to one below it, and reports whether it has begun one. Both
// copies of a shard are put on one node only if it is otherwise impossible to reduce the member's load.
func (s *state) relieve(high int) bool {
	for _, source := range descending(s.copies) {
		if s.copies[source] <= high {
			break
		}
		if !s.canMove(source, 1) {
			continue
		}
		apart := slices.ContainsFunc(ascending(s.copies), func(dest int) bool {
			return s.copies[dest] < high && !s.members[dest].new && s.best(source, dest, true, true) != none
		})
		for _, dest := range ascending(s.copies) {
			if s.copies[dest] >= high {
				break
			}
			if s.canReceive(dest, 1) && s.move(s.best(source, dest, apart, false), source, dest) {
				return true
			}
		}
	}
	return false
}

// fill begins a move to a member with too few copies, and reports whether it has begun one.
func (s *state) fill(low int) bool {
	for _, dest := range ascending(s.copies) {
		if s.copies[dest] >= low {
			break
		}
		if !s.canReceive(dest, 1) {
			continue
		}
		for _, source := range descending(s.copies) {
			if s.copies[source] <= low {
				break
			}
			if s.canMove(source, 1) && s.move(s.best(source, dest, true, false), source, dest) {
				return true
			}
		}
	}
	return false
}

// move begins to move a copy of a shard, and reports whether it has begun. It does nothing if there is no shard, or if
// a member cannot take part in another move.
func (s *state) move(i, source, dest int) bool {
	if i == none || !s.canMove(source, 1) || !s.canReceive(dest, 1) {
		return false
	}
	s.update(i, func(c *copies) { c.warming, c.replaces = dest, source })
	return true
}

// best returns the shard whose copy should move from source to dest, or none. If apart is set, the move must not put
// both copies of a shard on one node. Shards with a move in progress count only if moving is set.
func (s *state) best(source, dest int, apart, moving bool) int {
	partners := s.partners(dest)
	best, bestCost := none, [5]int{}
	for i, c := range s.shards {
		leader, standby := c.planned()
		if leader != source && standby != source || leader == dest || standby == dest || c.moving() && !moving ||
			leader == source && s.isKept(i, c) {
			continue
		}
		other := leader + standby - source
		together := number(s.sameNode(dest, other)) - number(s.sameNode(source, other))
		if apart && together > 0 {
			continue
		}
		cost := [5]int{
			number(!s.isWarm(dest, i)),
			together,
			number(leader == source), // a standby moves without a handover
			partners[max(other, 0)],
		}
		if best == none || slices.Compare(cost[:], bestCost[:]) < 0 {
			best, bestCost = i, cost
		}
	}
	return best
}

// separate begins to move a copy of a shard to another node if both are on the same one. If no member of another node
// has room, two shards exchange copies.
func (s *state) separate(i, high int) {
	c := s.shards[i]
	if s.nodes < 2 || c.moving() || !s.sameNode(c.leader, c.standby) {
		return
	}
	source, other := c.standby, c.leader
	if s.copies[c.leader] > s.copies[c.standby] {
		source, other = other, source
	}
	full := true
	for _, dest := range ascending(s.copies) {
		if s.copies[dest] >= high {
			break
		}
		if s.sameNode(dest, other) || s.members[dest].new {
			continue
		}
		full = false
		if s.move(i, source, dest) {
			return
		}
	}
	if full {
		s.exchange(i, source, other)
	}
}

// exchange begins to move the copy of a shard that source has to a member of another node, which gives source a copy of
// another shard.
func (s *state) exchange(i, source, other int) {
	if !s.canMove(source, 2) || s.members[source].new {
		return
	}
	for j, c := range s.shards {
		if c.moving() || c.leader == none || c.standby == none || c.leader == source || c.standby == source {
			continue
		}
		for _, dest := range []int{c.standby, c.leader} {
			remaining := c.leader + c.standby - dest
			if s.sameNode(dest, other) || s.sameNode(source, remaining) || !s.canReceive(dest, 2) {
				continue
			}
			s.move(i, source, dest)
			s.move(j, dest, source)
			return
		}
	}
}
