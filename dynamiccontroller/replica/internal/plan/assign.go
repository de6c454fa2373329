package plan

import "slices"

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

// assignLeaders gives a leader to each shard that has no copy.
func (s *state) assignLeaders() {
	for i := range s.shards {
		if s.shards[i].leader != none {
			continue
		}
		leader := least(len(s.members), func(m int) [6]int {
			return [6]int{number(!s.isWarm(m, i)), s.led[m], s.copies[m]}
		})
		s.update(i, func(c *copies) { c.leader = leader })
	}
}

// assignStandbys gives a standby to the shards that have none; see Input.Settled.
func (s *state) assignStandbys(settled bool, vacant []int) {
	if len(s.members) < 2 {
		return
	}
	_, high := bounds(2*s.total, len(s.members))
	fullest := slices.Max(s.copies)
	room := make([]int, len(s.members)) // by member: up to which load it gets cold standbys
	for m, load := range s.copies {
		switch {
		case settled:
			room[m] = 2 * s.total
		case 2*load < fullest:
			room[m] = min(fullest, ceilDiv(2*s.total, len(s.members)))
		}
	}
	for i, c := range s.shards {
		if c.leader == none || c.standby != none {
			continue
		}
		partners, room := s.partners(c.leader), slices.Clone(room)
		for m := range room {
			if slices.Contains(vacant, i) && !s.members[m].new {
				room[m] = 2 * s.total
			}
		}
		standby := least(len(s.members), func(m int) [6]int {
			cold, after := !s.isWarm(m, i), s.copies[m]+weight(i)
			return [6]int{
				number(m == c.leader || cold && after > room[m]), // impossible
				number(cold && after > high),
				number(s.sameNode(m, c.leader)),
				number(cold),
				s.copies[m],
				partners[m],
			}
		})
		if standby == c.leader || !s.isWarm(standby, i) && s.copies[standby]+weight(i) > room[standby] {
			continue
		}
		s.update(i, func(c *copies) { c.standby = standby })
	}
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
