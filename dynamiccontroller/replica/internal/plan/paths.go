package plan

import "slices"

// findPath returns shards whose handovers reduce the load of one member, or nil. It ignores the limit of moves.
func (s *state) findPath(swappable []bool, band band) []int {
	byLeader := make([][]int, len(s.members))
	for i, c := range s.shards {
		if swappable[i] {
			byLeader[c.leader] = append(byLeader[c.leader], i)
		}
	}
	for _, source := range descending(s.led) {
		p := path{state: s, source: source, swappable: byLeader, band: band, less: s.led[source] - band.step}
		for _, limit := range []int{min(band.high, p.less), p.less} {
			p.limit = limit
			if shards := p.find(); shards != nil {
				return shards
			}
		}
	}
	return nil
}

// path finds handovers that reduce the work of a member. The standby of each shard leads the next one.
type path struct {
	*state
	source    int
	swappable [][]int // shards that can be handed over, by leader
	band      band
	less      int // the maximum that the source may lead afterwards
	limit     int // the maximum that the other members of the path may lead afterwards
}

// find returns the shortest path. If there are several, it returns one after which the source is least above the band,
// and among those one whose last member leads least.
func (p *path) find() []int {
	reached := make([][]int, len(p.members)) // by member: the shards that reach it
	reached[p.source] = []int{}
	for reached != nil {
		best, next := p.extend(reached)
		if best != nil {
			return best
		}
		reached = next
	}
	return nil
}

// extend adds a shard to each path. It returns the best one that can end there, and those that reach other members. A
// member is reached by the lightest shard.
func (p *path) extend(reached [][]int) (best []int, next [][]int) {
	var bestCost [2]int
	long := p.led[p.source] > p.band.high
	for m, shards := range reached {
		for _, longer := range p.longer(shards, m) {
			cost, ends := p.cost(longer)
			if ends && (best == nil || slices.Compare(cost[:], bestCost[:]) < 0) {
				best, bestCost = longer, cost
			}
			if !long {
				continue
			}
			if next == nil {
				next = make([][]int, len(p.members))
			}
			p.keepLighter(next, longer)
		}
	}
	return best, next
}

// keepLighter adds a path to those that reach members, unless another one reaches its last member by a lighter shard.
func (p *path) keepLighter(next [][]int, shards []int) {
	to := p.shards[last(shards)].standby
	if to != p.source && (next[to] == nil || p.weights[last(shards)].work < p.weights[last(next[to])].work) {
		next[to] = shards
	}
}

// longer returns the paths that begin with shards, which reach m, and have one more. It returns none if shards is nil.
func (p *path) longer(shards []int, m int) (paths [][]int) {
	if shards == nil {
		return nil
	}
	for _, i := range p.swappable[m] {
		if p.possible(shards, i) {
			paths = append(paths, append(slices.Clone(shards), i))
		}
	}
	return paths
}

// possible reports whether the leader of a shard can hand it over after the others.
func (p *path) possible(shards []int, i int) bool {
	c := p.shards[i]
	if len(shards) == 0 {
		return p.led[p.source]-p.weights[i].work <= p.less && !p.members[c.standby].new
	}
	visited := slices.ContainsFunc(shards, func(j int) bool { return p.shards[j].standby == c.standby })
	after := p.led[c.leader] + p.weights[last(shards)].work - p.weights[i].work
	return after <= p.limit && !visited && !p.members[c.standby].new
}

// cost returns the cost of a path, and whether it can end there.
func (p *path) cost(shards []int) (cost [2]int, ends bool) {
	to := p.shards[last(shards)].standby
	source := p.led[p.source] - p.weights[shards[0]].work
	work := p.led[to] + p.weights[last(shards)].work
	if to == p.source { // it gets a lighter shard back
		source += p.weights[last(shards)].work
		return [2]int{max(source-p.band.high, 0), source}, source <= p.less
	}
	ends = work <= p.limit && (p.led[p.source] > p.band.high || p.led[to] < p.band.low)
	return [2]int{max(source-p.band.high, 0), work}, ends
}

func last(shards []int) int { return shards[len(shards)-1] }
