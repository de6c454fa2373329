package typewatch

import (
	"slices"

	"github.com/dynamic-controller/engine/internal/shards"
)

// Activity is shared by subscriptions that are active at the same times. While they are not, they use no watches: each
// of them has an idle watch, whose store is empty and which sends no requests. An idle watch belongs to one
// subscription and is never synced. Nothing that a subscription has stored survives a period without activity.
//
//	active ── Set(false) ──▶ moves to an idle watch of its own ── Set(true) ──▶ joins a watch, as Subscribe does
//
// Both are replacements that do not wait for a sync. A pending [Subscription.Replace] takes effect with them, because
// the subscription then has no objects that the new watch could lack.
//
// An activity also has a shard, to which it narrows the watches of subscriptions with a BucketLabel. If the shard
// changes while the subscriptions are active, they move to other watches. These moves wait for a sync, unless the
// former watch has never synced.
//
// The methods of Activity are safe for concurrent use.
type Activity struct {
	pool *Pool

	// Guarded by pool.mu.
	presence      presence
	subscriptions map[*Subscription]struct{}
}

// presence is what subscriptions see of their activity. It is guarded by the pool's mu. A nil presence is that of a
// subscription that is always active, and whose watches are not narrowed.
type presence struct {
	active bool
	shard  shards.Shard
}

// NewActivity returns an activity without subscriptions.
func (p *Pool) NewActivity(active bool, shard shards.Shard) *Activity {
	return &Activity{pool: p, presence: presence{active, shard}, subscriptions: map[*Subscription]struct{}{}}
}

// Subscribe is like [Pool.Subscribe]. The subscription is active at the times of the activity.
func (a *Activity) Subscribe(options Options, observe func(State)) *Subscription {
	s := newSubscription(a.pool, observe)
	s.presence, s.onClose = &a.presence, func() { delete(a.subscriptions, s) }
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	a.subscriptions[s] = struct{}{}
	a.pool.subscribeLocked(s, options)
	return s
}

// Set determines whether the subscriptions are active, including later ones, and to which shard their watches are
// narrowed. It does not block. The function wait waits until the subscriptions have the watches that follow from the
// last call to Set, and until the goroutines of the watches that they have left, and that no other subscription uses,
// have ended. It does not wait for moves that wait for a sync.
func (a *Activity) Set(active bool, shard shards.Shard) (wait func()) {
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	a.presence = presence{active, shard}
	subs := make([]*Subscription, 0, len(a.subscriptions))
	for s := range a.subscriptions {
		s.placeLocked()
		subs = append(subs, s)
	}
	return func() {
		for _, s := range subs {
			s.awaitPlace()
		}
	}
}

func (a *presence) isActiveLocked() bool { return a == nil || a.active }

// narrowedLocked returns the key of the watch that an active subscription uses.
func (a *presence) narrowedLocked(key Key) Key {
	if a != nil && key.BucketLabel != "" {
		key.Shard = a.shard
	}
	return key
}

// fitsLocked reports whether a subscription may use the place at present for the watch that it requires.
func (a *presence) fitsLocked(at *place, required Key) bool {
	return at.idle != a.isActiveLocked() && (at.idle || at.watch.key.Shard == a.narrowedLocked(required).Shard)
}

// awaitPlace waits until the subscription has a watch that fits its activity, and until the watches that it has left
// have ended.
func (s *Subscription) awaitPlace() {
	for {
		s.pool.mu.Lock()
		moved, left := s.placeLocked(), slices.Clone(s.waitFor)
		s.pool.mu.Unlock()
		if moved != nil {
			<-moved
			continue
		}
		for _, ended := range left {
			<-ended
		}
		return
	}
}

// joinLocked returns the place that the subscription must use with the options.
func (s *Subscription) joinLocked(options Options) *place {
	if !s.presence.isActiveLocked() {
		return s.pool.newIdlePlaceLocked(options.Key)
	}
	options.Key = s.presence.narrowedLocked(options.Key)
	return s.pool.joinLocked(options)
}

// placeLocked moves the subscription to a watch that fits its activity, and does the same with a pending replacement.
// If this has not been completed and does not wait for a sync, it returns a channel that is closed at the next step.
func (s *Subscription) placeLocked() (moved <-chan struct{}) {
	if s.closed.Load() {
		return nil
	}
	at, required := s.current.Load().at, s.view.Load().options
	switch r := s.replacement; {
	case r == nil || s.presence.fitsLocked(r.to, r.options.Key):
	case r.isMove:
		s.dropLocked()
		s.pool.settleLocked(at)
	default:
		former := r.to
		r.setTargetLocked(s.joinLocked(r.options))
		s.pool.leaveLocked(former, s)
	}
	if s.presence.fitsLocked(at, required.Key) {
		s.pool.startLocked(at) // it may have been skipped when the session began
		return nil
	}
	if s.replacement == nil {
		s.moveLocked(s.joinLocked(*required))
	}
	if s.presence.isActiveLocked() && !at.idle {
		return nil
	}
	return s.replacement.ended
}
