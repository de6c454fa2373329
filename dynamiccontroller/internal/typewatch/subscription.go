package typewatch

import (
	"slices"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
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
	pool     *Pool
	observe  func(State)
	activity *Activity                     // nil if the subscription is always active
	view     atomic.Pointer[View]          // written under pool.mu and, if the watch changes, both delivery locks
	synced   atomic.Pointer[chan struct{}] // the channel is closed while the watch is synced; written under pool.mu
	closed   atomic.Bool                   // written while pool.mu is held
	ended    chan struct{}
	inbox    inbox // used under the delivery lock of the current watch, except by its goroutine
	calls    calls // of user functions

	// Guarded by the delivery lock of the current watch.
	handler *EventHandler
	// announced is true if the handler has received the existing objects of this session, or will receive them from a
	// pass.
	announced bool
	pass      *pass // the pass of which the subscription is a member, or nil

	// Guarded by pool.mu.
	replacement *replacement      // nil if none is pending
	switched    <-chan struct{}   // closed when the last replacement's onReplace has returned
	waitFor     []<-chan struct{} // closed when goroutines that only this subscription uses have ended
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

// State returns the state of the current watch.
func (s *Subscription) State() State { return s.view.Load().watch.state.snapshot() }

// View returns a consistent view of the current watch and options. It is lock-free.
func (s *Subscription) View() View { return *s.view.Load() }

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
		w.attached = append(w.attached, s)
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
	w.attached = slices.DeleteFunc(w.attached, func(other *Subscription) bool { return other == s })
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

// setHandlerLocked sets the handler, which must receive the existing objects again. The caller must hold the delivery
// lock, and must call the returned functions once it has released the lock.
func (s *Subscription) setHandlerLocked(handler *EventHandler) (removed []func()) {
	s.dropPass()
	s.handler, s.announced = handler, false
	return s.inbox.reset(handler)
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
	s.setViewLocked(view.watch, &options)
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
		s.setViewLocked(view.watch, &options)
	}
}

// setViewLocked sets and returns the view. It drops the indexes of the former view, unless the new one has the same.
// The caller must hold pool.mu.
func (s *Subscription) setViewLocked(w *watch, options *Options) View {
	former, view := s.view.Load(), View{watch: w, options: options}
	keeps := former != nil && former.watch == w && former.options.Key == options.Key &&
		former.options.Indexes == options.Indexes
	if keeps {
		view.indexes = former.indexes
	} else {
		view.indexes = newIndexes(view, &s.calls)
	}
	s.view.Store(&view)
	s.inbox.setView(view)
	if former != nil && !keeps {
		former.indexes.drop()
	}
	return view
}

// handle delivers a change in the watch, or leaves it to the pass in which the subscription takes part. Until the
// existing objects have been announced, only deletions are delivered. New and changed objects will be among the
// existing objects. The caller must hold the delivery lock.
func (s *Subscription) handle(c *storeChange) {
	if !s.closed.Load() && s.pass == nil && (s.announced || c.isDeletion()) {
		view := *s.view.Load()
		s.deliver(c.in(view, view))
	}
}

// deliver calls the handler with a change or adds the change to the inbox. The caller must hold the delivery lock.
func (s *Subscription) deliver(c Change) {
	if c.blocks() || !s.inbox.isIdle() {
		s.inbox.add(c)
	} else {
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
	view := s.view.Load()
	view.indexes.drop()
	w := view.watch
	delete(w.subscriptions, s)
	if s.activity != nil {
		delete(s.activity.subscriptions, s)
	}
	p.leaveLocked(w, s)
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

// View reads a watch's store using a subscription's options. The zero View must not be used. If the subscription moves
// to another watch, an existing View still reads from the old one.
type View struct {
	watch   *watch
	options *Options
	indexes *viewIndexes
}

// Options returns the subscription's options.
func (v View) Options() Options { return *v.options }

// GroupResource returns the type of the objects.
func (v View) GroupResource() schema.GroupResource { return v.watch.key.GVR.GroupResource() }

// Value returns the value of the subscription's options. It can be replaced by [Subscription.Update].
func (v View) Value() any { return v.options.Value }

// SameForm reports whether objects of both views have the same Go type and the same parts, so that they can be
// compared.
func (v View) SameForm(other View) bool {
	return v.options.Projection == other.options.Projection &&
		(v.watch == other.watch || v.watch.shared && other.watch.shared)
}

// HasSynced reports whether the store holds a complete list from the current session.
func (v View) HasSynced() bool { return v.watch.listed.Load() }

// Store returns the store of the watch. It can hold more of each object than the subscription needs; see [View.Decode].
// The caller must not modify the store.
func (v View) Store() *objects.Store { return v.watch.store }

// Unusable returns the objects that the watch has received but cannot use.
func (v View) Unusable() Unusable { return *v.watch.unusable.Load() }

// Changes returns the number of changes to the objects that the watch has delivered so far, or would have delivered to
// a subscription with an event handler.
func (v View) Changes() int64 { return v.watch.changes.Load() }

// Decode decodes a stored object and reduces it to the subscription's projection.
func (v View) Decode(r *objects.Record) (runtime.Object, error) {
	object, err := r.Decode(v.options.Projection)
	if m, ok := object.(*metav1.PartialObjectMetadata); ok && v.options.Projection == objects.Metadata {
		v.setKind(m)
	}
	return object, err
}

// DecodeInto decodes a stored object, reduced to the subscription's projection, into the value to which into points. If
// that is a PartialObjectMetadata or an Unstructured, it has the same kind as the result of [View.Decode].
func (v View) DecodeInto(r *objects.Record, into any) error {
	err := r.DecodeInto(into, v.options.Projection)
	if err != nil || v.options.Projection != objects.Metadata {
		return err
	}
	switch o := into.(type) {
	case *metav1.PartialObjectMetadata:
		o.SetGroupVersionKind(partialKind)
		v.setKind(o)
	case *unstructured.Unstructured:
		o.SetGroupVersionKind(partialKind)
		v.setKind(o)
	}
	return nil
}

// partialKind is the kind of metadata whose real kind is unknown.
var partialKind = metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata")

// setKind sets the kind of an object that was decoded as metadata, if it is known.
func (v View) setKind(object schema.ObjectKind) {
	if kindOf := v.watch.pool.config.KindOf; kindOf != nil {
		if kind := kindOf(v.watch.key.GVR); !kind.Empty() {
			object.SetGroupVersionKind(kind)
		}
	}
}
