package plan

import (
	"maps"
	"math"
	"slices"
)

// member is a member that can be assigned shards.
type member struct {
	id       string
	node     int    // members with the same number are on the same machine
	warm     []bool // by shard
	kept     []bool // by shard
	new      bool
	capacity int // the objects that its copies can have together
}

// addMembers adds the members that can be assigned shards.
func (s *state) addMembers(members []Member) {
	merged := mergeMembers(members)
	steady := false // whether a member neither leaves nor flaps
	for _, m := range merged {
		steady = steady || !m.Leaving && !m.Flapping
	}
	nodes := map[string]int{}
	for _, id := range slices.Sorted(maps.Keys(merged)) {
		m := merged[id]
		if m.Leaving || m.Flapping && steady {
			continue
		}
		node, known := nodes[m.Node]
		if !known || m.Node == "" {
			node = s.nodes
			nodes[m.Node] = node
			s.nodes++
		}
		s.index[id] = len(s.members)
		s.members = append(s.members, member{
			id: id, node: node, warm: s.flags(m.Warm), kept: s.flags(m.Kept), new: m.New, capacity: limitOf(m.Capacity),
		})
	}
}

// limitOf returns how many objects a member with this capacity can keep.
func limitOf(capacity int) int {
	if capacity <= 0 {
		return math.MaxInt
	}
	return capacity
}

// flags returns a slice that is true for the given shards.
func (s *state) flags(shards []int) []bool {
	flags := make([]bool, len(s.shards))
	for _, i := range shards {
		if i >= 0 && i < len(flags) {
			flags[i] = true
		}
	}
	return flags
}

// mergeMembers returns the members by ID. The result does not depend on the order of members, even if an ID occurs
// several times.
func mergeMembers(members []Member) map[string]Member {
	merged := make(map[string]Member, len(members))
	for _, m := range members {
		if m.ID == "" {
			continue
		}
		if other, ok := merged[m.ID]; ok {
			m.Leaving = m.Leaving || other.Leaving
			m.New, m.Flapping = m.New || other.New, m.Flapping || other.Flapping
			m.Node = max(m.Node, other.Node)
			if limitOf(other.Capacity) < limitOf(m.Capacity) {
				m.Capacity = other.Capacity
			}
			m.Warm, m.Kept = slices.Concat(m.Warm, other.Warm), slices.Concat(m.Kept, other.Kept)
		}
		merged[m.ID] = m
	}
	return merged
}
