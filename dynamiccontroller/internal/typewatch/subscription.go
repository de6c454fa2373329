package typewatch

import (
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
)

// batch is the maximum number of keys in a call to EventHandler.Known, so that a handler can keep its locks short.
const batch = 256

// EventHandler receives the objects of a subscription and their changes. All functions are required. They are called
// one at a time, in order, and after the store shows the change. While one of them is running, it blocks the other
// subscriptions of the same watch. They can read any subscription, but must not call Attach, Detach, Replace,
// CancelReplace or Close.
type EventHandler struct {
	// Known is called with the keys of existing objects, at most 256 at a time.
	Known func(keys []string)
	// Synced is called after Known has been called for all existing objects.
	Synced func()
	// Changed is called with the state of an object before and after a change. For a new object, old is nil. For a
	// deleted object, now is nil. Both states have the form in which the watch stores them; see [View.Project]. Before
	// Synced has been called, only deletions are delivered.
	Changed func(key string, old, now any)
}

// Subscription is one user of a watch. Its methods are safe for concurrent use, but the caller must serialize calls to
// Replace, CancelReplace and Close if their order matters.
type Subscription struct {
	pool    *Pool
	observe func(State)
	view    atomic.Pointer[View]   // written under pool.mu; to change the watch, deliver of both watches is held too
	synced  atomic.Pointer[signal] // written while pool.mu is held
	closed  atomic.Bool            // written while pool.mu is held
	done    chan struct{}
	ended   chan struct{}

	// Guarded by deliver of the current watch.
	handler   *EventHandler
	announced bool // whether the handler has been called with all existing objects in this term

	// Guarded by pool.mu.
	pending  *replacement
	switched <-chan struct{}   // closed when the function of the last replacement has returned
	waitFor  []<-chan struct{} // closed when goroutines that only this subscription needed have ended
}

// signal is a channel that is closed while a condition holds.
type signal struct {
	ch     chan struct{}
	closed bool
}

// setSynced is called with pool.mu held.
func (s *Subscription) setSynced(synced bool) {
	switch last := s.synced.Load(); {
	case synced && !last.closed:
		s.synced.Store(&signal{ch: last.ch, closed: true})
		close(last.ch)
	case !synced && last.closed:
		s.synced.Store(&signal{ch: make(chan struct{})})
	}
}

// HasSynced reports whether the store holds a complete list of the current term.
func (s *Subscription) HasSynced() bool { return s.view.Load().HasSynced() }

// Synced returns a channel that is closed when the store holds a complete list of the current or the next term. After
// the term has ended, Synced returns a new channel. Close does not close the channel.
func (s *Subscription) Synced() <-chan struct{} { return s.synced.Load().ch }

// Done returns a channel that is closed by Close.
func (s *Subscription) Done() <-chan struct{} { return s.done }

// State returns the state of the current watch.
func (s *Subscription) State() State { return *s.view.Load().watch.state.current.Load() }

// View returns a consistent view of the current watch and options. It takes no lock.
func (s *Subscription) View() View { return *s.view.Load() }

// Owners returns the owners of an object. It must be called only by an event handler of this subscription, with an
// object that was passed to the handler. The result is computed once per change for all subscriptions of the watch, and
// must not be modified.
func (s *Subscription) Owners(obj any) []Owner { return s.view.Load().watch.owners.get(obj) }

// lockDelivery takes the lock deliver of the current watch and returns the watch.
func (s *Subscription) lockDelivery() *watch {
	for {
		w := s.view.Load().watch
		w.deliver.Lock()
		if s.view.Load().watch == w {
			return w
		}
		w.deliver.Unlock()
	}
}

// Attach sets the event handler. If there already is one, it is replaced. In each term, the handler is called with all
// existing objects as soon as the subscription has synced, and then with each change.
func (s *Subscription) Attach(handler EventHandler) {
	w := s.lockDelivery()
	defer w.deliver.Unlock()
	if s.closed.Load() {
		return
	}
	if s.handler == nil {
		w.attached = append(w.attached, s)
	}
	s.handler, s.announced = &handler, false
	s.announce(w)
}

// Detach removes the event handler. When it returns, the handler is not running and will not be called.
func (s *Subscription) Detach() {
	w := s.lockDelivery()
	defer w.deliver.Unlock()
	s.detach(w)
}

