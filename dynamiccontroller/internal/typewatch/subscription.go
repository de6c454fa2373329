package typewatch

import (
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/internal/protect"
)

// batch limits the number of objects per call to Known, so that handlers do not hold their locks for long.
const batch = 256

// EventHandler is notified of the objects of a subscription and of changes to these objects. All functions are
// required, except Loses. They are called in order, one at a time, once the store reflects a change. The functions may
// read from any subscription, but must not call Attach, Detach, Replace, CancelReplace or Close.
//
// If the options of the objects are not Blocking, the functions are called at once, while the delivery lock of the
// watch is held, or in a goroutine of the subscription if it has left a pass. The batches that are passed to Known must
// not be used after it has returned. Otherwise, the functions are called in the goroutine. If more than 1024 changes
// wait, changes to the same object are combined: the change is delivered with the first old state and the latest new
// one. An object that was added and deleted in the meantime is not delivered.
//
// The functions that are called in the goroutine can call runtime.Goexit. If Known does so, it is called again with
// each object of the batch by itself.
type EventHandler struct {
	// Known is called with existing objects, at most 256 at a time.
	Known func(batch []*Object)
	// Synced is called after Known has been called for all existing objects.
	Synced func()
	// Changed is called with each change. An object that was deleted and created again is delivered as a deletion and an
	// addition. Between Attach and the first call to Known, only deletions are delivered, including deletions of objects
	// that were not passed to Known. Between the first call to Known and the call to Synced, only
	// deletions are delivered.
	Changed func(Change)
	// Loses reports whether a dropped state is lost. A state is dropped if the change to it and the change from it are
	// combined. combined is the change that replaces them. It has no states if the object was added and deleted. The New
	// of combined can be dropped later. Loses is then called for it as well, so a dropped state can be compared with New.
	// If Loses is nil, each dropped state is lost.
	//
	// In contrast to the other functions, Loses is called while a change is added, with locks held, possibly while
	// another function is running. It must not block, must not call user code, and must use nothing but its arguments.
	Loses func(dropped *Object, combined Change) bool
	// Lost is called after a state has been lost; see Loses. It is called when no change waits. It can be nil if all
	// options are not Blocking.
	Lost func()
}

// Subscription is one user of a watch. Its methods are safe for concurrent use, but the caller must serialize calls to
// Replace, CancelReplace and Close if their order matters.
type Subscription struct {
	listener // of the current watch; closed is written under pool.mu

	pool     *Pool
	observe  func(State)                   // can be nil
	presence *presence                     // of the activity, if any
	onClose  func()                        // called under pool.mu; can be nil
	synced   atomic.Pointer[chan struct{}] // the channel is closed while the watch is synced; written under pool.mu
	ended    chan struct{}
	calls    calls // of user functions

	// current, and the view of the listener, are written under pool.mu and, if the watch changes, both delivery locks.
	current atomic.Pointer[position]

	// Guarded by pool.mu.
	replacement *replacement      // nil if none is pending
	switched    <-chan struct{}   // closed when the last replacement's onReplace has returned
	waitFor     []<-chan struct{} // closed when goroutines that only this subscription uses have ended
}

// newSubscription returns a subscription without a watch; see [Pool.subscribeLocked].
func newSubscription(p *Pool, observe func(State)) *Subscription {
	s := &Subscription{pool: p, observe: observe, ended: make(chan struct{}), switched: closedChannel}
	s.synced.Store(ptr.To(make(chan struct{})))
	return s
}

// Call calls f, which calls a user function of the subscription, for example a predicate. Until f has returned, Busy
// can return the name of the function. Call returns the mistake of the function, if any; see [protect.Guard].
func (s *Subscription) Call(function string, f func()) *protect.Mistake {
	return s.calls.call(function, f)
}

// Busy returns the name of the user function that has been running for the longest time, and the time of its call. If
// no user function is running, the time is zero.
func (s *Subscription) Busy() (function string, since time.Time) { return s.calls.oldest() }

// setSynced closes or replaces the channel that Synced returns. The caller must hold pool.mu.
func (s *Subscription) setSynced(synced bool) {
	switch ch := *s.synced.Load(); {
	case synced && !IsClosed(ch):
		close(ch)
	case !synced && IsClosed(ch):
		s.synced.Store(ptr.To(make(chan struct{})))
	}
}

// Synced returns a channel that is closed once the subscription has synced. After the pool has been stopped, Synced
// returns a new channel. Close does not close the channel.
func (s *Subscription) Synced() <-chan struct{} { return *s.synced.Load() }

// position is where a subscription reads: its place and its view change in one step, so that a caller that has seen
// something of the current watch reads from this watch or a later one.
type position struct {
	at   *place
	view View
}

// State returns the state of the current watch.
func (s *Subscription) State() State { return s.watch().state.snapshot() }

// watch returns the current watch.
func (s *Subscription) watch() *watch { return s.current.Load().at.watch }

func (s *Subscription) currentPlace() *place { return s.current.Load().at }

