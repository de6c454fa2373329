package dynamiccontroller

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// subscriptionSet holds the subscriptions of a registration: a primary subscription to its own type, and a secondary
// subscription for each watch of another type. The primary subscription is created and closed with the registration.
//
//	             attach                       initial sync done
//	detached ─────────────▶ initial sync ───────────────────────────▶ delivering
//	    ▲               (the queue is paused)                             │
//	    └──────────────────────── detach: the run ends ──────────────────┘
//
// While the set is detached, the subscriptions keep caches up to date and nothing is queued. During the initial sync,
// keys are queued but not handed out, so that each object is reconciled once for all initial lists. The methods
// configure, addWatches and removeWatches can change the set in any of these states. If a subscription needs a
// different watch, [typewatch.Subscription.Replace] moves it there: the old watch delivers changes until the new watch
// has synced.
type subscriptionSet struct {
	reg     *registration
	primary *typewatch.Subscription

	mu sync.Mutex // guards the fields below, and the fields wanted and sub of each secondary
	// changes holds the pending changes. They are made one at a time, in order. They run in the background, because
	// they can wait for event handlers of any registration that shares a watch.
	changes     []change
	changing    bool // whether a goroutine is making the changes
	replacing   int  // number of pending changes that replace or remove secondaries
	secondaries map[WatchKey]*secondary
	lifetime    context.Context // of the event handlers, nil while the set is detached
	initialSync *initialSync
	pending     *pendingSwap // nil if no swap is pending
	closed      bool
}

func newSubscriptionSet(reg *registration, first *serveOptions) *subscriptionSet {
	return &subscriptionSet{
		reg:         reg,
		primary:     reg.controller.pool.Subscribe(first.subscription(), nil),
		secondaries: map[WatchKey]*secondary{},
	}
}

// change is a pending change to the subscriptions.
type change struct {
	f         func()
	replacing bool // it can replace or remove secondaries
}

// change requests that f be called in the background. Changes that were requested earlier are made first. The returned
// channel is closed when f has returned. The caller must set replacing if f can replace or remove secondaries.
func (s *subscriptionSet) change(replacing bool, f func()) (done <-chan struct{}) {
	return s.enqueueChange(change{f: f, replacing: replacing}, false)
}

func (s *subscriptionSet) enqueueChange(c change, first bool) (done <-chan struct{}) {
	returned, f := make(chan struct{}), c.f
	c.f = func() {
		defer close(returned)
		f()
	}
	s.mu.Lock()
	if first {
		s.changes = slices.Insert(s.changes, 0, c)
	} else {
		s.changes = append(s.changes, c)
	}
	if c.replacing {
		s.replacing++
	}
	start := !s.changing
	s.changing = true
	s.mu.Unlock()
	if start {
		s.reg.background(s.makeChanges)
	}
	return returned
}

func (s *subscriptionSet) makeChanges() {
	for {
		s.mu.Lock()
		if len(s.changes) == 0 {
			s.changes, s.changing = nil, false
			s.mu.Unlock()
			return
		}
		c := s.changes[0]
		s.changes = s.changes[1:]
		s.mu.Unlock()
		c.f()
		if c.replacing {
			s.mu.Lock()
			s.replacing--
			s.mu.Unlock()
		}
	}
}

// pendingSwap is a swap that has not been finished.
type pendingSwap struct {
	// over is closed when the new options have taken effect, or when the swap has been cancelled.
	over   chan struct{}
	isOver bool
	// secondaries holds the secondaries of the new options. Calls to AddWatches and RemoveWatches during the swap
	// change it.
	secondaries []*secondaryOptions
}

// configure replaces the handler and the options of the registration with next. If the primary subscription needs a
// different watch, next takes effect when that watch has synced. If another swap is pending, it is cancelled. Like
// addWatches, removeWatches, attach and detach, configure must be called only by a function that was passed to the
// method change.
func (s *subscriptionSet) configure(next *serveOptions) {
	s.primary.CancelReplace()
	p := &pendingSwap{over: make(chan struct{}), secondaries: slices.Clone(next.secondaries)}
	s.mu.Lock()
	s.pending.endLocked()
	s.pending = p
	s.mu.Unlock()
	if s.reg.options.Load().sameWatch(&next.watchOptions) {
		s.swap(next, p)()
		return
	}
	s.primary.Replace(next.subscription(), func() {
		s.enqueueChange(change{f: s.swap(next, p), replacing: true}, true)
	})
}

