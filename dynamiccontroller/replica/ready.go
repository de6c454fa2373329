package replica

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

// readiness records whether a member of a fleet is ready. A member is ready once the shards that it should lead or
// keep warm have synced, and those of the other members. A rolling update then does not restart the next replica before
// all shards have two copies that can lead. A member that has become ready remains ready: it is assigned other shards
// all the time.
type readiness struct {
	ready  atomic.Bool
	reason atomic.Pointer[string] // why the member is not ready, nil before the first step

	// Used only by observe.
	began  time.Time // of the first step
	joined time.Time // when the member first observed itself in the fleet
}

// plannedPeriods is the time in which the fleet's leader takes a new member into account, in multiples of RetryPeriod.
const plannedPeriods = 2

// check returns an error until the member is ready.
func (r *readiness) check() error {
	switch reason := r.reason.Load(); {
	case r.ready.Load():
		return nil
	case reason == nil:
		return errors.New("the fleet's lease has not been read")
	default:
		return errors.New(*reason)
	}
}

// observe is called with each step of the member.
func (r *readiness) observe(o Options, layout layout, view *fleet.Snapshot, planned plan.Plan, synced []int) {
	if r.ready.Load() {
		return
	}
	now := time.Now()
	if r.began.IsZero() {
		r.began = now
	}
	if _, known := view.Member(o.Identity); known && r.joined.IsZero() {
		r.joined = now
	}
	assigned := assignedTo(planned, o.Identity)
	unsynced := slices.DeleteFunc(slices.Clone(assigned), func(i int) bool { return slices.Contains(synced, i) })
	reason := ""
	switch {
	case len(unsynced) > 0: // without a limit, as for other runnables
		reason = "shards have not synced: " + strings.Trim(strings.ReplaceAll(fmt.Sprint(unsynced), " ", ", "), "[]")
	case now.Sub(r.began) >= keepFactor*o.LeaseDuration: // nobody may ever plan
	case layout.state != layoutFixed:
		reason = "the fleet's lease " + layout.String()
	case r.joined.IsZero():
		reason = "this replica has not joined the fleet"
	case hasColdCopies(planned, view):
		reason = "shards of other replicas have not synced"
	case view.Plan == "" || len(assigned) == 0 && now.Sub(r.joined) < plannedPeriods*o.RetryPeriod:
		reason = "the shards of this replica have not been planned"
	}
	r.ready.Store(reason == "")
	r.reason.Store(&reason)
}

// hasColdCopies reports whether a member that should lead a shard or stand by for it has not synced it. If the next
// replica were restarted then, the shard could lose its only synced copy.
func hasColdCopies(planned plan.Plan, view *fleet.Snapshot) bool {
	for i, a := range planned {
		for _, identity := range []string{a.Leader, a.Standby} {
			if identity != "" && !isReady(view, identity, i, len(planned)) {
				return true
			}
		}
	}
	return false
}

// assignedTo returns the shards that a member should lead or keep warm.
func assignedTo(planned plan.Plan, identity string) (shards []int) {
	for i, a := range planned {
		if a.Leader == identity || a.Standby == identity || a.Warming == identity {
			shards = append(shards, i)
		}
	}
	return shards
}