// View returns a consistent view of the current watch and options. It is lock-free.
func (s *Subscription) View() View { return s.current.Load().view }

// lockDelivery acquires the delivery lock of the current watch and returns the watch.
func (s *Subscription) lockDelivery() *watch {
	for {
		w := s.watch()
		w.delivery.Lock()
		if s.watch() == w {
			return w
		}
		w.delivery.Unlock()
	}
}

// Attach sets or replaces the event handler. In each session, the handler is called with all existing objects once the
// subscription has synced, and then with each change. Attach does not wait for these calls. If the former handler is
// running, the new one is not called until the former one has returned.
func (s *Subscription) Attach(handler EventHandler) {
	w := s.lockDelivery()
	if s.closed.Load() {
		w.delivery.Unlock()
		return
	}
	if s.handler == nil {
		w.attached = append(w.attached, &s.listener)
	}
	removed := s.setHandlerLocked(&handler)
	w.startPass()
	w.delivery.Unlock()
	callAll(removed)
}

// Detach removes the event handler. When it returns, the handler is not running and will not be called. It does not
// wait for the event handlers of other subscriptions. Existing objects that have not been delivered are dropped.
// Changes are still delivered, for at most a second, unless the subscription is closed.
func (s *Subscription) Detach() {
	w := s.lockDelivery()
	w.detach(&s.listener)
	if s.closed.Load() {
		removed := s.setHandlerLocked(nil)
		w.delivery.Unlock()
		callAll(removed)
		s.inbox.wait()
		return
	}
	s.abandonPass()
	s.handler, s.announced = nil, false
	w.delivery.Unlock()
	s.inbox.finish()
}

func callAll(functions []func()) {
	for _, f := range functions {
		f()
	}
}

// Update replaces the Value, Blocking and Indexes of the options that the last call to Subscribe or Replace has set,
// also if that replacement is pending. Objects of later changes have the new value. Update has no effect after Close.
func (s *Subscription) Update(value any, blocking bool, indexes *Indexes) {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if s.closed.Load() {
		return
	}
	if r := s.replacement; r != nil {
		r.options.Value, r.options.Blocking, r.options.Indexes = value, blocking, indexes
		if !r.isMove {
			return
		}
	}
	view := *s.view.Load()
	if view.options.Value == value && view.options.Blocking == blocking && view.options.Indexes == indexes {
		return
	}
	options := *view.options
	options.Value, options.Blocking, options.Indexes = value, blocking, indexes
	s.setViewLocked(s.current.Load().at, &options)
}

// AddIndexes adds the indexes whose names the options do not have, also to the options of a pending replacement. It has
// no effect after Close.
func (s *Subscription) AddIndexes(indexes *Indexes) {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if s.closed.Load() {
		return
	}
	if r := s.replacement; r != nil {
		r.options.Indexes = r.options.Indexes.With(indexes)
	}
	view := *s.view.Load()
	options := *view.options
	options.Indexes = options.Indexes.With(indexes)
	if options.Indexes != view.options.Indexes {
		s.setViewLocked(s.current.Load().at, &options)
	}
}

// setViewLocked sets the place, and sets and returns the view. It drops the indexes of the former view, unless the new
// one has the same. The caller must hold pool.mu.
func (s *Subscription) setViewLocked(at *place, options *Options) View {
	former, view := s.view.Load(), View{contents: at.watch.contents, options: options}
	keeps := former != nil && former.contents == view.contents && former.options.Key == options.Key &&
		former.options.Indexes == options.Indexes
	if keeps {
		view.indexes = former.indexes
	} else {
		view.indexes = newIndexes(view, &s.calls)
	}
	s.setView(view)
	s.current.Store(&position{at, view})
	if former != nil && !keeps {
		former.indexes.drop()
	}
	return view
}

// Close ends the subscription and any pending replacement. It does not wait for a running event handler to return; use
// Ended for that. The subscription can still be read, but its store is no longer updated if no other subscription uses
// the watch.
func (s *Subscription) Close() {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.closed.Swap(true) {
		return
	}
	at := s.current.Load().at
	delete(at.subscriptions, s) // first, so that dropLocked does not move the subscription
	s.dropLocked()
	s.view.Load().indexes.drop()
	if s.onClose != nil {
		s.onClose()
	}
	p.leaveLocked(at, s)
	p.config.Progress()
	waitFor := s.waitFor
	go func() {
		s.Detach()
		for _, ended := range waitFor {
			<-ended
		}
		close(s.ended)
	}()
}

// Ended returns a channel that is closed after a call to Close, once the event handler has returned and all watches
// used by this subscription alone have ended.
func (s *Subscription) Ended() <-chan struct{} { return s.ended }

// waitForLocked prevents s.ended from being closed before the given channel is closed.
func (s *Subscription) waitForLocked(ended <-chan struct{}) {
	s.waitFor = append(slices.DeleteFunc(s.waitFor, IsClosed), ended)
}
