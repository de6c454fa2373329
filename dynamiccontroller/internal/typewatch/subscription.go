package typewatch

import (
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

// batch limits the number of keys per call to Known, so that handlers do not hold their locks for long.
const batch = 256

// EventHandler is notified of the objects of a subscription and of changes to these objects. All functions are
// required. They are called in order, one at a time, once the store reflects a change. While one of them is running,
// the other subscriptions to the same watch are blocked. The functions may read from any subscription, but must not
// call Attach, Detach, Replace, CancelReplace or Close.
type EventHandler struct {
	// Known is called with the keys of existing objects, at most 256 at a time.
	Known func(keys []string)
	// Synced is called after Known has been called for all existing objects.
	Synced func()
	// Changed is called with each change. Before Synced is called, only deletions are delivered, including deletions of
	// objects that were not passed to Known.
	Changed func(objects.Change)
}

// Subscription is one user of a watch. Its methods are safe for concurrent use, but the caller must serialize calls to
// Replace, CancelReplace and Close if their order matters.
type Subscription struct {
	pool    *Pool
	observe func(State)
	view    atomic.Pointer[View]          // written under pool.mu and, if the watch changes, both delivery locks
	synced  atomic.Pointer[chan struct{}] // the channel is closed while the watch is synced; written under pool.mu
	closed  atomic.Bool                   // written while pool.mu is held
	ended   chan struct{}

	// Guarded by the delivery lock of the current watch.
	handler   *EventHandler
	announced bool // whether the handler has been called with all existing objects in this run

	// Guarded by pool.mu.
	pending  *replacement
	switched <-chan struct{}   // closed when the last replacement's onReplace has returned
	waitFor  []<-chan struct{} // closed when goroutines that only this subscription uses have ended
}

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

// State returns the state of the current watch.
func (s *Subscription) State() State { return s.view.Load().watch.state.snapshot() }

// View returns a consistent view of the current watch and options. It is lock-free.
func (s *Subscription) View() View { return *s.view.Load() }

// Owners returns the owners of an object. Only the subscription's event handler may call Owners, and only with a record
// passed to it. The result is computed once per change for all subscriptions to the watch, and must not be modified.
func (s *Subscription) Owners(r *objects.Record) []objects.Owner {
	return s.view.Load().watch.owners.Get(r)
}

// lockDelivery acquires the delivery lock of the current watch and returns the watch.
func (s *Subscription) lockDelivery() *watch {
	for {
		w := s.view.Load().watch
		w.delivery.Lock()
		if s.view.Load().watch == w {
			return w
		}
		w.delivery.Unlock()
	}
}

// Attach sets or replaces the event handler. In each run, the handler is called with all existing objects once the
// subscription has synced, and then with each change.
func (s *Subscription) Attach(handler EventHandler) {
	w := s.lockDelivery()
	defer w.delivery.Unlock()
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
	defer w.delivery.Unlock()
	w.attached = slices.DeleteFunc(w.attached, func(other *Subscription) bool { return other == s })
	s.handler, s.announced = nil, false
}

// announce calls the handler with all existing objects if the watch has synced. The caller must hold w.delivery.
func (s *Subscription) announce(w *watch) {
	if s.handler == nil || s.announced || s.closed.Load() || !w.listed.Load() {
		return
	}
	s.announced = true
	for keys := range slices.Chunk(w.store.Keys(), batch) {
		s.handler.Known(keys)
	}
	s.handler.Synced()
	w.owners = objects.OwnerCache{}
}

// handle calls the handler with a change. Until the handler has been called with all existing objects, only deletions
// are passed on. New and changed objects will be among the existing objects. The caller must hold the delivery lock.
func (s *Subscription) handle(c objects.Change) {
	if !s.closed.Load() && (s.announced || c.New == nil) {
		s.handler.Changed(c)
	}
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

// Ended returns a channel that is closed after a call to Close, once the event handler has returned and all watches
// used by this subscription alone have ended.
func (s *Subscription) Ended() <-chan struct{} { return s.ended }

// waitForLocked prevents s.ended from being closed before the given channel is closed.
func (s *Subscription) waitForLocked(ended <-chan struct{}) {
	s.waitFor = append(slices.DeleteFunc(s.waitFor, IsClosed), ended)
}

// View reads a watch's store using a subscription's options. The zero View must not be used. If the subscription moves
// to another watch, an existing View still reads from the old one.
type View struct {
	watch   *watch
	options *Options
}

// Options returns the subscription's options.
func (v View) Options() Options { return *v.options }

// HasSynced reports whether the store holds a complete list from the current run.
func (v View) HasSynced() bool { return v.watch.listed.Load() }

// Store returns the store of the watch. It can hold more of each object than the subscription needs; see [View.Decode].
// The caller must not modify the store.
func (v View) Store() *objects.Store { return v.watch.store }

// Unusable returns the objects that the watch has received but cannot use.
func (v View) Unusable() Unusable { return *v.watch.unusable.Load() }

// Decode decodes a stored object and reduces it to the subscription's projection.
func (v View) Decode(r *objects.Record) (runtime.Object, error) {
	return r.Decode(v.options.Projection)
}
