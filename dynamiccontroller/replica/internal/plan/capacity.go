package plan

import (
	"cmp"
	"slices"
)

// lacks returns how many objects too many a member would have during its moves if it took a shard. Copies that it loses
// by a move count until the move has ended.
func (s *state) lacks(m, i int) int {
	objects := s.weights[i].objects
	if objects == 0 {
		return 0
	}
	return max(s.present[m]-s.members[m].capacity+objects, 0)
}

// excess returns by how many objects a member will exceed its capacity after all moves.
func (s *state) excess(m int) int { return max(s.objects[m]-s.members[m].capacity, 0) }

// byObjects returns shards in the order in which they get leaders. The largest come first, because it is harder to find
// room for them. If there is not enough room for all, the smallest come first, so that more of them are led.
func (s *state) byObjects(shards []int) []int {
	room, needed := 0.0, 0.0
	for m := range s.members {
		room += max(float64(s.members[m].capacity)-float64(s.present[m]), 0) + float64(s.droppable(m))
	}
	for _, i := range shards {
		needed += float64(s.weights[i].objects)
	}
	slices.SortStableFunc(shards, func(a, b int) int {
		order := cmp.Compare(s.weights[b].objects, s.weights[a].objects)
		if needed > room {
			return -order
		}
		return order
	})
	return shards
}

// standbys returns the shards of which a member is the standby and that no move changes.
func (s *state) standbys(m int) (shards []int) {
	for i, c := range s.shards {
		if c.standby == m && !c.moving() {
			shards = append(shards, i)
		}
	}
	return shards
}

// sufficient orders shards by how well they free a number of objects: the smallest one that does comes first, then
// greater ones, then smaller ones.
func (s *state) sufficient(shards []int, objects int) []int {
	slices.SortStableFunc(shards, func(a, b int) int {
		sizeA, sizeB := s.weights[a].objects, s.weights[b].objects
		if sizeA >= objects && sizeB >= objects {
			return cmp.Compare(sizeA, sizeB)
		}
		return cmp.Compare(sizeB, sizeA)
	})
	return shards
}

// droppable returns how many objects a member has as a standby.
func (s *state) droppable(m int) (objects int) {
	for _, i := range s.standbys(m) {
		objects += s.weights[i].objects
	}
	return objects
}

// canMakeRoom reports whether a member can take a shard after dropping standbys.
func (s *state) canMakeRoom(m, i int) bool {
	lacks := s.lacks(m, i)
	return lacks == 0 || lacks <= s.droppable(m)
}

// makeRoom drops standbys of a member until it can take a shard.
func (s *state) makeRoom(m, i int) {
	for s.lacks(m, i) > 0 {
		s.dropStandby(m, s.lacks(m, i))
	}
}

// dropStandby drops a standby of a member to free a number of objects, and reports whether there is one.
func (s *state) dropStandby(m, objects int) bool {
	shards := s.sufficient(s.standbys(m), objects)
	if len(shards) == 0 || s.weights[shards[0]].objects == 0 {
		return false
	}
	s.update(shards[0], func(c *copies) { c.standby = none })
	return true
}

// dropStandbys drops standbys of members that exceed their capacity, unless another member has room for one of them.
func (s *state) dropStandbys() {
	for m := range s.members {
		for s.excess(m) > 0 && !s.canUnload(m) {
			if !s.dropStandby(m, s.excess(m)) {
				break
			}
		}
	}
}

// canUnload reports whether another member has room for a standby of m.
func (s *state) canUnload(m int) bool {
	for _, i := range s.standbys(m) {
		for dest := range s.members {
			if s.weights[i].objects > 0 && dest != m && dest != s.shards[i].leader && s.lacks(dest, i) == 0 {
				return true
			}
		}
	}
	return false
}

// unload begins moves from members that exceed their capacity to members that have room, standbys first.
func (s *state) unload() {
	for source := range s.members {
		for s.excess(source) > 0 && s.canMove(source, 1) {
			if !s.unloadOnce(source) {
				break
			}
		}
	}
}

func (s *state) unloadOnce(source int) bool {
	shards := s.standbys(source)
	if s.droppable(source) == 0 {
		for i, c := range s.shards {
			if c.leader == source && !c.moving() && !s.isKept(i, c) {
				shards = append(shards, i)
			}
		}
	}
	for _, i := range s.sufficient(shards, s.excess(source)) {
		if s.weights[i].objects == 0 {
			break
		}
		c := s.shards[i]
		other := c.leader + c.standby - source
		dest := least(len(s.members), func(m int) [6]int {
			impossible := m == c.leader || m == c.standby || !s.canReceive(m, 1) || s.lacks(m, i) > 0
			return [6]int{number(impossible), number(s.sameNode(m, other)), number(!s.isWarm(m, i)), s.copies[m]}
		})
		possible := dest != c.leader && dest != c.standby && s.lacks(dest, i) == 0
		if possible && s.move(i, source, dest) {
			return true
		}
	}
	return false
}

// unled returns why a shard has no leader.
func (s *state) unled(i int) Unled {
	switch {
	case s.held[i]:
		return UnledHeld
	case len(s.members) == 0 || s.shards[i].leader != none:
		return ""
	default:
		return UnledCapacity
	}
}
