package listwatch

import (
	"time"

	"golang.org/x/time/rate"
)

// maxEarlyRelists and earlyRelistPeriod limit the relists of one type after watches that were closed early. They
// allow a burst of maxEarlyRelists relists, and then one per earlyRelistPeriod. Without the limit, a connection that
// is cut every minute would cause a list every minute.
const (
	maxEarlyRelists   = 10
	earlyRelistPeriod = 5 * time.Minute
)

// relistsPerSecond and relistBurst limit the early relists of all types together. The limit is needed because all
// watches end when a shared HTTP/2 connection is cut.
const (
	relistsPerSecond = 20
	relistBurst      = 20
)

// NewRelistLimiter returns a limiter for the relists of all types after watches that were closed early.
func NewRelistLimiter() *rate.Limiter { return rate.NewLimiter(relistsPerSecond, relistBurst) }

// earlyRelists decides when a custom resource is relisted after its watch was closed early. With a RelistStore, the
// watch is resumed at once, and the list is requested next to it. With another store, the list is requested first.
// Until it is allowed, the watch is resumed with a shorter timeout.
//
// An API server closes the watches of a custom resource about a second after its schema was changed. The change can
// alter every object, without events and without new resourceVersions. The API server then usually refuses to resume
// the watch. However, it resumes the watch if the watch has delivered an event since the change. In that case, a relist
// is needed. A lost connection looks the same, which is why relists are limited, and why changes must not wait for
// them: a list of 200,000 objects takes 30 seconds or more.
type earlyRelists struct {
	due    bool          // a relist was requested and has not been allowed yet
	at     time.Time     // when the relist can be sent; zero if the type's limiter has not allowed it
	own    *rate.Limiter // limits the relists of this type; nil if the type is not a custom resource
	shared *rate.Limiter // limits the relists of all types
}

// request requests a relist.
func (e *earlyRelists) request() { e.due = e.own != nil }

// reset is called when a list is complete. A requested relist is then no longer needed.
func (e *earlyRelists) reset() { e.due, e.at = false, time.Time{} }

// cut is called when an allowed relist has ended with its watch. The next one must be allowed again, so that a
// connection that is cut often does not cause more lists.
func (e *earlyRelists) cut() { e.at = time.Time{} }

// wait returns how long a requested relist has to wait, and whether there is one. Once the type's limiter has allowed
// the relist, a slot in the shared limiter is reserved for it, so that the resumed watch does not end before the type's
// turn.
func (e *earlyRelists) wait(now time.Time) (delay time.Duration, due bool) {
	if !e.due {
		return 0, false
	}
	if e.at.IsZero() {
		if !e.own.AllowN(now, 1) {
			reservation := e.own.ReserveN(now, 1)
			defer reservation.CancelAt(now)
			return reservation.DelayFrom(now), true
		}
		e.at = now.Add(e.shared.ReserveN(now, 1).DelayFrom(now))
	}
	return e.at.Sub(now), true
}
