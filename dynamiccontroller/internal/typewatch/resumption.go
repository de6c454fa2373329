package typewatch

import (
	"errors"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// maxEarlyRelists and earlyRelistPeriod limit the relists after a watch that was closed early to a burst, and then to one per
// period. Connections that are cut every minute must not cost a list every minute.
const (
	maxEarlyRelists   = 10
	earlyRelistPeriod = 5 * time.Minute
)

// errRelist ends an attempt whose watch must not be resumed without a list.
var errRelist = errors.New("the watch was closed early")

// resumption decides whether a watch that has ended is resumed or followed by a relist. All methods but listed are called by
// the goroutine that runs the watch.
type resumption struct {
	mu sync.Mutex // guards resumes
	// resumes: the next plain watch resumes a stream of this attempt. Otherwise it follows a list.
	resumes bool

	opened  time.Time     // when the last stream was requested
	timeout time.Duration // after which the API server closes it
	// relistDue: a watch was closed early, and the limiter has not allowed the relist yet.
	relistDue bool
	relists   *rate.Limiter
}

func newResumption() *resumption {
	return &resumption{relists: rate.NewLimiter(rate.Every(earlyRelistPeriod), maxEarlyRelists)}
}

// begin is called before the reflector lists and watches.
func (r *resumption) begin() {
	r.relistDue = false
	r.setResumes(false)
}

// listed is called after a list.
func (r *resumption) listed() { r.setResumes(false) }

// watching is called with the time of the request and the options of a watch that was opened.
func (r *resumption) watching(requested time.Time, options metav1.ListOptions) {
	r.opened, r.timeout = requested, time.Duration(ptr.Deref(options.TimeoutSeconds, 0))*time.Second
	r.setResumes(true)
}

func (r *resumption) setResumes(resumes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resumes = resumes
}

func (r *resumption) isResuming() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.resumes
}

// check is called with the options of the next plain watch and the time when the last one ended. It returns errRelist if that
// was before its timeout.
//
// An API server closes the watches of a custom resource about a second after its schema was changed. The change can alter
// every object, without events and without new resourceVersions. Mostly the API server then refuses to resume the watch, but
// not if the watch has delivered an event after the change. A lost connection looks the same, which is why relists are
// limited. While the limiter does not allow one, the timeout of the watch is shortened so that it ends when the limiter does.
func (r *resumption) check(options *metav1.ListOptions, ended time.Time) error {
	if !r.isResuming() {
		return nil
	}
	const skew = time.Second // tolerated between the API server's clock and the local one
	r.relistDue = r.relistDue || ended.Sub(r.opened) < r.timeout-skew
	if !r.relistDue {
		return nil
	}
	if r.relists.Allow() {
		return errRelist
	}
	reservation := r.relists.Reserve()
	wait := max(1, int64(math.Ceil(reservation.Delay().Seconds())))
	reservation.Cancel()
	if wait < ptr.Deref(options.TimeoutSeconds, math.MaxInt64) {
		options.TimeoutSeconds = &wait
	}
	return nil
}
