package typewatch

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

// Replace switches the subscription to different options for the same GVR. Until the watch for the new options has
// synced, the subscription reads from the current watch and its event handler receives the changes from that watch.
// Then, in this order:
//
//  1. [Subscription.View] returns the new watch and options.
//  2. onReplace is called.
//  3. The event handler is called once for each difference between the two stores. Old states have the old view, and
//     new states the new one.
//  4. onDelivered is called, but at most ten seconds after step 3 began.
//
// If the event handler does not wait for existing objects any longer, the changes that it has not received are
// delivered before the difference, with the old view. If it still waits, it is first called with a deletion for each
// object that only the old store holds. Then it is called with all existing objects. If the subscription has no event
// handler, step 3 is skipped.
//
// The new store is at least as recent as the old one, unless the API server's etcd was restored from a backup or the
// versions of the stores cannot be compared. If the new watch does not sync, the subscription keeps the current one. If
// the current watch has never synced, if the new options select the same watch, or if the subscription is not active
// (see [Activity]), the switch is immediate.
//
// Replace has no effect after Close. It cancels any pending replacement. The callbacks must not call methods of the
// pool or change a subscription, and should return quickly, because onReplace blocks two watches. If onReplace is
// running for an earlier replacement, Replace and CancelReplace may wait for it to return. Callers must therefore not
// hold any locks that this callback takes.
func (s *Subscription) Replace(options Options, onReplace, onDelivered func()) {
	p := s.pool
	p.mu.Lock()
	if s.closed.Load() {
		p.mu.Unlock()
		return
	}
	from, to := s.current.Load().at, s.joinLocked(options)
	if to == from {
		switched := s.switched
		s.setViewLocked(to, &options) // first, because dropLocked can move the subscription
		s.dropLocked()
		p.settleLocked(to)
		p.mu.Unlock()
		<-switched
		onReplace()
		onDelivered()
		return
	}
	r := s.replaceLocked(options, to, onReplace, onDelivered)
	p.mu.Unlock()
	if (to.idle || !from.watch.everListed.Load()) && s.attempt(r, true) {
		close(r.ended)
		return
	}
	go r.run()
}

// CancelReplace cancels a pending replacement. When it returns, onReplace is not running and will not be called.
func (s *Subscription) CancelReplace() {
	s.pool.mu.Lock()
	if s.replacement != nil && !s.replacement.isMove {
		s.dropLocked()
		s.pool.settleLocked(s.current.Load().at)
		s.placeLocked() // the replacement may have been the one that follows the activity
	}
	switched := s.switched
	s.pool.mu.Unlock()
	<-switched
}

// Replacement reports whether a replacement is pending, and returns the state of the new watch.
func (s *Subscription) Replacement() (State, bool) {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if s.replacement == nil || s.replacement.isMove {
		return State{}, false
	}
	return s.replacement.to.watch.state.snapshot(), true
}

// replaceLocked registers a replacement and cancels any pending one. The caller must start the replacement's goroutine.
func (s *Subscription) replaceLocked(options Options, to *place, onReplace, onDelivered func()) *replacement {
	r := &replacement{
		options: options, onReplace: onReplace, onDelivered: onDelivered, presence: s.presence, from: s.currentPlace,
		switched: make(chan struct{}), ended: make(chan struct{}),
	}
	r.attempt, r.relist = func() bool { return s.attempt(r, false) }, func() { s.relistTarget(r) }
	r.checks.Store(1) // for the goroutine that the caller starts
	r.setTargetLocked(to)
	former := s.replacement
	s.replacement = r // first, so that abandonLocked does not move the subscription
	s.abandonLocked(former)
	return r
}

// moveLocked starts a replacement with unchanged options.
func (s *Subscription) moveLocked(to *place) {
	r := s.replaceLocked(*s.view.Load().options, to, func() {}, func() {})
	r.isMove = true
	go r.run()
}

// dropLocked cancels the pending replacement, if any. If the subscription needs less than its watch stores, the pool
// can start another one.
func (s *Subscription) dropLocked() {
	r := s.replacement
	s.replacement = nil
	s.abandonLocked(r)
}

// abandonLocked ends a replacement that is no longer pending, or nil.
func (s *Subscription) abandonLocked(r *replacement) {
	if r == nil {
		return
	}
	r.check() // this check ends the replacement
	s.waitForLocked(r.ended)
	r.to.removeLocked(r)
	s.pool.leaveLocked(r.to, s)
	s.pool.config.Progress()
}

// relistTarget makes the new watch relist, unless the replacement is over.
func (s *Subscription) relistTarget(r *replacement) {
	s.pool.mu.Lock()
	pending, to := s.replacement == r, r.to.watch
	s.pool.mu.Unlock()
	if pending && to.listed.Load() {
		to.state.relist()
	}
}

