package typewatch

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

// replacement moves a subscription to another watch. The current watch stays in use until the new watch has synced and
// has caught up with the current one. Then the subscription switches, the difference is delivered, and the old watch
// ends unless another subscription uses it.
//
// A separate goroutine checks whether the subscription can switch, because the check needs the delivery locks of both
// watches. The goroutine ends when there is nothing left to check.
type replacement struct {
	subscription *Subscription
	options      Options
	onReplace    func()        // called before the event handler is called with the difference
	onDelivered  func()        // called afterwards
	isMove       bool          // created by the pool, with unchanged options
	checks       atomic.Int64  // checks requested since the goroutine started; 0 if it is not running
	switched     chan struct{} // closed when the call to onReplace has returned
	ended        chan struct{} // closed when the replacement is over

	to *watch // guarded by pool.mu

	// Used only by the goroutine that checks whether the subscription can switch.
	relists  *time.Timer   // makes the new watch relist; nil if that watch has never been behind
	relistAt time.Time     // when the timer fires
	lag      time.Duration // the delay of the timer
}

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
	w, to := s.view.Load().watch, s.joinLocked(options)
	if to == w {
		switched := s.switched
		s.dropLocked()
		s.setViewLocked(w, &options)
		p.settleLocked(w)
		p.mu.Unlock()
		<-switched
		onReplace()
		onDelivered()
		return
	}
	r := s.replaceLocked(options, to, onReplace, onDelivered)
	p.mu.Unlock()
	if (to.idle || !w.everListed.Load()) && r.attempt(true) {
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
		s.pool.settleLocked(s.view.Load().watch)
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
	return s.replacement.to.state.snapshot(), true
}

// replaceLocked registers a replacement and cancels any pending one. The caller must start the replacement's goroutine.
func (s *Subscription) replaceLocked(options Options, to *watch, onReplace, onDelivered func()) *replacement {
	r := &replacement{
		subscription: s, options: options, onReplace: onReplace, onDelivered: onDelivered,
		switched: make(chan struct{}), ended: make(chan struct{}),
	}
	r.checks.Store(1) // for the goroutine that the caller starts
	r.setTargetLocked(to)
	s.dropLocked()
	s.replacement = r
	return r
}

// dropLocked cancels the pending replacement, if any.
func (s *Subscription) dropLocked() {
	r := s.replacement
	if r == nil {
		return
	}
	s.replacement = nil
	r.check() // this check ends the replacement
	s.waitForLocked(r.ended)
	r.leaveTargetLocked()
	s.pool.leaveLocked(r.to, s)
	s.pool.config.Progress()
}

func (r *replacement) setTargetLocked(to *watch) {
	if r.to != nil {
		r.leaveTargetLocked()
	}
	r.to = to
	r.subscription.pool.config.Progress()
	incoming := append(slices.Clone(*to.incoming.Load()), r)
	to.incoming.Store(&incoming)
	r.check()
}

func (r *replacement) leaveTargetLocked() {
	incoming := slices.Clone(*r.to.incoming.Load())
	incoming = slices.DeleteFunc(incoming, func(other *replacement) bool { return other == r })
	r.to.incoming.Store(&incoming)
}

// check triggers an attempt to switch the subscription. It does not block.
func (r *replacement) check() {
	if r.checks.Add(1) == 1 {
		go r.run()
	}
}

// run repeats the check until no more checks are requested. When the replacement is over, run keeps the count of
// requested checks above zero. This prevents check from starting another goroutine.
func (r *replacement) run() {
	over := true
	defer func() {
		if over && r.relists != nil {
			r.relists.Stop()
		}
		if over {
			close(r.ended)
		}
	}()
	for over {
		checks := r.checks.Load()
		if r.attempt(false) {
			return
		}
		over = !r.checks.CompareAndSwap(checks, 0)
	}
}

// If a new watch has synced but has not caught up with the current watch, it relists after a delay between minLag and
// maxLag. This is needed because a watch with different selectors might not receive the event that would let it catch
// up, and bookmarks are sent only about once a minute.
const (
	minLag = time.Second
	maxLag = time.Minute
)

