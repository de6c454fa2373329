package dynamiccontroller

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"k8s.io/client-go/util/workqueue"

	"github.com/dynamic-controller/engine/internal/protect"
)

// record holds the state of a key in a registration: the outcome of its last reconciles, and whether the next run must
// reconcile it. Keys whose last reconcile succeeded have no record.
type record struct {
	failures    int       // in a row
	requeues    int       // consecutive results of RequeueAfter without a delay
	lastError   string    // of the last failure
	parkedSince time.Time // zero unless the object is parked
	// pending reports whether the next run must reconcile the key even if the cache does not hold the object. It is set
	// if a run ends before it has reconciled the key.
	pending bool
}

// maxErrorLength bounds the length of the error text in a record, because a type can have any number of parked objects.
const maxErrorLength = 1024

// recordLocked returns the record of a key. If there is none, it creates one. It returns nil if the registration is
// closed.
func (r *registration) recordLocked(key string) *record {
	if r.closed {
		return nil
	}
	rec := r.records[key]
	if rec == nil {
		rec = &record{}
		r.records[key] = rec
	}
	return rec
}

// recordFailure records a failure of the object and returns the number of consecutive failures.
func (r *registration) recordFailure(key string, err error) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.recordLocked(key)
	if rec == nil {
		return 0
	}
	rec.failures++
	rec.requeues = 0
	rec.lastError = err.Error()
	if len(rec.lastError) > maxErrorLength {
		rec.lastError = rec.lastError[:maxErrorLength] + "..."
	}
	return rec.failures
}

// recordRequeue records that the handler returned RequeueAfter without a delay. It resets the number of failures.
func (r *registration) recordRequeue(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec := r.recordLocked(key); rec != nil {
		*rec = record{requeues: rec.requeues + 1, pending: rec.pending}
	}
}

// recordSuccess resets the number of failures.
func (r *registration) recordSuccess(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec := r.records[key]; rec != nil && rec.pending {
		*rec = record{pending: true}
	} else {
		delete(r.records, key)
	}
}

// park keeps the object out of the queue until its next event, resync or run.
func (r *registration) park(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec := r.recordLocked(key); rec != nil {
		rec.parkedSince = time.Now()
	}
}

// markPending makes the next run reconcile the key, even if the cache does not hold the object by then.
func (r *registration) markPending(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec := r.recordLocked(key); rec != nil {
		rec.pending = true
	}
}

// startRecordLocked is called when a reconcile of the key starts. If the object was parked, it no longer is, and its
// number of failures is reset.
func (r *registration) startRecordLocked(key string) {
	rec := r.records[key]
	if rec == nil {
		return
	}
	rec.pending = false
	if !rec.parkedSince.IsZero() || *rec == (record{}) {
		delete(r.records, key)
	}
}

// forgetParked drops the record of a parked object that was deleted.
func (r *registration) forgetParked(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec := r.records[key]; rec != nil && !rec.parkedSince.IsZero() {
		delete(r.records, key)
	}
}

// recordedKeys returns the keys that have a record, such as those of pending, failing and parked objects. A new run and
// a resync reconcile these keys whether or not the cache holds the objects.
func (r *registration) recordedKeys() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := make([]string, 0, len(r.records))
	for key := range r.records {
		keys = append(keys, key)
	}
	return keys
}

// summarizeRecords returns the numbers of failing and parked objects, and details of the most recently parked objects,
// in the order in which they were parked.
func (r *registration) summarizeRecords() (failing, parked int, newest []ParkedObject) {
	r.mu.Lock()
	for key, rec := range r.records {
		switch {
		case !rec.parkedSince.IsZero():
			newest = append(newest, ParkedObject{
				Key: key, Failures: rec.failures, LastError: rec.lastError, Since: rec.parkedSince,
			})
		case rec.failures > 0:
			failing++
		}
	}
	r.mu.Unlock()
	parked = len(newest)
	slices.SortFunc(newest, func(a, b ParkedObject) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Key, b.Key))
	})
	return failing, parked, slices.Clone(newest[max(0, parked-maxParkedDetails):])
}

