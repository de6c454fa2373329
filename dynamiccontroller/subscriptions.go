package dynamiccontroller

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// subscriptionSet holds the subscriptions of a registration: the primary one to its own type, and a secondary one for
// each of its watches. The primary subscription is created and closed with the registration.
//
//	             attach                       initial sync done
//	detached ─────────────▶ initial sync ───────────────────────────▶ delivering
//	    ▲               (the queue is paused)                             │
//	    └──────────────────────── detach: the run ends ──────────────────┘
//
// While it is detached, the subscriptions keep caches up to date and nothing is queued. During the initial sync, keys
// are queued but not handed out, so that each object is reconciled once for all initial lists. In any of these
// states, configure, addWatches and removeWatches change the set. A subscription whose watch changes is replaced by
// [typewatch.Subscription.Replace]: the old one delivers until the new one has synced.
type subscriptionSet struct {
	reg     *registration
	primary *typewatch.Subscription

	mu sync.Mutex // guards the fields below, and wanted and sub of each secondary
	// changes are made one at a time, in order. They run in the background, because they can wait for event handlers
	// of any registration that shares a watch.
	changes     []change
	changing    bool // a goroutine makes the changes
	replacing   int  // number of pending changes that replace or remove secondaries
	secondaries map[WatchKey]*secondary
	lifetime    context.Context // of the event handlers, nil while the set is detached
	initialSync *initialSync
	pending     *pendingSwap // nil if there is none
	closed      bool
}

// secondary is a subscription to a type that is watched in addition to the served one.
type secondary struct {
	key WatchKey
	reg *registration
	sub *typewatch.Subscription
	// options are the options in effect. Event handlers read them without a lock.
	options atomic.Pointer[secondaryOptions]

	wanted *secondaryOptions // differs from options while the subscription is being replaced
}

func newSubscriptionSet(reg *registration, first *serveOptions) *subscriptionSet {
	return &subscriptionSet{
		reg:         reg,
		primary:     reg.controller.pool.Subscribe(first.subscription(), nil),
		secondaries: map[WatchKey]*secondary{},
	}
}

// change is a change of the subscriptions.
type change struct {
	f         func()
	replacing bool // it can replace or remove secondaries
}

// change calls f in the background, after the changes that were requested before. Done is closed when f has returned.
func (s *subscriptionSet) change(f func()) (done <-chan struct{}) {
	return s.enqueueChange(change{f: f}, false)
}

// replace is like change, for a function that can replace or remove secondaries.
func (s *subscriptionSet) replace(f func()) (done <-chan struct{}) {
	return s.enqueueChange(change{f: f, replacing: true}, false)
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

// await waits until done is closed or ctx is cancelled, and reports whether done is closed.
func await(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return isClosed(done)
	}
}

// pendingSwap is a swap whose watch has not synced.
type pendingSwap struct {
	over chan struct{} // closed when the swap is done or cancelled
	// secondaries are those of the new options, and those that AddWatches has added since.
	secondaries []*secondaryOptions
}

// configure replaces the handler and the options of the registration with next. If the primary subscription needs a
// different watch, next takes effect when that watch has synced. A pending swap is cancelled. Like addWatches,
// removeWatches, attach and detach, configure must be called by a change.
func (s *subscriptionSet) configure(next *serveOptions) {
	s.primary.CancelReplace()
	same := s.reg.options.Load().sameWatch(&next.watchOptions)
	s.mu.Lock()
	s.endPendingLocked()
	s.pending = &pendingSwap{over: make(chan struct{}), secondaries: slices.Clone(next.secondaries)}
	s.mu.Unlock()
	if same {
		s.swap(next)()
		return
	}
	s.primary.Replace(next.subscription(), func() {
		s.enqueueChange(change{f: s.swap(next), replacing: true}, true)
	})
}

// swap makes next take effect: all objects are reconciled by the new handler. It can be called while the primary
// subscription is being replaced. Finish must be the next change. It adds and removes secondaries. Until it has, the
// group is paused if there are new ones, so that each object is reconciled once for the swap and for their initial
// lists.
func (s *subscriptionSet) swap(next *serveOptions) (finish func()) {
	s.reg.options.Store(next)
	s.reg.group.Configure(next.limits(), s.reg.limiterOf(next))
	s.mu.Lock()
	secondaries := s.pending.secondaries
	s.endPendingLocked()
	attached := s.lifetime != nil && !s.closed
	joint := attached && s.initialSync == nil && !s.hasAllLocked(secondaries)
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
		s.addWatches(secondaries, false)
		s.removeWatches(s.keysExcept(secondaries))
		if joint {
			s.delivered(s.primary)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if i := s.initialSync; i != nil && i.swapPending {
			i.swapPending = false
			i.checkLocked()
		}
	}
}

func (s *subscriptionSet) hasAllLocked(secondaries []*secondaryOptions) bool {
	return !slices.ContainsFunc(secondaries, func(o *secondaryOptions) bool { return s.secondaries[o.key] == nil })
}

