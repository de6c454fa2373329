package typewatch

import "slices"

// Activity is shared by subscriptions that are active at the same times. While they are not, they use no watches: each
// of them has an idle watch, whose store is empty and which sends no requests. An idle watch belongs to one
// subscription and is never synced. Nothing that a subscription has stored survives a period without activity.
//
//	active ── Set(false) ──▶ moves to an idle watch of its own ── Set(true) ──▶ joins a watch, as Subscribe does
//
// Both are replacements that do not wait for a sync. A pending [Subscription.Replace] takes effect with them, because
// the subscription then has no objects that the new watch could lack. Its methods are safe for concurrent use.
type Activity struct {
	pool *Pool

	// Guarded by pool.mu.
	active        bool
	subscriptions map[*Subscription]struct{}
}

// NewActivity returns an activity without subscriptions.
func (p *Pool) NewActivity(active bool) *Activity {
	return &Activity{pool: p, active: active, subscriptions: map[*Subscription]struct{}{}}
}

// Subscribe is like [Pool.Subscribe]. The subscription is active at the times of the activity.
func (a *Activity) Subscribe(options Options, observe func(State)) *Subscription {
	return a.pool.subscribe(options, observe, a)
}

// Set determines whether the subscriptions are active, including later ones. It does not block. The function wait waits
// until the subscriptions have the watches that follow from the last call to Set, and until the goroutines of the
// watches that they have left, and that no other subscription uses, have ended.
func (a *Activity) Set(active bool) (wait func()) {
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	a.active = active
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

// fitsLocked reports whether the subscription may use the watch at present.
func (s *Subscription) fitsLocked(w *watch) bool { return w.idle != s.isActiveLocked() }

// joinLocked returns the watch that the subscription must use with the options.
func (s *Subscription) joinLocked(options Options) *watch {
	if !s.isActiveLocked() {
		return newIdleWatch(s.pool, options.Key)
	}
	return s.pool.joinLocked(options)
}

// placeLocked moves the subscription to a watch that fits its activity, and does the same with a pending replacement.
// If this has not been completed, it returns a channel that is closed at the next step.
func (s *Subscription) placeLocked() (moved <-chan struct{}) {
	if s.closed.Load() {
		return nil
	}
	view := s.view.Load()
	switch r := s.replacement; {
	case r == nil || s.fitsLocked(r.to):
	case r.isMove:
		s.dropLocked()
		s.pool.settleLocked(view.watch)
	default:
		former := r.to
		r.setTargetLocked(s.joinLocked(r.options))
		s.pool.leaveLocked(former, s)
	}
	if s.fitsLocked(view.watch) {
		s.pool.startLocked(view.watch) // it may have been skipped when the session began
		return nil
	}
	if s.replacement == nil {
		r := s.replaceLocked(*view.options, s.joinLocked(*view.options), func() {}, func() {})
		r.isMove = true
		go r.run()
	}
	return s.replacement.ended
}

// isWantedLocked reports whether an active subscription uses the watch, or waits for it.
func (w *watch) isWantedLocked() bool {
	for s := range w.subscriptions {
		if s.isActiveLocked() {
			return true
		}
	}
	return slices.ContainsFunc(*w.incoming.Load(), func(r *replacement) bool {
		return r.subscription.isActiveLocked()
	})
}
