package plan

// moveCopies begins moves of copies. Moves that reduce the load of members above the band come first, then those that
// put the copies of a shard on different nodes, then those to members below the band.
func (s *state) moveCopies(band band) {
	if len(s.members) < 3 {
		return // each member has a copy of each shard
	}
	s.unload()
	for s.relieve(band) {
	}
	for i := range s.shards {
		s.separate(i, band)
	}
	for s.fill(band) {
	}
}

// relieve begins a transfer from a member above the band, and reports whether it has begun one. Both copies of a shard
// are put on one node only if it is otherwise impossible to reduce the member's load.
func (s *state) relieve(band band) bool {
	search := s.newSearch(band)
	for _, source := range descending(s.copies) {
		if s.copies[source] <= band.high {
			break
		}
		if !s.canMove(source, 1) {
			continue
		}
		if s.begin(search.from(source, apart)) {
			return true
		}
		if !search.from(source, later).valid && s.begin(search.from(source, together)) {
			return true
		}
	}
	return false
}

// fill begins a transfer to a member below the band, and reports whether it has begun one.
func (s *state) fill(band band) bool {
	search := s.newSearch(band)
	for _, dest := range ascending(s.copies) {
		if s.copies[dest] >= band.low {
			break
		}
		if s.canReceive(dest, 1) && s.begin(search.to(dest)) {
			return true
		}
	}
	return false
}

// move begins to move a copy of a shard, and reports whether it has begun. It does nothing if a member cannot take part
// in another move. The caller checks that dest has room.
func (s *state) move(i, source, dest int) bool {
	if !s.canMove(source, 1) || !s.canReceive(dest, 1) {
		return false
	}
	s.update(i, func(c *copies) { c.warming, c.replaces = dest, source })
	return true
}

// separate begins to move a copy of a shard to another node if both are on the same one. If no member of another node
// has room, two shards exchange copies.
func (s *state) separate(i int, band band) {
	c, size := s.shards[i], s.weights[i].size
	if s.nodes < 2 || c.moving() || !s.sameNode(c.leader, c.standby) {
		return
	}
	source, other := c.standby, c.leader
	if s.copies[c.leader] > s.copies[c.standby] {
		source, other = other, source
	}
	full := true
	for _, dest := range ascending(s.copies) {
		if !band.takes(s.copies[dest], size) {
			break
		}
		if s.sameNode(dest, other) || s.members[dest].new || s.lacks(dest, i) > 0 {
			continue
		}
		full = false
		if s.move(i, source, dest) {
			return
		}
	}
	if full {
		s.exchangeNodes(i, source, other, band.high)
	}
}

// exchangeNodes begins to move the copy of a shard that source has to a member of another node, which gives source a
// copy of another shard.
func (s *state) exchangeNodes(i, source, other, high int) {
	if !s.canMove(source, 2) || s.members[source].new {
		return
	}
	for j, c := range s.shards {
		if c.moving() || c.leader == none || c.standby == none || c.leader == source || c.standby == source {
			continue
		}
		for _, dest := range []int{c.standby, c.leader} {
			remaining := c.leader + c.standby - dest
			more := s.weights[i].size - s.weights[j].size // that dest gets
			if s.sameNode(dest, other) || s.sameNode(source, remaining) || !s.canReceive(dest, 2) ||
				s.copies[dest]+more > max(high, s.copies[dest]) || s.copies[source]-more > max(high, s.copies[source]) ||
				s.lacks(dest, i) > 0 || s.lacks(source, j) > 0 {
				continue
			}
			s.move(i, source, dest)
			s.move(j, dest, source)
			return
		}
	}
}