// keysExcept returns the keys of all secondaries that are not listed.
func (s *subscriptionSet) keysExcept(secondaries []*secondaryOptions) (keys []WatchKey) {
	for _, sec := range s.all() {
		if !slices.ContainsFunc(secondaries, func(o *secondaryOptions) bool { return o.key == sec.key }) {
			keys = append(keys, sec.key)
		}
	}
	return keys
}

// endPendingLocked wakes the goroutines that wait for the pending swap, if any.
func (s *subscriptionSet) endPendingLocked() {
	if s.pending != nil {
		close(s.pending.over)
		s.pending = nil
	}
}

// pendingSwap returns a channel that is closed when the pending swap is done or cancelled, or nil if there is none.
func (s *subscriptionSet) pendingSwap() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending == nil {
		return nil
	}
	return s.pending.over
}

// updateWatches replaces the predicates and MapFuncs of watches if nothing else has to be changed, and reports
// whether it did.
func (s *subscriptionSet) updateWatches(watches []Watch) (done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.replacing > 0 {
		return false // the order matters
	}
	for _, w := range watches {
		if sec := s.secondaries[w.options.key]; sec == nil || !sec.wanted.keepsWatch(&w.options.watchOptions) {
			return false
		}
	}
	for _, w := range watches {
		s.secondaries[w.options.key].updateLocked(w.options)
	}
	return true
}

// updateLocked replaces options for which the secondary can keep its watch.
func (sec *secondary) updateLocked(options *secondaryOptions) {
	if sec.wanted == sec.options.Load() {
		sec.options.Store(options)
	}
	sec.wanted = options
}

// addWatches adds secondaries, and replaces the subscriptions of those that need a different watch. With
// keepTransforms, a secondary that has a transform keeps it.
func (s *subscriptionSet) addWatches(watches []*secondaryOptions, keepTransforms bool) {
	for _, options := range watches {
		s.mu.Lock()
		sec := s.secondaries[options.key]
		keep := sec != nil && (sec.wanted.sameWatch(&options.watchOptions) ||
			keepTransforms && sec.wanted.keepsWatch(&options.watchOptions))
		if keep {
			sec.updateLocked(options)
		}
		s.mu.Unlock()
		switch {
		case keep:
		case sec == nil:
			s.add(options)
		default:
			s.replaceSecondary(sec, options)
		}
	}
}

func (s *subscriptionSet) add(options *secondaryOptions) {
	sec := &secondary{key: options.key, reg: s.reg, wanted: options}
	sec.options.Store(options)
	observe := func(state typewatch.State) { s.observe(sec, state) }
	sub := s.reg.controller.pool.Subscribe(options.subscription(), observe)
	s.mu.Lock()
	sec.sub = sub // locked, because observe can be called already
	closed, attached := s.closed, s.lifetime
	if !closed {
		s.secondaries[sec.key] = sec
		if s.initialSync != nil {
			s.initialSync.waiting[sec.sub] = typewatch.State{}
		}
	}
	s.mu.Unlock()
	switch {
	case closed:
		s.reg.end(sec.sub)
	case attached != nil:
		s.attachSecondary(attached, sec)
	}
}

func (s *subscriptionSet) replaceSecondary(sec *secondary, options *secondaryOptions) {
	s.mu.Lock()
	sec.wanted = options
	s.mu.Unlock()
	sec.sub.Replace(options.subscription(), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		sec.options.Store(sec.wanted)
	})
}

// addWatchesToPendingSwap and removeWatchesFromPendingSwap make AddWatches and RemoveWatches survive the pending swap.
func (s *subscriptionSet) addWatchesToPendingSwap(watches []*secondaryOptions) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending != nil {
		s.pending.secondaries = append(s.pending.secondaries, watches...)
	}
}

func (s *subscriptionSet) removeWatchesFromPendingSwap(keys []WatchKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending != nil {
		s.pending.secondaries = slices.DeleteFunc(s.pending.secondaries, func(o *secondaryOptions) bool {
			return slices.Contains(keys, o.key)
		})
	}
}

// removeWatches ends secondaries. Their event handlers are not running when it returns.
func (s *subscriptionSet) removeWatches(keys []WatchKey) {
	for _, key := range keys {
		s.mu.Lock()
		sec := s.secondaries[key]
		delete(s.secondaries, key)
		if sec != nil {
			s.initialSync.finishLocked(sec.sub)
		}
		s.mu.Unlock()
		if sec != nil {
			sec.sub.Detach()
			s.reg.end(sec.sub)
		}
	}
}

// attach starts delivery to the queue: first all objects, and then their changes.
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

// end closes a subscription. The registration does not end before it.
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

// hasNone reports whether there are no secondaries with the keys, and none is about to be added.
func (s *subscriptionSet) hasNone(keys []WatchKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.changing && !slices.ContainsFunc(keys, func(key WatchKey) bool { return s.secondaries[key] != nil })
}

// find returns a secondary, or nil.
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
