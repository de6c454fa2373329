package typewatch

import (
	"context"
	"slices"
)

// place is a watch and what uses it. The fields that change are guarded by the pool's mu.
type place struct {
	watch *watch
	idle  bool // for one subscription that is not active; see Activity

	subscriptions map[*Subscription]struct{}
	incoming      []*replacement     // of subscriptions that wait for the watch
	fails         bool               // requests fail, and no complete list has been received in this session
	closed        bool               // nothing uses the watch
	startedIn     *session           // the session in which the watch was last started
	cancel        context.CancelFunc // ends the goroutine
	done          chan struct{}      // closed when the last goroutine has returned
}

func newPlace() *place {
	return &place{subscriptions: map[*Subscription]struct{}{}, done: closedChannel}
}

// addLocked adds a replacement that waits for the watch.
func (at *place) addLocked(r *replacement) {
	at.setIncomingLocked(append(slices.Clone(at.incoming), r))
}

// removeLocked removes a replacement, if the place has it.
func (at *place) removeLocked(r *replacement) {
	others := slices.Clone(at.incoming)
	at.setIncomingLocked(slices.DeleteFunc(others, func(other *replacement) bool { return other == r }))
}

func (at *place) setIncomingLocked(incoming []*replacement) {
	at.incoming = incoming
	waiters := make([]waiter, len(incoming))
	for i, r := range incoming {
		waiters[i] = r
	}
	at.watch.waiters.Store(&waiters)
}

func watchesOf(places []*place) []*watch {
	watches := make([]*watch, len(places))
	for i, at := range places {
		watches[i] = at.watch
	}
	return watches
}

// isWantedLocked reports whether an active subscription uses the watch, or waits for it. Those that are about to leave
// it do not count.
func isWantedLocked(at *place) bool {
	for s := range at.subscriptions {
		if s.presence.fitsLocked(at, s.view.Load().options.Key) {
			return true
		}
	}
	return slices.ContainsFunc(at.incoming, func(r *replacement) bool { return r.presence.isActiveLocked() })
}

// hasSecondaryLocked reports whether a change to the watch's objects reconciles objects of another type.
func hasSecondaryLocked(at *place) bool {
	for s := range at.subscriptions {
		if s.view.Load().options.Secondary {
			return true
		}
	}
	return slices.ContainsFunc(at.incoming, func(r *replacement) bool { return r.options.Secondary })
}
