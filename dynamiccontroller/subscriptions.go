package dynamiccontroller

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// subscriptionSet holds the subscriptions of a registration: a primary one to its own type, and a secondary one for
// each watch on another type.
//
//	             attach                       initial sync done
//	detached ─────────────▶ initial sync ───────────────────────────▶ delivering
//	    ▲               (the queue is paused) ◀───────────────────────────┤
//	    │                         │              a swap takes effect      │
//	    └─────────────────────────┴────── detach: the run ends ───────────┘
//
// While the set is detached, the subscriptions keep the caches up to date, but nothing is queued. During the initial
// sync, keys are queued but not passed to workers. configure, addWatches and removeWatches can change the set in any
// state, and close ends it. [typewatch.Subscription.Replace] moves a subscription to a different watch.
type subscriptionSet struct {
	reg     *registration
	primary *typewatch.Subscription

	mu sync.Mutex // guards the fields below, and the fields wanted, subscribed and sub of each secondary
	// changes holds the pending changes, starting with the current one. They are applied one at a time in the
	// background, because applying a change can block on the event handlers of registrations that share a watch.
	changes     []change
	secondaries map[WatchKey]*secondary
	lifetime    context.Context // context of the event handlers; nil while the set is detached
	initialSync *initialSync
	pending     *pendingSwap // nil if no swap is pending
	closed      bool
}

// change is a pending change to the subscriptions.
type change struct {
	f    func()
	keys []WatchKey // the secondaries that f may add, replace or remove
	all  bool       // f may replace or remove any secondary
}

// apply applies a change in the background, after all earlier changes, and then closes the returned channel.
func (s *subscriptionSet) apply(c change) (done <-chan struct{}) {
	applied, f := make(chan struct{}), c.f
	c.f = func() { f(); close(applied) }
	s.mu.Lock()
	defer s.mu.Unlock()
	s.insertChangeLocked(len(s.changes), c)
	return applied
}

func (s *subscriptionSet) insertChangeLocked(at int, c change) {
	s.changes = slices.Insert(s.changes, at, c)
	if len(s.changes) == 1 {
		s.reg.background(s.applyChanges)
	}
}

func (s *subscriptionSet) applyChanges() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.changes) > 0 {
		current := s.changes[0]
		s.mu.Unlock()
		current.f()
		s.mu.Lock()
		s.changes = slices.Delete(s.changes, 0, 1)
	}
}

// isChangingLocked reports whether a pending change may add, replace or remove the secondary with the key.
func (s *subscriptionSet) isChangingLocked(key WatchKey) bool {
	return slices.ContainsFunc(s.changes, func(c change) bool { return c.all || slices.Contains(c.keys, key) })
}

// pendingSwap is a swap that has not finished.
type pendingSwap struct {
	next *serveOptions
	over chan struct{} // closed when the new options have taken effect, or when the swap has been cancelled
	// secondaries holds the watches in the new options. AddWatches and RemoveWatches update it.
	secondaries map[WatchKey]*secondaryOptions
	initialSync *initialSync // begun by the swap; nil if the set is detached or the initial list has not been delivered
}

func newPendingSwap(next *serveOptions) *pendingSwap {
	p := &pendingSwap{next: next, over: make(chan struct{}), secondaries: map[WatchKey]*secondaryOptions{}}
	for _, o := range next.secondaries {
		p.secondaries[o.key] = o
	}
	return p
}

// configure replaces the handler and the options. If the primary subscription needs a different watch, the new handler
// and options take effect when that watch has synced. Any pending swap is cancelled. Like addWatches, removeWatches,
// attach and detach, configure may only be called as part of a change.
func (s *subscriptionSet) configure(p *pendingSwap) {
	s.primary.CancelReplace()
	s.mu.Lock()
	if last := s.pending; last != nil && typewatch.IsClosed(last.over) { // the last swap has taken effect
		s.mu.Unlock()
		s.finish(last)
		s.mu.Lock()
	}
	s.pending.endLocked()
	s.pending = p
	s.mu.Unlock()
	if s.reg.options.Load().sameWatch(&p.next.watchOptions) {
		s.swap(p)
		s.mu.Lock()
		s.queuedLocked(p)
		s.mu.Unlock()
		s.finish(p)
		return
	}
	s.primary.Replace(p.next.subscription(), func() { s.swap(p) }, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.queuedLocked(p)
		s.insertChangeLocked(min(1, len(s.changes)), change{all: true, f: func() { s.finish(p) }})
	})
}

