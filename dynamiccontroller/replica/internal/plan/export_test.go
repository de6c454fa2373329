package plan

import "slices"

// The base costs of a shard.
const (
	BaseWork    = baseWork
	BaseObjects = baseObjects
)

// Measure returns the measure of in.Previous that doc.go describes. Next decreases it in lexicographic order until it
// reaches a fixed plan.
func Measure(in Input) []int {
	s := newState(in)
	for i := range s.shards {
		if !s.held[i] && i < len(in.Previous) {
			s.update(i, func(c *copies) { *c = s.possible(in.Previous[i]); c.swap = in.Previous[i].Swap })
		}
	}
	_, copies := s.bands()
	excess, unled, vacant, together := 0, 0, 0, 0
	for m := range s.members {
		excess += s.excess(m)
	}
	for i, c := range s.shards {
		leader, standby := c.planned()
		unled += number(c.leader == none && !s.held[i])
		vacant += number(c.leader != none && c.standby == none)
		together += number(s.sameNode(leader, standby))
	}
	above, below := slices.Clone(s.copies), slices.Clone(s.copies)
	for m := range s.copies {
		above[m], below[m] = max(above[m], copies.high), -min(below[m], copies.low)
	}
	return slices.Concat([]int{excess, unled, vacant}, sorted(above), []int{together}, sorted(below), sorted(s.led))
}

// sorted returns values in descending order.
func sorted(values []int) []int {
	slices.Sort(values)
	slices.Reverse(values)
	return values
}
