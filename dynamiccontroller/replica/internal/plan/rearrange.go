package plan

import "slices"

// rearrange begins transfers of leaders from members that are above the band and lead more than the heaviest shard. It
// is used if handovers to standbys have come to an end, because it makes other members list. The members remain in the
// band of copies.
func (s *state) rearrange(led, copies band) {
	if len(s.members) < 3 || slices.Max(s.moves) > 0 {
		return
	}
	r := rearrangement{search: s.newSearch(copies), led: led}
	heaviest := 0
	for i, c := range s.shards {
		if c.leader != none {
			heaviest = max(heaviest, s.weights[i].work)
		}
	}
	for _, source := range descending(s.led) {
		if s.led[source] <= max(led.high, heaviest) {
			break
		}
		if s.canMove(source, 2) {
			s.begin(r.from(source))
		}
	}
}

// rearrangement finds transfers of leaders.
type rearrangement struct {
	*search
	led band
}

// from returns the best transfer of a leader from a member.
func (r *rearrangement) from(source int) (best transfer) {
	for dest := range r.members {
		if r.state.led[dest] >= r.state.led[source] || !r.canReceive(dest, 2) {
			continue
		}
		takes := append(r.movable(dest, source, apart), none)
		for _, i := range r.movable(source, dest, apart) {
			if leader, _ := r.shards[i].planned(); leader != source {
				continue
			}
			for _, j := range takes {
				best = best.better(r.evaluate(source, dest, i, j))
			}
		}
	}
	return best
}

// evaluate returns a transfer with its cost. It is not valid if it does not reduce the work of the member that leads
// more, or if a member leaves the band of copies.
func (r *rearrangement) evaluate(source, dest, shard, back int) transfer {
	t := transfer{source: source, dest: dest, shard: shard, back: back}
	work, size, cold := r.weights[shard].work, r.weights[shard].size, number(!r.isWarm(dest, shard))
	if back != none {
		if leader, _ := r.shards[back].planned(); leader == dest {
			work -= r.weights[back].work
		}
		size -= r.weights[back].size
		cold += number(!r.isWarm(source, back))
	}
	from, to := r.state.led[source], r.state.led[dest]
	t.valid = (back == none || !r.members[source].new) && r.led.improves(from, to, work) &&
		r.band.remains(r.copies[source], -size) && r.band.remains(r.copies[dest], size)
	t.cost = [7]int{max(from-work-r.led.high, 0) + max(to+work-r.led.high, 0), cold, r.band.outside(r.copies[dest] + size)}
	return t
}