// swap puts the options into effect and queues all objects. It can be called while the primary subscription is being
// replaced. It pauses the group, because an object may also be queued by a difference between two watches and by the
// initial lists of new secondaries; see initialSync.
func (s *subscriptionSet) swap(p *pendingSwap) {
	s.reg.group.Configure(p.next.limits(), s.reg.limiterOf(p.next))
	s.mu.Lock()
	s.reg.options.Store(p.next)
	p.endLocked()
	attached := s.lifetime != nil && !s.closed
	if current := s.initialSync; attached && (current == nil || !current.primaryDone.IsZero()) {
		s.beginInitialSyncLocked(nil)
		p.initialSync = s.initialSync
		if current != nil {
			maps.Copy(s.initialSync.waiting, current.waiting)
		}
	}
	if attached {
		s.initialSync.swapPending = true
	}
	s.mu.Unlock()
	if attached {
		s.reg.addBackground(s.reg.allKeys())
	}
}

// queuedLocked must be called once all objects, including those that differ between the watches, have been queued.
func (s *subscriptionSet) queuedLocked(p *pendingSwap) {
	if p.initialSync != nil && s.initialSync == p.initialSync {
		s.initialSync.finishLocked(s.primary)
	}
}

// finish adds and removes secondaries so that they match the new options. It does nothing if p is no longer pending.
func (s *subscriptionSet) finish(p *pendingSwap) {
	s.mu.Lock()
	current := s.pending == p
	if current {
		s.pending = nil
	}
	s.mu.Unlock()
	if !current {
		return
	}
	s.addWatches(slices.Collect(maps.Values(p.secondaries)), false, nil)
	var removed []WatchKey
	for _, sec := range s.all() {
		if p.secondaries[sec.key] == nil {
			removed = append(removed, sec.key)
		}
	}
	s.removeWatches(removed)
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.initialSync; i != nil && i.swapPending {
		i.swapPending = false
		i.checkLocked()
	}
}

// endLocked closes p.over if the swap is still pending.
func (p *pendingSwap) endLocked() {
	if p != nil && !typewatch.IsClosed(p.over) {
		close(p.over)
	}
}

// attach starts the delivery of objects to the queue: first all objects in the caches, and then those that change.
func (s *subscriptionSet) attach(r *run) {
	ctx := s.reg.enter(r.base)
	s.mu.Lock()
	if s.closed || r.ending.Load() {
		s.mu.Unlock()
		return
	}
	s.lifetime = ctx
	secondaries := slices.Collect(maps.Values(s.secondaries))
	s.beginInitialSyncLocked(secondaries)
	s.mu.Unlock()
	s.reg.addBackground(s.reg.recordedKeys())
	for _, sec := range secondaries {
		s.attachSecondary(ctx, sec)
	}
	s.primary.Attach(s.reg.eventHandler(ctx))
}

func (s *subscriptionSet) attachSecondary(ctx context.Context, sec *secondary) {
	// Attach can call the MapFunc, which can call runtime.Goexit.
	<-closedAfter(func() { sec.sub.Attach(sec.eventHandler(ctx)) })
	s.observe(sec, sec.sub.State()) // the subscription may already be failing
}

// detach stops delivery. When it returns, no event handler is running.
func (s *subscriptionSet) detach() {
	for _, sub := range s.end(func() { s.lifetime = nil }) {
		sub.Detach()
	}
}

// close ends all subscriptions. It does not wait for event handlers.
func (s *subscriptionSet) close() {
	for _, sub := range s.end(func() { s.closed = true }) {
		s.reg.endSubscription(sub)
	}
}

// end ends the initial sync, calls update while the set is locked, and returns all subscriptions.
func (s *subscriptionSet) end(update func()) (all []*typewatch.Subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	update()
	s.initialSync.stopLocked()
	s.initialSync = nil
	all = append(all, s.primary)
	for _, sec := range s.secondaries {
		all = append(all, sec.sub)
	}
	return all
}

// endSubscription closes a subscription. The registration does not end until the subscription has ended.
func (r *registration) endSubscription(sub *typewatch.Subscription) {
	r.background(func() {
		sub.Close()
		<-sub.Ended()
	})
}

// hasSynced reports whether the primary subscription's cache is complete for the latest options.
func (s *subscriptionSet) hasSynced() bool {
	return typewatch.IsClosed(s.reg.newest.Load().over) && s.primary.View().HasSynced()
}

func (s *subscriptionSet) find(key WatchKey) *secondary {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.secondaries[key]
}

func (s *subscriptionSet) all() []*secondary {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.secondaries))
}
