package dynamiccontroller

import (
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// initialSync pauses a registration's group in the queue until the initial lists of its subscriptions have been
// delivered. Each object is then reconciled only once for all of these lists. The wait for the primary subscription has
// no limit. The wait for a secondary subscription ends once that subscription has been failing for some time, and no
// later than maxSecondaryWait after the primary subscription has delivered its list. If a swap is pending when a run
// starts, initialSync also waits for the swap, but no longer than maxFailingWait after the primary subscription has
// delivered its list.
//
// It is guarded by the lock of the subscription set. If the initialSync is nil, finishLocked and stopLocked do nothing.
type initialSync struct {
	set *subscriptionSet
	// waiting holds the subscriptions whose initial list has not been delivered, together with their last reported
	// states.
	waiting map[*typewatch.Subscription]typewatch.State
	// primaryDone is the time when the list of the primary subscription was delivered. It is zero before that.
	primaryDone time.Time
	swapPending bool // also wait for a swap that was requested before the run
	timer       *time.Timer
}

const (
	// maxSecondaryWait bounds the wait for a list that hangs.
	maxSecondaryWait = 10 * time.Second
	// maxUnavailableWait bounds the wait for a type that is not found or forbidden. After a CRD has been established,
	// requests for its type return NotFound for about 14 ms. RBAC takes about ten milliseconds to permit a request.
	maxUnavailableWait = 250 * time.Millisecond
	// maxFailingWait bounds the wait for a type that fails for another reason. A rejected request is retried after a
	// second.
	maxFailingWait = 1100 * time.Millisecond
)

// beginInitialSyncLocked pauses the group until the primary and the secondary subscriptions have delivered their
// initial lists.
func (s *subscriptionSet) beginInitialSyncLocked() {
	s.initialSync.stopLocked()
	s.reg.group.Pause()
	s.initialSync = &initialSync{
		set: s, swapPending: s.pending != nil, waiting: map[*typewatch.Subscription]typewatch.State{s.primary: {}},
	}
	for _, sec := range s.secondaries {
		s.initialSync.waiting[sec.sub] = typewatch.State{}
	}
}

// delivered is called when a subscription has delivered its initial list.
func (s *subscriptionSet) delivered(sub *typewatch.Subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.initialSync.finishLocked(sub)
}

// observe is called when the state of a secondary subscription has changed.
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
	now, next := time.Now(), time.Time{}
	expired := func(deadline time.Time) bool {
		if !deadline.After(now) {
			return true
		}
		if next.IsZero() || deadline.Before(next) {
			next = deadline
		}
		return false
	}
	for sub, state := range i.waiting {
		if expired(i.deadline(state)) {
			delete(i.waiting, sub)
		}
	}
	i.swapPending = i.swapPending && !expired(i.primaryDone.Add(maxFailingWait))
	if len(i.waiting) == 0 && !i.swapPending {
		i.set.initialSync = nil
		i.set.reg.group.Resume()
		return
	}
	i.timer = time.AfterFunc(next.Sub(now), func() {
		i.set.mu.Lock()
		defer i.set.mu.Unlock()
		if i.set.initialSync == i {
			i.checkLocked()
		}
	})
}

// deadline returns the time at which the wait for a secondary subscription in the given state ends.
func (i *initialSync) deadline(state typewatch.State) time.Time {
	deadline := i.primaryDone.Add(maxSecondaryWait)
	switch state.Phase {
	case typewatch.NotFound, typewatch.Forbidden:
		return earlier(deadline, state.Since.Add(maxUnavailableWait))
	case typewatch.Failing:
		return earlier(deadline, state.Since.Add(maxFailingWait))
	default:
		return deadline
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// stopLocked stops the timer.
func (i *initialSync) stopLocked() {
	if i != nil && i.timer != nil {
		i.timer.Stop()
	}
}
