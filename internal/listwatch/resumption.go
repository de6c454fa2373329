package listwatch

import (
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
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

// ErrRelist is returned by the reflector when a list is required before the watch can continue.
var ErrRelist = errors.New("the watch was closed early")

// resumption determines whether a watch that has ended is resumed or followed by a relist. All methods except listed
// are called only from the goroutine that runs the watch.
type resumption struct {
	// resumes reports whether the next plain watch resumes an earlier watch of this attempt rather than continuing from a
	// list.
	resumes atomic.Bool

	opened  time.Time     // when the last stream was requested
	timeout time.Duration // the time after which the API server closes the stream
	// relistDue reports whether a watch was closed early and the limiters have not allowed the relist yet.
	relistDue bool
	relistAt  time.Time     // when the relist can be sent; zero if the type's limiter has not allowed it
	custom    bool          // the type may be a custom resource
	relists   *rate.Limiter // limits the relists of this type
	shared    *rate.Limiter // limits the relists of all types
}

// newResumption returns the resumption for a type in the group. The limiter shared limits the relists of all types
// together. If shared is nil, the type is not treated as a custom resource.
func newResumption(group string, shared *rate.Limiter) *resumption {
	return &resumption{
		// The API server requires a dot in the group of a CRD.
		custom:  shared != nil && strings.Contains(group, "."),
		relists: rate.NewLimiter(rate.Every(earlyRelistPeriod), maxEarlyRelists),
		shared:  shared,
	}
}

// NewRelistLimiter returns a limiter for the relists of all types after watches that were closed early.
func NewRelistLimiter() *rate.Limiter { return rate.NewLimiter(relistsPerSecond, relistBurst) }

// begin resets the state before an attempt.
func (r *resumption) begin() {
	r.relistDue, r.relistAt = false, time.Time{}
	r.resumes.Store(false)
}

// listed records a list. The next watch then does not resume an earlier watch.
func (r *resumption) listed() { r.resumes.Store(false) }

// watching records a watch that was opened: the time of its request, and its options.
func (r *resumption) watching(requested time.Time, options metav1.ListOptions) {
	r.opened, r.timeout = requested, time.Duration(ptr.Deref(options.TimeoutSeconds, 0))*time.Second
	r.resumes.Store(true)
}

// check must be called before the next plain watch is opened, with the options of that watch and the time when the
// previous watch ended. It returns ErrRelist if the previous watch ended before its timeout and a relist is allowed.
//
// An API server closes the watches of a custom resource about a second after its schema was changed. The change can
// alter every object, without events and without new resourceVersions. The API server then usually refuses to resume
// the watch. However, it resumes the watch if the watch has delivered an event since the change. In that case, a relist
// is needed. A lost connection looks the same, which is why relists are limited. Until the limiters allow a relist, the
// watch is resumed with a shorter timeout, so that it ends when a relist is allowed.
func (r *resumption) check(options *metav1.ListOptions, ended time.Time) error {
	if !r.custom || !r.resumes.Load() {
		return nil
	}
	const skew = time.Second // tolerated difference between the API server's clock and the local one
	r.relistDue = r.relistDue || ended.Sub(r.opened) < r.timeout-skew
	if !r.relistDue {
		return nil
	}
	delay := r.relistDelay(time.Now())
	if delay <= 0 {
		return ErrRelist
	}
	wait := int64(math.Ceil(delay.Seconds()))
	if wait < ptr.Deref(options.TimeoutSeconds, math.MaxInt64) {
		options.TimeoutSeconds = &wait
	}
	return nil
}

// relistDelay returns how long the relist has to wait. Once the type's limiter has allowed the relist, a slot in the
// shared limiter is reserved for it, so that the resumed watch does not end before the type's turn.
func (r *resumption) relistDelay(now time.Time) time.Duration {
	if r.relistAt.IsZero() {
		if !r.relists.AllowN(now, 1) {
			reservation := r.relists.ReserveN(now, 1)
			defer reservation.CancelAt(now)
			return reservation.DelayFrom(now)
		}
		r.relistAt = now.Add(r.shared.ReserveN(now, 1).DelayFrom(now))
	}
	return r.relistAt.Sub(now)
}