// relistLater makes the new watch relist after a delay.
func (r *replacement) relistLater() {
	if now := time.Now(); now.After(r.relistAt) {
		r.lag = min(max(2*r.lag, minLag), maxLag)
		r.relistAt = now.Add(r.lag)
		r.relists = time.AfterFunc(r.lag, r.relist)
	}
}

func (r *replacement) relist() {
	s := r.subscription
	s.pool.mu.Lock()
	relists := s.replacement == r && r.to.listed.Load()
	state := r.to.state
	s.pool.mu.Unlock()
	if relists {
		state.relist()
	}
}

// attempt switches the subscription if the new watch is ready, and reports whether the replacement is over. If atOnce
// is true, attempt neither waits for a lock nor for the existing objects to be delivered.
func (r *replacement) attempt(atOnce bool) (over bool) {
	s, p := r.subscription, r.subscription.pool
	p.mu.Lock()
	from, to, pending := s.view.Load().watch, r.to, s.replacement == r
	p.mu.Unlock()
	if !pending {
		return true
	}
	unlock := lockDelivery(from, to, !atOnce)
	if unlock == nil {
		return false
	}
	defer unlock()
	if s.view.Load().watch != from {
		return true // this replacement was cancelled, and another one has switched
	}
	if to.idle {
		return r.switchOver(from, to, nil)
	}
	listed := to.listed.Load() && !to.isEmptied()
	if from.everListed.Load() && !listed || atOnce && listed && s.handler != nil {
		return false
	}
	if !from.everListed.Load() {
		return r.switchOver(from, to, nil)
	}
	if to.isBehind(from) {
		r.relistLater()
		return false
	}
	unusable, identified := to.identify(from)
	if !identified {
		r.relistLater()
		return false
	}
	return r.switchOver(from, to, unusable)
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

// switchOver moves the subscription from one watch to the other and delivers the difference. The new watch has received
// the unusable objects only in an unusable form. If its store can hold their states in the old watch, these are carried
// over. Otherwise, they count as deleted. The caller must hold the delivery locks of both watches.
func (r *replacement) switchOver(from, to *watch, unusable []string) (over bool) {
	s, p := r.subscription, r.subscription.pool
	var changes []objects.Change
	switch {
	case s.handler == nil || !to.listed.Load():
	case s.announced:
		// Stores with different transforms cannot be compared.
		changes = from.store.Difference(to.store, from.shared && to.shared)
	default:
		changes = from.store.Deletions(to.store)
	}
	if !to.canHold(from) {
		unusable = nil
	}
	kept := sets.New(unusable...)
	changes = slices.DeleteFunc(changes, func(c objects.Change) bool { return c.New == nil && kept.Has(c.Key) })
	p.mu.Lock()
	if s.replacement != r || r.to != to {
		defer p.mu.Unlock()
		return s.replacement != r
	}
	s.replacement, s.switched = nil, r.switched
	carriedOver := to.carryOver(from, unusable) // before listers use the new watch
	r.leaveTargetLocked()
	delete(from.subscriptions, s)
	to.subscriptions[s] = struct{}{}
	if to.idle {
		s.abandonPass()
		s.announced = false
	} else {
		s.leavePass()
	}
	before, after := *s.view.Load(), s.setViewLocked(to, &r.options)
	s.setSynced(to.listed.Load())
	p.settleLocked(to)
	p.leaveLocked(from, s)
	p.mu.Unlock()

	for _, c := range carriedOver {
		to.notify(c) // the watch's other subscriptions
	}
	if s.handler != nil {
		from.attached = slices.DeleteFunc(from.attached, func(other *Subscription) bool { return other == s })
		to.attached = append(to.attached, s)
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
	r.delivered()
	to.startPass()
	p.config.Progress()
	return true
}

// maxDelivery is the longest time for which a replacement waits for the delivery of the difference. It is exceeded if a
// user function hangs.
const maxDelivery = 10 * time.Second

// delivered calls onDelivered once the difference has been delivered.
func (r *replacement) delivered() {
	once := sync.OnceFunc(r.onDelivered)
	timer := time.AfterFunc(maxDelivery, once)
	if done := func() { timer.Stop(); once() }; !r.subscription.inbox.addFunc(done) {
		done()
	}
}
