package feed

import (
	"math"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// initialSync pauses the target until all of a feed's subscriptions have passed on their existing objects, so that
// these together trigger only one reconcile per object. There is no time limit for the primary subscription. Once its
// objects have been passed on, the limits below apply to the other subscriptions, and to a swap that is in progress. A
// swap also begins an initial sync, which lasts until the difference between the two watches has been passed on.
//
// It is guarded by the feed's lock. Its methods, except checkLocked, accept a nil receiver.
type initialSync struct {
	feed *Feed
	// waiting holds the last known state of each subscription whose existing objects have not been passed on. The phase
	// is empty until a state is known.
	waiting     map[*typewatch.Subscription]typewatch.State
	primaryDone time.Time // when the primary subscription's objects had been passed on; zero before that
	timer       *time.Timer
}

const (
	// maxSecondaryWait limits the wait for a list request that hangs, and for functions of a source that hang.
	maxSecondaryWait = 10 * time.Second
	// maxFailingWait limits the wait for a type whose requests fail. A rejected request is retried after one second. It
	// also limits the wait for a swap.
	maxFailingWait = 1100 * time.Millisecond
	// maxUnavailableWait limits the wait for a type that is forbidden or not found. Requests for a type return NotFound
	// for about 14 ms after its CRD becomes established. New RBAC rules take about as long to take effect.
	maxUnavailableWait = 250 * time.Millisecond
)

// beginInitialSyncLocked pauses the target until the primary subscription and the given ones have passed on their
// existing objects. The caller can then add more subscriptions to initialSync.waiting.
func (f *Feed) beginInitialSyncLocked(others []*typewatch.Subscription) {
	f.initialSync.stopLocked()
	f.target.Pause()
	f.initialSync = &initialSync{feed: f, waiting: map[*typewatch.Subscription]typewatch.State{f.primary: {}}}
	for _, sub := range others {
		f.initialSync.waiting[sub] = typewatch.State{}
	}
}

// observe records a change in the state of a secondary subscription.
func (f *Feed) observe(sec *secondary, state typewatch.State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.initialSync.observeLocked(sec.sub, state)
}

// observeCurrent records the state of a subscription when it begins to take part in the initial sync, because it may
// already be failing. A change that has been observed in the meantime is newer and stays recorded.
func (f *Feed) observeCurrent(sub *typewatch.Subscription) {
	state := sub.State() // without the lock, because the state is locked while observe is called
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := f.initialSync; i != nil && i.waiting[sub].Phase == "" {
		i.observeLocked(sub, state)
	}
}

// Observe must be called when the state of a subscription has changed for which [Feed.Attach] waits.
func (f *Feed) Observe(other *typewatch.Subscription, state typewatch.State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.initialSync.observeLocked(other, state)
}

// Finish must be called when a subscription for which [Feed.Attach] waits has passed on its existing objects.
func (f *Feed) Finish(other *typewatch.Subscription) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.initialSync.finishLocked(other)
}

func (i *initialSync) observeLocked(sub *typewatch.Subscription, state typewatch.State) {
	if i == nil {
		return
	}
	if _, waits := i.waiting[sub]; waits {
		i.waiting[sub] = state
		i.checkLocked()
	}
}

// finishLocked stops waiting for a subscription.
func (i *initialSync) finishLocked(sub *typewatch.Subscription) {
	if i == nil {
		return
	}
	if _, waits := i.waiting[sub]; !waits {
		return
	}
	delete(i.waiting, sub)
	if sub == i.feed.primary {
		i.primaryDone = time.Now()
	}
	i.checkLocked()
}

// checkLocked resumes the target if there is nothing left to wait for. Otherwise it sets the timer to the next
// deadline.
func (i *initialSync) checkLocked() {
	i.stopLocked()
	if i.primaryDone.IsZero() {
		return
	}
	next := time.Duration(math.MaxInt64)
	expired := func(since time.Time, limit time.Duration) bool {
		left := time.Until(since.Add(limit))
		if left > 0 {
			next = min(next, left)
		}
		return left <= 0
	}
	for sub, state := range i.waiting {
		limit, failed := failureLimits[state.Phase]
		if expired(i.primaryDone, maxSecondaryWait) || failed && expired(state.Since, limit) {
			delete(i.waiting, sub)
		}
	}
	waitsForSwap := i.feed.swap != nil && !expired(i.primaryDone, maxFailingWait)
	if len(i.waiting) == 0 && !waitsForSwap {
		i.feed.initialSync = nil
		i.feed.target.Resume()
		return
	}
	i.timer = time.AfterFunc(next, func() {
		i.feed.mu.Lock()
		defer i.feed.mu.Unlock()
		if i.feed.initialSync == i {
			i.checkLocked()
		}
	})
}

// IsWarm reports whether all caches are complete, except those of sources that cannot be listed. A process gives up
// another copy of the caches for one that is warm. Failed requests therefore count only after a long time, unless the
// reason is the same for all processes.
func (f *Feed) IsWarm() bool {
	if !f.HasSynced() && !cannotSync(f.primary) {
		return false
	}
	for _, sub := range f.Secondaries() {
		if !IsWarm(sub) {
			return false
		}
	}
	return true
}

// IsWarm is like [Feed.IsWarm], for a subscription that belongs to no feed.
func IsWarm(sub *typewatch.Subscription) bool { return sub.View().HasSynced() || cannotSync(sub) }

// cannotSync reports whether the requests of a subscription, or of the watch that replaces its current one, have failed
// for so long that its cache need not be complete.
func cannotSync(sub *typewatch.Subscription) bool {
	state, replaced := sub.Replacement()
	if !replaced {
		state = sub.State()
	}
	switch state.Phase {
	case typewatch.NotFound, typewatch.Forbidden:
		return time.Since(state.Since) >= maxUnavailableWait
	case typewatch.Failing:
		return time.Since(state.Since) >= maxColdFailure
	default:
		return false
	}
}

// maxColdFailure is the time after which a source whose requests fail counts as one that cannot be listed. A single
// failure, such as that of an API server that restarts, delays the first list by up to 30 seconds.
const maxColdFailure = time.Minute

// failureLimits maps the phase of a failing secondary to the maximum time that the initial sync waits for it.
var failureLimits = map[typewatch.Phase]time.Duration{
	typewatch.NotFound:  maxUnavailableWait,
	typewatch.Forbidden: maxUnavailableWait,
	typewatch.Failing:   maxFailingWait,
}

func (i *initialSync) stopLocked() {
	if i != nil && i.timer != nil {
		i.timer.Stop()
	}
}
