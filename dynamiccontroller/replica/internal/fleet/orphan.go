package fleet

import (
	"hash/fnv"
	"slices"
	"strconv"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

// isOrphaned reports whether nobody will lead a shard unless the plan changes: none of its copies is alive, and neither
// is the holder of its Lease.
func (s *Snapshot) isOrphaned(a plan.Assignment, holder string) bool {
	return s.Synced && !slices.ContainsFunc([]string{a.Leader, a.Standby, holder}, func(identity string) bool {
		member, alive := s.Member(identity)
		return alive && !member.State.Leaving
	})
}

// successor returns the identity of the member that leads an orphaned shard, or an empty string. It depends only on the
// arguments, so that members with the same view choose the same one.
func (s *Snapshot) successor(index, layout int) (identity string) {
	var highest uint64
	for _, m := range s.Members {
		if m.State.Leaving || m.State.Layout != layout {
			continue
		}
		hash := fnv.New64a()
		_, _ = hash.Write([]byte(strconv.Itoa(index) + "/" + m.Identity))
		if sum := hash.Sum64(); identity == "" || sum > highest {
			identity, highest = m.Identity, sum
		}
	}
	return identity
}