// detach removes the event handler. The caller must hold w.deliver.
func (s *Subscription) detach(w *watch) {
	w.attached = slices.DeleteFunc(w.attached, func(other *Subscription) bool { return other == s })
	s.handler, s.announced = nil, false
}

// announce calls the handler with all existing objects if the watch has synced. The caller must hold w.deliver.
func (s *Subscription) announce(w *watch) {
	if s.handler == nil || s.announced || s.closed.Load() || !w.listed.Load() {
		return
	}
	s.announced = true
	for keys := range slices.Chunk(w.contents.keys(), batch) {
		s.handler.Known(keys)
	}
	s.handler.Synced()
	w.owners = ownerCache{}
}

// handle calls the handler with a change. As long as the handler has not been called with the existing objects, it is
// called only with deletions, because it will receive new and changed objects together with the existing ones. The
// caller must hold the lock deliver of the watch.
func (s *Subscription) handle(c change) {
	if !s.closed.Load() && (s.announced || c.now == nil) {
		s.handler.Changed(c.key, c.old, c.now)
	}
}

// Close ends the subscription and a pending replacement. It does not wait for an event handler that is running; use
// Ended to wait for it. The subscription can still be read, but its store is no longer updated if no other subscription
// uses the watch.
func (s *Subscription) Close() {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.closed.Swap(true) {
		return
	}
	close(s.done)
	s.dropLocked()
	w := s.view.Load().watch
	delete(w.subscriptions, s)
	p.leaveLocked(w, s)
	waitFor := s.waitFor
	go func() {
		s.Detach()
		for _, ended := range waitFor {
			<-ended
		}
		close(s.ended)
	}()
}

// Ended returns a channel that is closed some time after Close has been called. At that point, no event handler of the
// subscription is running, and all watches that only this subscription used have ended.
func (s *Subscription) Ended() <-chan struct{} { return s.ended }

// waitForLocked makes Ended wait for a goroutine.
func (s *Subscription) waitForLocked(ended <-chan struct{}) {
	s.waitFor = append(slices.DeleteFunc(s.waitFor, isClosed), ended)
}

// View reads the store of one watch with the options of one subscription. The zero View must not be used. Objects are
// shared and must not be modified. If the subscription is moved to another watch, an existing View still reads the
// former one.
type View struct {
	watch   *watch
	options *Options
}

// Options returns the subscription's options.
func (v View) Options() Options { return *v.options }

// HasSynced reports whether the store holds a complete list of the current term.
func (v View) HasSynced() bool { return v.watch.listed.Load() }

// Get returns an object in the form in which it is stored; see [View.Project]. With [Keys], the object has only its
// namespace and name.
func (v View) Get(key string) (obj any, known bool) { return v.watch.contents.get(key) }

// Has reports whether the store holds the object.
func (v View) Has(key string) bool {
	_, known := v.watch.contents.identity(key)
	return known
}

// HasUID reports whether the store holds an object with the key and the UID.
func (v View) HasUID(key string, uid types.UID) bool {
	return hasUID(v.watch.contents, key, hashOf(string(uid)))
}

// FindOwner returns the key of the owner if the store holds it. If the store does not hold the owner, FindOwner usually
// takes no lock.
func (v View) FindOwner(o *Owner) (key string, known bool) {
	for _, key := range o.Keys {
		if hasUID(v.watch.contents, key, o.uid) {
			return key, true
		}
	}
	return "", false
}

// Keys returns the keys of all objects, in no particular order.
func (v View) Keys() []string { return v.watch.contents.keys() }

// Len returns the number of objects.
func (v View) Len() int { return v.watch.contents.len() }

// List returns the objects of a namespace, or all objects if namespace is empty, in the form in which they are stored.
// With [Keys], the store has no objects and the result is empty.
func (v View) List(namespace string) []any { return v.watch.contents.list(namespace) }

// OwnedBy returns the objects that have an owner reference with the UID, in the form in which they are stored. The
// first call builds an index. With [Keys], the store has no objects and the result is empty.
func (v View) OwnedBy(owner types.UID) []any { return v.watch.contents.ownedBy(string(owner)) }

// Project converts a stored object to the projection of the subscription's options. This is needed because a watch can
// store more than a subscription needs. If obj is nil, Project returns nil. If the subscription has a transform,
// Project returns the object unchanged.
func (v View) Project(obj any) any {
	if obj == nil || v.options.Transform != nil {
		return obj
	}
	return v.options.Projection.project(obj)
}
