package replica

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
)

// heartbeatPeriods is the time after which a member expects to observe its own renewal of its Lease, in multiples of
// RetryPeriod.
const heartbeatPeriods = 5

// heartbeat checks that a member's watch of the Leases delivers changes. Each member renews a Lease of its own every
// RetryPeriod, which the watch must show. If it does not, the Leases are listed. A leader of the fleet that observes
// nothing for LeaseDuration steps down, because it would plan for members that no longer exist. It then leaves the
// Lease to other members for a while; see [election.Machine.Expect].
type heartbeat struct {
	stale atomic.Bool

	// Used only by check.
	relisted  time.Time
	interval  time.Duration // between two lists; doubles until the watch delivers changes
	reachable time.Time     // since when the Lease has been renewed without an interruption, zero if it is not
}

var errStale = errors.New("no changes of the leases are observed")

// anotherMember stands for any member but this one, as the expected leader of the fleet.
const anotherMember = "(another member)"

// expected returns the argument of [election.Machine.Expect]: another member while this one observes no changes.
func (h *heartbeat) expected() string {
	if h.stale.Load() {
		return anotherMember
	}
	return ""
}

// check is called with each step of the member. The parameter renewed is the time of the last renewal that has
// succeeded.
func (h *heartbeat) check(o Options, view *fleet.View, renewed time.Time) {
	now := time.Now()
	period := heartbeatPeriods * o.RetryPeriod
	switch {
	case renewed.IsZero() || now.Sub(renewed) > period: // the API server cannot be reached
		h.reachable = time.Time{}
		return
	case h.reachable.IsZero():
		h.reachable = now
	}
	lag := min(renewed.Sub(view.Observed(o.Identity)), now.Sub(h.reachable))
	switch {
	case lag <= period:
		h.interval = period
	case now.Sub(h.relisted) > h.interval: // a list can take longer than the last interval
		h.relisted, h.interval = now, 2*h.interval
		view.Relist()
	}
	h.stale.Store(lag > max(o.LeaseDuration, 2*period))
}
