package plan

import (
	"cmp"
	"slices"
)

// Load is the cost of a shard. The zero value is an unknown load. It counts as the mean of the known ones, or as 1 if
// none is known.
type Load struct {
	// Work is what the leadership costs the leader, for example in thousandths of a busy worker. Only the ratios of
	// shards matter.
	Work int
	// Objects is the number of objects that each of the two copies keeps.
	Objects int
}

// MaxLoad is the maximum of Load.Work and Load.Objects. Greater values count as MaxLoad, and negative ones as zero.
// The sums over the shards of a plan fit in 64 bits.
const MaxLoad = 1 << 30

// These costs are added to the load of each shard, so that idle and empty shards are distributed evenly, too.
const (
	baseWork    = 10 // 10 ms per second: resyncs and the renewals of the Lease
	baseObjects = 10 // the buffers and connections of the watches
)

// weights is a shard's load as the planner counts it.
type weights struct {
	work    int // of the leadership
	size    int // of each copy
	objects int // of each copy, without baseObjects; compared with Member.Capacity
}

// weigh returns the weights of shards with these loads.
func weigh(loads []Load) []weights {
	var sum Load
	known := 0
	for _, l := range loads {
		if l != (Load{}) {
			sum.Work += l.Work
			sum.Objects += l.Objects
			known++
		}
	}
	mean := Load{Work: 1, Objects: 1}
	if known > 0 {
		mean = Load{Work: sum.Work / known, Objects: sum.Objects / known}
	}
	w := make([]weights, len(loads))
	for i, l := range loads {
		if l == (Load{}) {
			l = mean
		}
		w[i] = weights{work: baseWork + l.Work, size: baseObjects + l.Objects, objects: l.Objects}
	}
	return w
}

// next returns the load on which the next plan is based: l or the reported one. Small changes are ignored, because no
// shard should move because of noise.
func (l Load) next(reported Load) Load {
	reported.Work = min(max(reported.Work, 0), MaxLoad)
	reported.Objects = min(max(reported.Objects, 0), MaxLoad)
	switch {
	case reported == (Load{}):
		return l
	case l == (Load{}), differ(baseWork+l.Work, baseWork+reported.Work),
		differ(baseObjects+l.Objects, baseObjects+reported.Objects):
		return reported
	default:
		return l
	}
}

// differ reports whether the greater weight exceeds the other one by more than half. Values that fluctuate by 20 %
// around their mean do not differ.
func differ(a, b int) bool { return 2*max(a, b) > 3*min(a, b) }

// band contains the loads of a member that needs no balancing.
type band struct {
	low, high int
	step      int // improvements by less are not worth a move
}

// share is a shard's weight for each of its copies.
type share struct{ weight, copies int }

// bandOf returns the loads up to a twentieth below and above the mean. The upper limit is greater if no distribution
// reaches it: some member gets k+1 of the k*members+1 heaviest copies. Shards that are heavier than the mean are
// excluded, together with the members that should have nothing else.
func bandOf(shares []share, members int) band {
	slices.SortFunc(shares, func(a, b share) int { return cmp.Compare(b.weight, a.weight) })
	total := 0
	for _, s := range shares {
		total += s.weight * s.copies
	}
	for len(shares) > 0 && members > shares[0].copies && shares[0].weight*members > total {
		total -= shares[0].weight * shares[0].copies
		members -= shares[0].copies
		shares = shares[1:]
	}
	if members == 0 {
		return band{}
	}
	return band{
		low:  ceilDiv(19*total, 20*members),
		high: max(21*total/(20*members), crowded(shares, members)),
		step: max(1, total/(100*members)),
	}
}

// crowded returns a load that at least one member has in each distribution.
func crowded(shares []share, members int) int {
	var copies []int // the weights, in descending order
	for _, s := range shares {
		for range s.copies {
			copies = append(copies, s.weight)
		}
	}
	most := 0
	for k := 0; k*members < len(copies); k++ {
		load := 0
		for _, weight := range copies[k*members-k : k*members+1] {
			load += weight
		}
		most = max(most, load)
	}
	return most
}

// wider returns a band whose limits are a quarter lower and higher.
func (b band) wider() band { return band{low: 3 * b.low / 4, high: 5 * b.high / 4, step: b.step} }

// takes reports whether a member with a load has room for a weight, or nothing else.
func (b band) takes(load, weight int) bool { return load+weight <= max(b.high, weight) }

// improves reports whether moving a weight between members with the given loads reduces the greater load. Without this
// condition, repeated moves would not come to an end.
func (b band) improves(from, to, weight int) bool { return weight > 0 && to+weight <= from-b.step }

// remains reports whether a load that changes by a weight stays in the band, or does not get farther away from it.
func (b band) remains(load, change int) bool {
	return load+change <= max(b.high, load) && load+change >= min(b.low, load)
}

// outside returns how far a load is from the band.
func (b band) outside(load int) int { return max(b.low-load, load-b.high, 0) }

func ceilDiv(a, b int) int { return (a + b - 1) / b }