// swap puts the options next into effect, and queues all objects so that the new handler reconciles them. It can be
// called while the primary subscription is being replaced. The returned function finish adds and removes secondaries.
// It must be called in one of the next changes. If there are new secondaries, the group is paused until finish has
// added them and their initial lists have been delivered. Each object is then reconciled only once for the swap and for
// these lists.
func (s *subscriptionSet) swap(next *serveOptions, p *pendingSwap) (finish func()) {
	s.reg.options.Store(next)
	s.reg.group.Configure(next.limits(), s.reg.limiterOf(next))
	s.mu.Lock()
	p.endLocked()
	attached := s.lifetime != nil && !s.closed
	isNew := func(o *secondaryOptions) bool { return s.secondaries[o.key] == nil }
	joint := attached && s.initialSync == nil && slices.ContainsFunc(p.secondaries, isNew)
	if joint {
		s.beginInitialSyncLocked()
		for _, sec := range s.secondaries {
			delete(s.initialSync.waiting, sec.sub)
		}
	}
	s.mu.Unlock()
	if attached {
		s.reg.add(fairqueue.Background, s.primary.View().Keys())
		s.reg.add(fairqueue.Background, s.reg.recordedKeys())
	}
	return func() {
		s.finish(p)
		if joint {
			s.delivered(s.primary)
		}
	}
}

// finish adds and removes secondaries so that they match the new options, unless another swap has been requested.
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
	s.addWatches(p.secondaries, false)
	var removed []WatchKey
	for _, sec := range s.all() {
		if !slices.ContainsFunc(p.secondaries, func(o *secondaryOptions) bool { return o.key == sec.key }) {
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

// endLocked wakes the goroutines that wait for the swap, if any.
func (p *pendingSwap) endLocked() {
	if p != nil && !p.isOver {
		p.isOver = true
		close(p.over)
	}
}

// pendingSwap returns a channel that is closed when the pending swap is over. It returns nil if no swap is pending.
func (s *subscriptionSet) pendingSwap() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending == nil || s.pending.isOver {
		return nil
	}
	return s.pending.over
}

// attach starts the delivery to the queue. All objects are delivered first, and then their changes.
func (s *subscriptionSet) attach(r *run) {
	ctx := s.reg.enter(r.base)
	s.mu.Lock()
	if s.closed || r.ending.Load() {
		s.mu.Unlock()
		return
	}
	s.lifetime = ctx
	secondaries := slices.Collect(maps.Values(s.secondaries))
	s.beginInitialSyncLocked()
	s.mu.Unlock()
	s.reg.add(fairqueue.Background, s.reg.recordedKeys())
	for _, sec := range secondaries {
		s.attachSecondary(ctx, sec)
	}
	s.primary.Attach(s.reg.eventHandler(ctx))
}

func (s *subscriptionSet) attachSecondary(ctx context.Context, sec *secondary) {
	sec.sub.Attach(sec.eventHandler(ctx))
	s.observe(sec, sec.sub.State()) // it might have been failing for some time
}

// detach stops the delivery that attach started. No event handler is running when it returns.
func (s *subscriptionSet) detach() {
	s.mu.Lock()
	s.lifetime = nil
	s.initialSync.stopLocked()
	s.initialSync = nil
	secondaries := slices.Collect(maps.Values(s.secondaries))
	s.mu.Unlock()
	s.primary.Detach()
	for _, sec := range secondaries {
		sec.sub.Detach()
	}
}

// close ends all subscriptions. It does not wait for event handlers.
func (s *subscriptionSet) close() {
	s.mu.Lock()
	s.closed = true
	s.initialSync.stopLocked()
	s.initialSync = nil
	secondaries := slices.Collect(maps.Values(s.secondaries))
	clear(s.secondaries)
	s.mu.Unlock()
	s.reg.end(s.primary)
	for _, sec := range secondaries {
		s.reg.end(sec.sub)
	}
}

// end closes a subscription. The registration does not end before the subscription has ended.
func (r *registration) end(sub *typewatch.Subscription) {
	r.background(func() {
		sub.Close()
		<-sub.Ended()
	})
}

// hasSynced reports whether the primary subscription holds a complete list for the newest options.
func (s *subscriptionSet) hasSynced() bool {
	return s.pendingSwap() == nil && s.primary.HasSynced()
}

// find returns the secondary with the key, or nil if the key is not watched.
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
