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
	relisted time.Time
}

var errStale = errors.New("no changes of the leases are observed")

// check is called with each step of the member. The parameter renewed is the time of the last renewal that has
// succeeded. It reports whether the member has begun to observe nothing.
func (h *heartbeat) check(o Options, view *fleet.View, renewed time.Time) (lost bool) {
	now := time.Now()
	if renewed.IsZero() || now.Sub(renewed) > heartbeatPeriods*o.RetryPeriod {
		return false // the API server cannot be reached, and the view is not to blame
	}
	lag := renewed.Sub(view.Observed(o.Identity))
	if lag > heartbeatPeriods*o.RetryPeriod && now.Sub(h.relisted) > heartbeatPeriods*o.RetryPeriod {
		h.relisted = now
		view.Relist()
	}
	was := h.stale.Swap(lag > max(o.LeaseDuration, 2*heartbeatPeriods*o.RetryPeriod))
	return h.stale.Load() && !was
}
