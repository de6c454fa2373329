package plan

import (
	"cmp"
	"slices"
)

// swapLeaders begins handovers of leaderships to standbys that have synced. A handover from a member to the standby of
// one of its shards requires that the former leads at least two shards more than the latter. A member above the limit
// can also pass a leadership on through others: a hands a shard to b, and b hands another one to c. If that is
// impossible for all members, no choice among the existing copies has a smaller maximum.
func (s *state) swapLeaders() {
	_, high := bounds(s.total, len(s.members))
	for s.swapOnce(high) {
	}
}

// swapOnce begins the handovers that move one leadership from the member that leads most, and reports whether there
// are any.
func (s *state) swapOnce(high int) bool {
	swappable := make([][]int, len(s.members)) // shards by leader
	for i, c := range s.shards {
		if c.holder != none && c.holder == c.leader && !c.moving() && s.isWarm(c.standby, i) && !s.isKept(i, c) {
			swappable[c.leader] = append(swappable[c.leader], i)
		}
	}
	for _, source := range descending(s.led) {
		shards := s.path(source, swappable, s.led[source] > high)
		for _, i := range shards {
			s.update(i, func(c *copies) { c.leader, c.standby, c.from = c.standby, c.leader, c.leader })
		}
		if len(shards) > 0 {
			return true
		}
	}
	return false
}

// path returns the shortest sequence of shards whose leaderships move one shard from source to a member that leads at
// least two less. Each shard's standby leads the next shard. The sequence has one shard unless long is set.
func (s *state) path(source int, swappable [][]int, long bool) []int {
	if !s.canMove(source, 1) {
		return nil
	}
	via := make([]int, len(s.members)) // by member: the shard through which it was reached
	for m := range via {
		via[m] = none
	}
	for queue := []int{source}; len(queue) > 0; queue = queue[1:] {
		shards := swappable[queue[0]]
		slices.SortStableFunc(shards, func(a, b int) int {
			return cmp.Compare(s.led[s.shards[a].standby], s.led[s.shards[b].standby])
		})
		for _, i := range shards {
			to := s.shards[i].standby
			if to == source || via[to] != none || !s.canReceive(to, 1) {
				continue
			}
			via[to] = i
			if s.led[source]-s.led[to] > weight(i) {
				return s.trace(source, to, via)
			}
			if long && s.canMove(to, 2) {
				queue = append(queue, to)
			}
		}
	}
	return nil
}

// trace returns the shards on the path from source to a member.
func (s *state) trace(source, to int, via []int) []int {
	var shards []int
	for to != source {
		shards = append(shards, via[to])
		to = s.shards[via[to]].leader
	}
	return shards
}