// The retries of each type have a budget, so that a type whose objects all fail does not use up the capacity of the API
// server.
const (
	retriesPerSecond = 100
	retriesBurst     = 1000
)

// backoff is the default rate limiter of a registration. It doubles the delay with each consecutive failure. The number
// of failures is taken from the record of the key. All retries of the type share one budget. Random jitter of up to
// half of the delay is added, so that objects that failed at the same time are not retried at the same time. If the
// delay has reached the maximum, up to a quarter of it is subtracted instead.
//
// The limiters of client-go are not used, because its exponential limiter has no jitter, and the delays of its bucket
// limiter grow with every earlier failure.
type backoff struct {
	reg      *registration
	min, max time.Duration
	budget   *rate.Limiter
}

var _ limiter = (*backoff)(nil)

func newBackoff(reg *registration, config Config) *backoff {
	return &backoff{
		reg: reg, min: config.MinRetryDelay, max: config.MaxRetryDelay,
		budget: rate.NewLimiter(retriesPerSecond, retriesBurst),
	}
}

// When returns the delay of the next retry.
func (b *backoff) When(id ObjectIdentifiers) time.Duration {
	delay := b.exponential(b.NumRequeues(id))
	delay += rand.N(delay/2 + 1)
	reservation := b.budget.Reserve()
	delay = max(delay, reservation.Delay())
	if delay < b.max {
		return delay
	}
	reservation.Cancel() // a retry after the maximum delay does not use the budget
	return max(b.min, b.max-rand.N(b.max/4+1))
}

// exponential returns the delay, without jitter, after the given number of consecutive failures.
func (b *backoff) exponential(failures int) time.Duration {
	doublings := max(failures-1, 0)
	if doublings >= 62 {
		return b.max
	}
	if delay := b.min << doublings; delay>>doublings == b.min {
		return min(delay, b.max)
	}
	return b.max
}

// NumRequeues returns the number of consecutive failures, or of consecutive requeues without a delay.
func (b *backoff) NumRequeues(id ObjectIdentifiers) int {
	b.reg.mu.Lock()
	defer b.reg.mu.Unlock()
	if rec := b.reg.records[id.NamespacedKey]; rec != nil {
		return rec.failures + rec.requeues
	}
	return 0
}

// Forget does nothing, because the registration clears the record.
func (b *backoff) Forget(ObjectIdentifiers) {}

type limiter = workqueue.TypedRateLimiter[ObjectIdentifiers]

// limiterOf returns the rate limiter of the options, or the default one.
func (r *registration) limiterOf(o *serveOptions) limiter {
	if o.limiter == nil {
		return r.backoff
	}
	config := r.controller.config
	return checkedLimiter{limiter: o.limiter, log: r.log, min: config.MinRetryDelay, max: config.MaxRetryDelay}
}

// checkedLimiter wraps a user's rate limiter. It recovers from panics, and replaces delays that are not positive with
// the minimum delay.
type checkedLimiter struct {
	limiter
	log      logr.Logger
	min, max time.Duration
}

func (l checkedLimiter) When(id ObjectIdentifiers) (delay time.Duration) {
	if panicked := protect.Call(func() { delay = l.limiter.When(id) }); panicked != nil {
		l.report(panicked)
		return l.max
	}
	if delay <= 0 {
		return l.min
	}
	return delay
}

func (l checkedLimiter) Forget(id ObjectIdentifiers) {
	if panicked := protect.Call(func() { l.limiter.Forget(id) }); panicked != nil {
		l.report(panicked)
	}
}

func (l checkedLimiter) report(panicked *protect.Mistake) {
	l.log.Error(panicked, "Rate limiter panicked", keyStack, string(panicked.Stack))
}
