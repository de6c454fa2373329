package replica

import (
	"hash/fnv"
	"slices"
	"strconv"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

// orphanPeriods is the time after which a member leads a shard without a plan, in multiples of LeaseDuration. By then,
// the Lease of a crashed leader has expired, and a working leader of the fleet has published another plan.
const orphanPeriods = 2

// isOrphaned reports whether nobody will lead a shard unless the plan changes: none of its copies is alive, and neither
// is the holder of its Lease.
func isOrphaned(a plan.Assignment, holder string, view *fleet.Snapshot) bool {
	return view.Synced && !slices.ContainsFunc([]string{a.Leader, a.Standby, holder}, func(identity string) bool {
		member, alive := view.Member(identity)
		return alive && !member.State.Leaving
	})
}

// successor returns the identity of the member that leads an orphaned shard, or an empty string. It depends only on the
// arguments, so that members with the same view choose the same one.
func successor(view *fleet.Snapshot, index, layout int) (identity string) {
	var highest uint64
	for _, m := range view.Members {
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

// adopts reports whether this member leads an orphaned shard without a plan. It returns true after orphanPeriods,
// because a missing plan must not leave the shard without a leader.
func (s *shard) adopts(o Options, a plan.Assignment, view *fleet.Snapshot, layout int) bool {
	holder := view.Holders[s.index]
	mine := holder == o.Identity // this member has acquired the Lease without a plan, and may have lost it
	if mine {
		holder = ""
	}
	switch {
	case !isOrphaned(a, holder, view):
		s.orphaned = time.Time{}
		return false
	case s.orphaned.IsZero():
		s.orphaned = time.Now()
	}
	return time.Since(s.orphaned) >= orphanPeriods*o.LeaseDuration &&
		(mine || successor(view, s.index, layout) == o.Identity)
}
