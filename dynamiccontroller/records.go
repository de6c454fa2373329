package dynamiccontroller

import (
	"cmp"
	"container/list"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/client-go/util/workqueue"
)

// record holds the outcome of a key's most recent reconciles. A key has no record if its last reconcile succeeded and
// the key is not pending.
type record struct {
	failures    int       // consecutive failures
	requeues    int       // consecutive requeues without a positive delay
	lastError   string    // text of the last failure
	parkedSince time.Time // zero unless the object is parked
	pending     bool      // the next run must reconcile the key even if it is not in the cache
	deleted     bool      // the predicate filtered out the delete event
	// absent is the key's element in the registration's list of parked objects that are not in the cache; otherwise nil.
	absent *list.Element
}

// maxAbsentParked limits the parked records of objects that are not in the cache, per type. Such a record would
// otherwise stay until the object is created again or the type is stopped. The record that was parked first is dropped.
// Whether the object is in the cache is determined when it is parked. If it is in the queue again when its record is
// dropped, it can be retried although its delete event was filtered out. Failing objects have no such limit.
const maxAbsentParked = 1000

// maxErrorLength limits the memory that a type with many parked objects uses for errors.
const maxErrorLength = 1024

// updateRecord replaces the record of a key with the result of update, and returns the new record.
func (r *registration) updateRecord(key string, update func(record) record) record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.updateRecordLocked(key, update)
}

func (r *registration) updateRecordLocked(key string, update func(record) record) record {
	if r.closed {
		return record{}
	}
	before := r.records[key]
	rec := update(before)
	if before.absent != nil && rec.absent != before.absent {
		r.absentParked.Remove(before.absent)
	}
	if rec == (record{}) {
		delete(r.records, key)
	} else {
		r.records[key] = rec
	}
	return rec
}

// started returns the record that replaces rec when a reconcile starts. It resets the failure count of a parked object.
func (rec record) started() record {
	if !rec.parkedSince.IsZero() {
		return record{}
	}
	rec.pending = false
	return rec
}

// recordFailure records a failure of the object and returns the number of consecutive failures.
func (r *registration) recordFailure(key string, err error) int {
	text := err.Error()
	if len(text) > maxErrorLength {
		text = text[:maxErrorLength] + "..."
	}
	return r.updateRecord(key, func(rec record) record {
		rec.failures, rec.requeues, rec.lastError = rec.failures+1, 0, text
		return rec
	}).failures
}

// recordRequeue records a RequeueAfter. It resets the failure count and counts requeues without a positive delay.
func (r *registration) recordRequeue(key string, after time.Duration) {
	r.updateRecord(key, func(rec record) record {
		next := record{pending: rec.pending, deleted: rec.deleted}
		if after <= 0 {
			next.requeues = rec.requeues + 1
		}
		return next
	})
}

// recordSuccess resets the failure count, including the one kept by a custom rate limiter.
func (r *registration) recordSuccess(key string) {
	r.updateRecord(key, func(rec record) record { return record{pending: rec.pending} })
	r.group.Forget(key)
}

// park records that the object must not be retried; see Handler.
func (r *registration) park(key string) {
	r.group.Forget(key)
	absent := !r.subscriptions.primary.View().Store().Has(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.updateRecordLocked(key, func(rec record) record {
		rec.parkedSince, rec.absent = time.Now(), nil
		if absent {
			rec.absent = r.absentParked.PushBack(key)
		}
		return rec
	})
	for r.absentParked.Len() > maxAbsentParked {
		oldest := r.absentParked.Front().Value.(string)
		r.updateRecordLocked(oldest, func(rec record) record { return record{pending: rec.pending} })
		r.log.V(1).Info("Parked object is not in the cache, dropped", keyObject, oldest)
	}
}

// recordDeletion must be called when an object has been deleted. If the predicate filtered out the delete event, a
// parked object is unparked, because no later event would do so. An object that is still in the queue is reconciled
// once, without retries.
func (r *registration) recordDeletion(key string, dropped bool) {
	queued := r.group.Has(key)
	r.updateRecord(key, func(rec record) record {
		if dropped && !rec.parkedSince.IsZero() {
			rec = record{}
		}
		rec.deleted = dropped && queued
		return rec
	})
}

// isDropped reports whether the object no longer exists and the predicate filtered out its delete event.
func (r *registration) isDropped(key string) bool {
	r.mu.Lock()
	deleted := r.records[key].deleted
	r.mu.Unlock()
	return deleted && !r.subscriptions.primary.View().Store().Has(key)
}

// markPending makes the next run reconcile the key even if it is not in the cache.
func (r *registration) markPending(key string) {
	r.updateRecord(key, func(rec record) record {
		rec.pending = true
		return rec
	})
}

// recordedKeys returns the keys that have a record.
func (r *registration) recordedKeys() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.records))
}

