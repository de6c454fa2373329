package plan

import "slices"

// swapLeaders begins handovers of leaderships to standbys that have synced. A member hands a leadership over if it is
// above the band, or if the standby is below, and if the standby will lead less than the member has led. A member above
// the band can also pass a leadership on through others: a hands a shard to b, and b hands another one to c.
//
// The handovers are computed to the end, so that no leadership passes through several members in turn. Those that
// exceed the limit of moves are planned for later; see Assignment.Swap. While copies move, the band is wider, because
// the moves change who leads.
func (s *state) swapLeaders(band band) {
	if slices.ContainsFunc(s.shards, func(c copies) bool { return c.warming != none }) {
		band = band.wider()
	}
	for i, swapped := range s.swaps(band) {
		if swapped {
			s.update(i, func(c *copies) { c.swap = true })
		}
	}
	for i, c := range s.shards {
		if c.swap && s.canMove(c.leader, 1) && s.canReceive(c.standby, 1) {
			s.update(i, func(c *copies) { c.swap, c.leader, c.standby, c.from = false, c.standby, c.leader, c.leader })
		}
	}
}

// swaps returns which shards have another leader after all handovers.
func (s *state) swaps(band band) []bool {
	swappable := make([]bool, len(s.shards))
	for i, c := range s.shards {
		swappable[i] = !c.moving() && s.canSwap(i, c)
	}
	end := *s
	end.shards, end.led = slices.Clone(s.shards), slices.Clone(s.led)
	for shards := end.findPath(swappable, band); shards != nil; shards = end.findPath(swappable, band) {
		for _, i := range shards {
			c, work := &end.shards[i], end.weights[i].work
			end.led[c.leader] -= work
			end.led[c.standby] += work
			c.leader, c.standby = c.standby, c.leader
		}
	}
	swapped := make([]bool, len(s.shards))
	for i := range swapped {
		swapped[i] = end.shards[i].leader != s.shards[i].leader
	}
	return swapped
}

// canSwap reports whether the leader can hand a shard over to the standby.
func (s *state) canSwap(i int, c copies) bool {
	return c.holder != none && c.holder == c.leader && s.isWarm(c.standby, i) && !s.isKept(i, c)
}
