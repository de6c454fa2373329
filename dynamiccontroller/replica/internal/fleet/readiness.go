package fleet

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

// Readiness records whether a member of a fleet is ready. A member is ready once the shards that it should lead or
// keep warm have synced, and those of the other members. A rolling update then does not restart the next replica before
// all shards have two copies that can lead. A member that has become ready remains ready: it is assigned other shards
// all the time.
//
// Check is safe for concurrent use. Observe is called by one goroutine.
type Readiness struct {
	ready  atomic.Bool
	reason atomic.Pointer[string] // why the member is not ready, nil before the first observation

	// Used only by Observe.
	began  time.Time // of the first observation
	joined time.Time // when the member first observed itself in the fleet
}

// plannedPeriods is the time in which the fleet's leader takes a new member into account, in multiples of RetryPeriod.
const plannedPeriods = 2

// Check returns an error until the member is ready.
func (r *Readiness) Check() error {
	switch reason := r.reason.Load(); {
	case r.ready.Load():
		return nil
	case reason == nil:
		return errors.New("the fleet's lease has not been read")
	default:
		return errors.New(*reason)
	}
}

// Observe records what a member observes, and which shards it could lead.
func (r *Readiness) Observe(c Config, now time.Time, layout Layout, view *Snapshot, planned plan.Plan, synced []int) {
	if r.ready.Load() {
		return
	}
	if r.began.IsZero() {
		r.began = now
	}
	if _, known := view.Member(c.Identity); known && r.joined.IsZero() {
		r.joined = now
	}
	assigned := AssignedTo(planned, c.Identity)
	unsynced := slices.DeleteFunc(slices.Clone(assigned), func(i int) bool { return slices.Contains(synced, i) })
	reason := ""
	switch {
	case len(unsynced) > 0: // without a limit, as for other runnables
		reason = "shards have not synced: " + strings.Trim(strings.ReplaceAll(fmt.Sprint(unsynced), " ", ", "), "[]")
	case now.Sub(r.began) >= LeaseFactor*c.LeaseDuration: // nobody may ever plan
	case layout.State != LayoutFixed:
		reason = "the fleet's lease " + layout.String()
	case r.joined.IsZero():
		reason = "this replica has not joined the fleet"
	case view.hasColdCopies(planned):
		reason = "shards of other replicas have not synced"
	case view.Plan == "" || len(assigned) == 0 && now.Sub(r.joined) < plannedPeriods*c.RetryPeriod:
		reason = "the shards of this replica have not been planned"
	}
	r.ready.Store(reason == "")
	r.reason.Store(&reason)
}

// hasColdCopies reports whether a member that should lead a shard or stand by for it has not synced it. If the next
// replica were restarted then, the shard could lose its only synced copy.
func (s *Snapshot) hasColdCopies(planned plan.Plan) bool {
	for i, a := range planned {
		for _, identity := range []string{a.Leader, a.Standby} {
			if identity != "" && !s.IsReady(identity, i, len(planned)) {
				return true
			}
		}
	}
	return false
}

// AssignedTo returns the shards that a member should lead or keep warm.
func AssignedTo(planned plan.Plan, identity string) (shards []int) {
	for i, a := range planned {
		if a.Leader == identity || a.Standby == identity || a.Warming == identity {
			shards = append(shards, i)
		}
	}
	return shards
}
