package dynamiccontroller

import (
	"math"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// initialSync pauses a registration's group in the queue until all of the registration's subscriptions have delivered
// their initial lists, so that these lists together trigger only one reconcile per object. There is no time limit for
// the primary subscription. Once its list has been delivered, the limits below apply to the other subscriptions. A swap
// also begins an initial sync, which lasts until the difference between the two watches has been delivered.
//
// It is guarded by the subscription set's lock. finishLocked and stopLocked accept a nil receiver.
type initialSync struct {
	set *subscriptionSet
	// waiting holds the last known state of each subscription whose initial list has not been delivered.
	waiting     map[*typewatch.Subscription]typewatch.State
	primaryDone time.Time // when the primary subscription delivered its list; zero before that
	swapPending bool      // whether to wait, for up to maxFailingWait, for a pending swap to add its watches
	timer       *time.Timer
}

const (
	// maxSecondaryWait limits the wait for a list request that hangs.
	maxSecondaryWait = 10 * time.Second
	// maxFailingWait limits the wait for a type whose requests fail. A rejected request is retried after one second.
	maxFailingWait = 1100 * time.Millisecond
	// maxUnavailableWait limits the wait for a type that is forbidden or not found. Requests for a type return NotFound
	// for about 14 ms after its CRD becomes established. New RBAC rules take about as long to take effect.
	maxUnavailableWait = 250 * time.Millisecond
)

// beginInitialSyncLocked pauses the group until the primary subscription and the given secondaries have delivered their
// initial lists. The caller can then add more subscriptions to initialSync.waiting.
func (s *subscriptionSet) beginInitialSyncLocked(secondaries []*secondary) {
	s.initialSync.stopLocked()
	s.reg.group.Pause()
	s.initialSync = &initialSync{
		set: s, swapPending: s.pending != nil, waiting: map[*typewatch.Subscription]typewatch.State{s.primary: {}},
	}
	for _, sec := range secondaries {
		s.initialSync.waiting[sec.sub] = typewatch.State{}
	}
}

// delivered records that a subscription has delivered its initial list.
func (s *subscriptionSet) delivered(sub *typewatch.Subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.initialSync.finishLocked(sub)
}

// observe records a change in the state of a secondary subscription.
func (s *subscriptionSet) observe(sec *secondary, state typewatch.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.initialSync; i != nil {
		if _, waits := i.waiting[sec.sub]; waits {
			i.waiting[sec.sub] = state
			i.checkLocked()
		}
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
	if sub == i.set.primary {
		i.primaryDone = time.Now()
	}
	i.checkLocked()
}

// checkLocked resumes the group if there is nothing left to wait for. Otherwise it sets the timer to the next deadline.
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
	i.swapPending = i.swapPending && !expired(i.primaryDone, maxFailingWait)
	if len(i.waiting) == 0 && !i.swapPending {
		i.set.initialSync = nil
		i.set.reg.group.Resume()
		return
	}
	i.timer = time.AfterFunc(next, func() {
		i.set.mu.Lock()
		defer i.set.mu.Unlock()
		if i.set.initialSync == i {
			i.checkLocked()
		}
	})
}

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
