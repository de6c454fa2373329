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
// nothing for LeaseDuration steps down, because it would plan for members that no longer exist.
type heartbeat struct {
	stale atomic.Bool

	// Used only by check.
	relisted  time.Time
	reachable time.Time // since when the Lease has been renewed without an interruption, zero if it is not
}

var errStale = errors.New("no changes of the leases are observed")

// check is called with each step of the member. The parameter renewed is the time of the last renewal that has
// succeeded. It reports whether the member has begun to observe nothing.
func (h *heartbeat) check(o Options, view *fleet.View, renewed time.Time) (lost bool) {
	now := time.Now()
	period := heartbeatPeriods * o.RetryPeriod
	switch {
	case renewed.IsZero() || now.Sub(renewed) > period: // the API server cannot be reached
		h.reachable = time.Time{}
		return false
	case h.reachable.IsZero():
		h.reachable = now
	}
	lag := min(renewed.Sub(view.Observed(o.Identity)), now.Sub(h.reachable))
	if lag > period && now.Sub(h.relisted) > period {
		h.relisted = now
		view.Relist()
	}
	was := h.stale.Swap(lag > max(o.LeaseDuration, 2*period))
	return h.stale.Load() && !was
}
