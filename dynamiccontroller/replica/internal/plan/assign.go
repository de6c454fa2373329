package plan

import (
	"cmp"
	"slices"
)

// keep takes over the part of the previous plan for a shard that is still possible.
func (s *state) keep(i int, c *copies, in Input) {
	if i < len(in.Previous) {
		*c = s.possible(in.Previous[i])
	}
	if i < len(in.Holders) {
		c.holder = s.find(in.Holders[i])
	}
	s.finishWarming(i, c)
	s.followHolder(i, c)
	s.fillGaps(i, c)
	if i < len(in.Previous) {
		last := in.Previous[i]
		c.swap = last.Swap && in.Settled && last.Leader == s.id(c.leader) && last.Standby == s.id(c.standby) &&
			!c.moving() && s.canSwap(i, *c)
	}
}

// possible returns an assignment without the members that are gone or leave, and without duplicates.
func (s *state) possible(a Assignment) copies {
	c := nobody
	c.leader, c.standby, c.warming = s.find(a.Leader), s.find(a.Standby), s.find(a.Warming)
	c.replaces, c.from = s.find(a.Replaces), s.find(a.From)
	if c.standby == c.leader {
		c.standby = none
	}
	if c.warming == c.leader || c.warming == c.standby {
		c.stopWarming()
	}
	return c
}

// finishWarming replaces a copy if the member that takes its place has synced. A copy that is gone is not replaced
// here, because a member that has campaigned leads sooner than one that has not; see fillGaps.
func (s *state) finishWarming(i int, c *copies) {
	if !s.isWarm(c.warming, i) || c.replaces == none || c.replaces == c.holder && s.isKept(i, *c) {
		return
	}
	switch c.replaces {
	case c.leader:
		c.leader, c.from = c.warming, c.leader
		c.stopWarming()
	case c.standby:
		c.standby = c.warming
		c.stopWarming()
	}
}

// followHolder makes the holder of the Lease the leader, unless it hands the leadership over to a warm leader.
func (s *state) followHolder(i int, c *copies) {
	switch c.holder {
	case none:
	case c.leader:
		c.from = none
	case c.from:
		switch kept := s.isKept(i, *c); {
		case kept && s.isWarm(c.leader, i) && c.standby != c.holder && c.standby != none: // the new copy remains warm
			c.warming, c.replaces, c.leader, c.from = c.leader, c.holder, c.holder, none
		case kept || !s.isWarm(c.leader, i):
			s.lead(c)
		}
	default:
		s.lead(c)
	}
}

// lead makes the holder the leader. The old leader becomes the standby if there is no other.
func (s *state) lead(c *copies) {
	if c.standby == c.holder || c.standby == none {
		c.standby = c.leader
	}
	if c.warming == c.holder {
		c.stopWarming()
	}
	c.leader, c.from = c.holder, none
}

// fillGaps moves the remaining members of a shard to the places of those that are gone.
func (s *state) fillGaps(i int, c *copies) {
	unheld := c.holder == none
	if c.leader == none || unheld && !s.isWarm(c.leader, i) && s.isWarm(c.standby, i) {
		c.leader, c.standby, c.from = c.standby, c.leader, none
	}
	if c.leader == none {
		c.leader = c.warming
		c.stopWarming()
	}
	if c.standby == none {
		c.standby = c.warming
		c.stopWarming()
	}
	if c.warming == none || c.replaces == none || c.replaces != c.leader && c.replaces != c.standby {
		c.stopWarming()
	}
	if c.from == c.leader || !s.isWarm(c.leader, i) {
		c.from = none
	}
}

// dropExcessWarming ends warmings of members that take part in too many moves, which only a forged plan contains.
func (s *state) dropExcessWarming() {
	for i, c := range s.shards {
		if c.warming != none && (!s.canMove(c.warming, 0) || !s.canMove(c.replaces, 0)) {
			s.update(i, (*copies).stopWarming)
		}
	}
}

// assignLeaders gives a leader to each shard that has no copy and that fits on a member.
func (s *state) assignLeaders() {
	var shards []int
	for i, c := range s.shards {
		if c.leader == none && !s.held[i] {
			shards = append(shards, i)
		}
	}
	for _, i := range s.byObjects(shards) {
		leader := least(len(s.members), func(m int) [6]int {
			return [6]int{number(!s.canMakeRoom(m, i)), s.lacks(m, i), number(!s.isWarm(m, i)), s.led[m], s.copies[m]}
		})
		if leader != none && s.canMakeRoom(leader, i) {
			s.makeRoom(leader, i)
			s.update(i, func(c *copies) { c.leader = leader })
		}
	}
}

// assignStandbys gives a standby to the shards that have none; see Input.Settled.
func (s *state) assignStandbys(settled bool, vacant []int, band band) {
	if len(s.members) < 2 {
		return
	}
	share := s.newcomers(band)
	late := s.flags(vacant)
	for _, i := range s.missingStandbys() {
		c, w := s.shards[i], s.weights[i]
		fits := func(m int) bool {
			cold := !s.isWarm(m, i) && !settled && (!late[i] || s.members[m].new)
			newcomer := share[m] > 0 && s.copies[m]+w.size <= max(share[m], w.size)
			return m != c.leader && s.lacks(m, i) == 0 && (!cold || newcomer)
		}
		partners := s.partners(c.leader)
		standby := least(len(s.members), func(m int) [6]int {
			cold := !s.isWarm(m, i)
			return [6]int{
				number(!fits(m)),
				number(cold && !band.takes(s.copies[m], w.size)),
				number(s.sameNode(m, c.leader)),
				number(cold),
				s.copies[m],
				partners[m],
			}
		})
		if fits(standby) {
			s.update(i, func(c *copies) { c.standby = standby })
		}
	}
}

// missingStandbys returns the shards that have a leader only. The largest come first.
func (s *state) missingStandbys() (shards []int) {
	for i, c := range s.shards {
		if c.leader != none && c.standby == none {
			shards = append(shards, i)
		}
	}
	slices.SortStableFunc(shards, func(a, b int) int { return cmp.Compare(s.weights[b].size, s.weights[a].size) })
	return shards
}

// newcomers returns the size up to which each member gets cold standbys before the fleet has settled. It is zero
// unless the member has less than half the copies of the fullest.
func (s *state) newcomers(band band) []int {
	fullest := min(slices.Max(s.copies), band.high)
	sizes := make([]int, len(s.members))
	for m, size := range s.copies {
		if 2*size < fullest {
			sizes[m] = fullest
		}
	}
	return sizes
}

// least returns the member with the least cost, or none if there are no members. Costs are compared number by number.
// The first of several members with the same cost is returned.
func least(members int, cost func(m int) [6]int) int {
	best, bestCost := none, [6]int{}
	for m := range members {
		if c := cost(m); best == none || slices.Compare(c[:], bestCost[:]) < 0 {
			best, bestCost = m, c
		}
	}
	return best
}

// number returns 1 for true and 0 for false.
func number(b bool) int {
	if b {
		return 1
	}
	return 0
}