// allKeys returns the keys in the cache and the keys that have a record. No key is returned twice. If the caller added
// a key to the queue twice, a worker could reconcile the object in between, and then once more.
func (r *registration) allKeys() []string {
	missing := map[string]struct{}{}
	for _, key := range r.recordedKeys() {
		missing[key] = struct{}{}
	}
	keys := r.subscriptions.primary.View().Store().Keys()
	for _, key := range keys {
		delete(missing, key)
	}
	return slices.AppendSeq(keys, maps.Keys(missing))
}

// summarizeRecords returns the number of failing objects, the number of parked objects, and details of the most
// recently parked objects, oldest first.
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

// Each type has a retry budget, so that a type whose objects all fail does not overload the API server.
const (
	retriesPerSecond = 100
	retriesBurst     = 1000
)

type limiter = workqueue.TypedRateLimiter[ObjectIdentifiers]

// backoff is the default rate limiter of a registration; see Config.MinRetryDelay and WithRateLimiter. The number of
// failures is taken from the key's record. Jitter spreads out the retries of objects that failed at the same time.
//
// client-go's rate limiters are not used, because the exponential one has no jitter, and the bucket limiter's delays
// grow with each earlier failure.
type backoff struct {
	reg    *registration
	budget *rate.Limiter
}

func (b backoff) When(id ObjectIdentifiers) time.Duration {
	config := &b.reg.controller.config
	delay, doublings := config.MaxRetryDelay, max(b.NumRequeues(id)-1, 0)
	if config.MinRetryDelay <= delay>>doublings {
		delay = config.MinRetryDelay << doublings
	}
	if delay += rand.N(delay/2 + 1); delay < config.MaxRetryDelay {
		reservation := b.budget.Reserve()
		if delay = max(delay, reservation.Delay()); delay < config.MaxRetryDelay {
			return delay
		}
		reservation.Cancel() // a retry after the maximum delay does not use the budget
	}
	return max(config.MinRetryDelay, config.MaxRetryDelay-rand.N(config.MaxRetryDelay/4+1))
}

// NumRequeues returns the number of consecutive failures or requeues that count toward the backoff.
func (b backoff) NumRequeues(id ObjectIdentifiers) int {
	b.reg.mu.Lock()
	defer b.reg.mu.Unlock()
	rec := b.reg.records[id.NamespacedKey]
	return rec.failures + rec.requeues
}

// Forget does nothing, because the registration clears the record.
func (b backoff) Forget(ObjectIdentifiers) {}

// limiterOf returns the rate limiter set in the options, or the default one.
func (r *registration) limiterOf(o *serveOptions) limiter {
	if o.limiter == nil {
		return r.backoff
	}
	return checkedLimiter{limiter: o.limiter, reg: r}
}

// checkedLimiter wraps a custom rate limiter. It recovers from panics and replaces non-positive delays.
type checkedLimiter struct {
	limiter
	reg *registration
}

func (l checkedLimiter) When(id ObjectIdentifiers) (delay time.Duration) {
	config := &l.reg.controller.config
	if !callUserCode(l.reg.log, "Rate limiter panicked", func() { delay = l.limiter.When(id) }) {
		return config.MaxRetryDelay
	}
	if delay <= 0 {
		return config.MinRetryDelay
	}
	return delay
}

func (l checkedLimiter) Forget(id ObjectIdentifiers) {
	callUserCode(l.reg.log, "Rate limiter panicked", func() { l.limiter.Forget(id) })
}
