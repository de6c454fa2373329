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
	active        bool
	shard         shards.Shard
	subscriptions map[*Subscription]struct{}
}

// NewActivity returns an activity without subscriptions.
func (p *Pool) NewActivity(active bool, shard shards.Shard) *Activity {
	return &Activity{pool: p, active: active, shard: shard, subscriptions: map[*Subscription]struct{}{}}
}

// Subscribe is like [Pool.Subscribe]. The subscription is active at the times of the activity.
func (a *Activity) Subscribe(options Options, observe func(State)) *Subscription {
	return a.pool.subscribe(options, observe, a)
}

// Set determines whether the subscriptions are active, including later ones, and to which shard their watches are
// narrowed. It does not block. The function wait waits until the subscriptions have the watches that follow from the
// last call to Set, and until the goroutines of the watches that they have left, and that no other subscription uses,
// have ended. It does not wait for moves that wait for a sync.
func (a *Activity) Set(active bool, shard shards.Shard) (wait func()) {
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	a.active, a.shard = active, shard
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

func (s *Subscription) isActiveLocked() bool { return s.activity == nil || s.activity.active }

// fitsLocked reports whether the subscription may use the watch with the options at present.
func (s *Subscription) fitsLocked(w *watch, options Options) bool {
	return w.idle != s.isActiveLocked() && (w.idle || w.key.Shard == s.narrowedLocked(options.Key).Shard)
}

// narrowedLocked returns the key of the watch that an active subscription uses.
func (s *Subscription) narrowedLocked(key Key) Key {
	if s.activity != nil && key.BucketLabel != "" {
		key.Shard = s.activity.shard
	}
	return key
}

// joinLocked returns the watch that the subscription must use with the options.
func (s *Subscription) joinLocked(options Options) *watch {
	if !s.isActiveLocked() {
		return newIdleWatch(s.pool, options.Key)
	}
	options.Key = s.narrowedLocked(options.Key)
	return s.pool.joinLocked(options)
}

// placeLocked moves the subscription to a watch that fits its activity, and does the same with a pending replacement.
// If this has not been completed and does not wait for a sync, it returns a channel that is closed at the next step.
func (s *Subscription) placeLocked() (moved <-chan struct{}) {
	if s.closed.Load() {
		return nil
	}
	view := s.view.Load()
	switch r := s.replacement; {
	case r == nil || s.fitsLocked(r.to, r.options):
	case r.isMove:
		s.dropLocked()
		s.pool.settleLocked(view.watch)
	default:
		former := r.to
		r.setTargetLocked(s.joinLocked(r.options))
		s.pool.leaveLocked(former, s)
	}
	if s.fitsLocked(view.watch, *view.options) {
		s.pool.startLocked(view.watch) // it may have been skipped when the session began
		return nil
	}
	if s.replacement == nil {
		r := s.replaceLocked(*view.options, s.joinLocked(*view.options), func() {}, func() {})
		r.isMove = true
		go r.run()
	}
	if s.isActiveLocked() && !view.watch.idle {
		return nil
	}
	return s.replacement.ended
}

// isWantedLocked reports whether an active subscription uses the watch, or waits for it. Those that are about to leave
// it do not count.
func (w *watch) isWantedLocked() bool {
	for s := range w.subscriptions {
		if s.fitsLocked(w, *s.view.Load().options) {
			return true
		}
	}
	return slices.ContainsFunc(*w.incoming.Load(), func(r *replacement) bool {
		return r.subscription.isActiveLocked()
	})
}
