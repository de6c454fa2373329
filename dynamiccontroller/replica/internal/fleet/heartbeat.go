package fleet

import (
	"errors"
	"sync/atomic"
	"time"
)

// HeartbeatPeriods is the time after which a member expects to observe its own renewal of its Lease, in multiples of
// RetryPeriod.
const HeartbeatPeriods = 5

// Heartbeat checks that a member's watch of the Leases delivers changes. Each member renews a Lease of its own every
// RetryPeriod, which the watch must show. If it does not, the Leases are listed. A leader of the fleet that observes
// nothing for LeaseDuration steps down, because it would plan for members that no longer exist. It then leaves the
// Lease to other members for a while; see [election.Machine.Expect].
//
// Check and ShouldResign are called by one goroutine. The other methods are safe for concurrent use.
type Heartbeat struct {
	stale atomic.Bool

	relisted  time.Time
	interval  time.Duration // between two lists; doubles until the watch delivers changes
	reachable time.Time     // since when the Lease has been renewed without an interruption, zero if it is not
	resigned  time.Time
}

// ErrStale is the reason why a leader of the fleet that observes nothing steps down.
var ErrStale = errors.New("no changes of the leases are observed")

// anotherMember stands for any member but this one, as the expected leader of the fleet.
const anotherMember = "(another member)"

// Expected returns the argument of [election.Machine.Expect]: another member while this one observes no changes.
func (h *Heartbeat) Expected() string {
	if h.IsStale() {
		return anotherMember
	}
	return ""
}

// IsStale reports whether the member observes no changes.
func (h *Heartbeat) IsStale() bool { return h.stale.Load() }

// Check reports whether the Leases must be listed again. The parameter renewed is the time of the last renewal that has
// succeeded, or zero, and observed the time at which the last one was observed.
func (h *Heartbeat) Check(c Config, now, renewed, observed time.Time) (relist bool) {
	period := HeartbeatPeriods * c.RetryPeriod
	switch {
	case renewed.IsZero() || now.Sub(renewed) > period: // the API server cannot be reached
		h.reachable = time.Time{}
		return false
	case h.reachable.IsZero():
		h.reachable = now
	}
	lag := min(renewed.Sub(observed), now.Sub(h.reachable))
	switch {
	case lag <= period:
		h.interval = period
	case now.Sub(h.relisted) > h.interval: // a list can take longer than the last interval
		h.relisted, h.interval = now, 2*h.interval
		relist = true
	}
	h.stale.Store(lag > max(c.LeaseDuration, 2*period))
	return relist
}

// ShouldResign reports whether the leader of the fleet must step down. If no other member acquires the Lease, this one
// leads again, and does not resign for some time.
func (h *Heartbeat) ShouldResign(c Config, now time.Time) bool {
	if !h.IsStale() || now.Sub(h.resigned) < LeaseFactor*c.LeaseDuration {
		return false
	}
	h.resigned = now
	return true
}