// attempt switches the subscription if the new watch is ready, and reports whether the replacement is over. If atOnce
// is true, attempt neither waits for a lock nor for the existing objects to be delivered.
func (s *Subscription) attempt(r *replacement, atOnce bool) (over bool) {
	s.pool.mu.Lock()
	from, to, pending := s.current.Load().at, r.to, s.replacement == r
	s.pool.mu.Unlock()
	if !pending {
		return true
	}
	unlock := lockDelivery(from.watch, to.watch, !atOnce)
	if unlock == nil {
		return false
	}
	defer unlock()
	if s.current.Load().at != from {
		return true // this replacement was cancelled, and another one has switched
	}
	if to.idle {
		return s.switchOver(r, to, nil)
	}
	listed := to.watch.listed.Load() && !to.watch.isEmptied()
	if from.watch.everListed.Load() && !listed || atOnce && listed && s.handler != nil {
		return false
	}
	if !from.watch.everListed.Load() {
		return s.switchOver(r, to, nil)
	}
	if to.watch.isBehind(from.watch) {
		r.relistLater()
		return false
	}
	unusable, identified := to.watch.identify(from.watch)
	if !identified {
		r.relistLater()
		return false
	}
	return s.switchOver(r, to, unusable)
}

// lockDelivery acquires the delivery locks of two watches, which may be the same watch. It never waits for one lock
// while it holds the other, so that two goroutines cannot block each other. If wait is false and a lock is not
// available, lockDelivery returns nil.
func lockDelivery(a, b *watch, wait bool) (unlock func()) {
	for {
		if wait {
			a.delivery.Lock()
		} else if !a.delivery.TryLock() {
			return nil
		}
		if a == b {
			return a.delivery.Unlock
		}
		if b.delivery.TryLock() {
			return func() { a.delivery.Unlock(); b.delivery.Unlock() }
		}
		a.delivery.Unlock()
		if !wait {
			return nil
		}
		a, b = b, a
	}
}

// switchOver moves the subscription to the new place and delivers the difference. The new watch has received the
// unusable objects only in an unusable form. If its store can hold their states in the old watch, these are carried
// over. Otherwise, they count as deleted. The caller must hold the delivery locks of both watches.
func (s *Subscription) switchOver(r *replacement, at *place, unusable []string) (over bool) {
	p, from, to := s.pool, s.watch(), at.watch
	if !to.canHold(from) {
		unusable = nil
	}
	changes := s.differenceTo(to, unusable)
	p.mu.Lock()
	if s.replacement != r || r.to != at {
		defer p.mu.Unlock()
		return s.replacement != r
	}
	s.replacement, s.switched = nil, r.switched
	carriedOver := to.carryOver(from, unusable) // before listers use the new watch
	at.removeLocked(r)
	former := s.current.Load().at
	delete(former.subscriptions, s)
	at.subscriptions[s] = struct{}{}
	if at.idle {
		s.abandonPass()
		s.announced = false
	} else {
		s.leavePass()
	}
	options := r.options // so that the view does not keep the replacement in memory
	before, after := *s.view.Load(), s.setViewLocked(at, &options)
	s.setSynced(to.listed.Load())
	p.settleLocked(at)
	p.leaveLocked(former, s)
	p.mu.Unlock()

	for _, c := range carriedOver {
		to.notify(c) // the watch's other subscriptions
	}
	if s.handler != nil {
		from.detach(&s.listener)
		to.attached = append(to.attached, &s.listener)
	}
	if s.observe != nil && from.state.current.Load().Phase != to.state.current.Load().Phase {
		to.state.notify(s.observe)
	}
	r.onReplace()
	close(r.switched)
	for _, c := range changes {
		if !s.closed.Load() {
			s.deliver(newStoreChange(c).in(before, after))
		}
	}
	s.callDelivered(r.onDelivered)
	to.startPass()
	p.config.Progress()
	return true
}

// differenceTo returns what the event handler must receive when the subscription moves to another watch. The objects
// with the given keys are carried over. The caller must hold the delivery locks of both watches.
func (s *Subscription) differenceTo(to *watch, carriedOver []string) (changes []objects.Change) {
	from := s.watch()
	switch {
	case s.handler == nil || !to.listed.Load():
		return nil
	case s.announced:
		// Stores with different transforms cannot be compared.
		changes = from.store.Difference(to.store, from.shared && to.shared)
	default:
		changes = from.store.Deletions(to.store)
	}
	kept := sets.New(carriedOver...)
	return slices.DeleteFunc(changes, func(c objects.Change) bool { return c.New == nil && kept.Has(c.Key) })
}

// maxDelivery is the longest time for which a replacement waits for the delivery of the difference. It is exceeded if a
// user function hangs.
const maxDelivery = 10 * time.Second

// callDelivered calls onDelivered once everything has been delivered that the inbox holds now.
func (s *Subscription) callDelivered(onDelivered func()) {
	once := sync.OnceFunc(onDelivered)
	timer := time.AfterFunc(maxDelivery, once)
	if done := func() { timer.Stop(); once() }; !s.inbox.addFunc(done) {
		done()
	}
}
