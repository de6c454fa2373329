package dynamiccontroller

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/feed"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// EventHandler receives the objects of a type, and changes to them; see [DynamicController.AddEventHandler]. A function
// that is nil is not called. Calls for one registration are never concurrent. The context of the functions, and that of
// a predicate, is cancelled by Remove.
//
// The functions can use the controller's listers. The lister of the registration shows the new state, or a later one.
// The functions must not call any other method of the controller. Until a function returns, nothing else is delivered
// to the registration; others are not affected. Run and RunWatches do not wait for the functions, and events that wait
// when they end are still delivered. A panic is logged. A call that ends with runtime.Goexit is made again; if it was
// for an existing object, those for up to 255 others are, too.
type EventHandler struct {
	// OnAdd is called with a new object. If isInInitialList is true, the object existed before; see
	// [DynamicController.AddEventHandler].
	OnAdd func(ctx context.Context, object Object, isInInitialList bool)
	// OnUpdate is called with the states before and after a change.
	OnUpdate func(ctx context.Context, oldObj, newObj Object)
	// OnDelete is called with the last known state of a deleted object. With a selector, an object that no longer matches
	// counts as deleted. Until the existing objects have been delivered, it can be called for an object that OnAdd has not
	// been called for.
	OnDelete func(ctx context.Context, object Object)
}

// EventHandlerRegistration is an event handler that has been added. Its methods are safe for concurrent use.
type EventHandlerRegistration struct {
	independentWatch

	handler EventHandler

	mu        sync.Mutex      // guards the fields below
	delivered <-chan struct{} // the session whose existing objects have been delivered; see typewatch.Subscription.Synced
	changed   chan struct{}   // closed and replaced when delivered has changed
}

// AddEventHandler passes the objects of a type to a handler, whether or not the type is served. It is for parts of a
// program that reconcile nothing, for example those that export metrics or maintain an index. It adds nothing to the
// queue. If another watch of the controller has the same requirements, it is shared.
//
// Events are received while Run or RunWatches is active, also on a standby. When the first list since then is complete,
// OnAdd is called with each existing object, with isInInitialList. This is repeated each time that Run or RunWatches
// begins after neither was active: objects that have been delivered before are delivered again, after the deletions
// that happened in the meantime. From then on, changes are delivered in their order. If more than 1024 changes wait,
// those to the same object are combined: OnUpdate is called with the first old state and the latest new one, and an
// object that has been added and deleted is not delivered.
//
// The options are those of [Watches], except for [WithBucketLabel]. By default, objects are metadata; see [WithCache].
// AddEventHandler sends no requests and does not wait for a sync. The handler receives events until
// [EventHandlerRegistration.Remove] is called.
func (c *DynamicController) AddEventHandler(
	gvr schema.GroupVersionResource, handler EventHandler, opts ...WatchesOption,
) (*EventHandlerRegistration, error) {
	options := independentOptions(gvr)
	if handler.OnAdd == nil && handler.OnUpdate == nil && handler.OnDelete == nil {
		options.reject("the handler has no functions")
	}
	watch, source, lifetime, err := c.newIndependentWatch("the event handler for "+nameOf(gvr), options, opts)
	if err != nil {
		return nil, fmt.Errorf("add an event handler for %s: %w", nameOf(gvr), err)
	}
	r := &EventHandlerRegistration{independentWatch: watch, handler: handler, changed: make(chan struct{})}
	r.sub = feed.Subscribe(c.pool, source, nil)
	r.sub.Attach(r.eventHandler(lifetime))
	return r, nil
}

// eventHandler returns the event handler of the subscription.
func (r *EventHandlerRegistration) eventHandler(ctx context.Context) typewatch.EventHandler {
	e := feed.NewEnvironment(ctx, r.log, r.sub)
	return typewatch.EventHandler{
		Known: func(batch []*typewatch.Object) {
			for _, object := range batch {
				if ctx.Err() != nil {
					return
				}
				r.add(e, object, true)
			}
		},
		Synced: func() {
			session := r.sub.Synced()
			if ctx.Err() != nil || !typewatch.IsClosed(session) { // the session of the objects has ended
				return
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.delivered = session
			close(r.changed)
			r.changed = make(chan struct{})
		},
		Changed: func(c typewatch.Change) {
			switch {
			case ctx.Err() != nil, !feed.Accepts(e, c):
			case c.Old == nil:
				r.add(e, c.New, false)
			case c.New == nil:
				r.call(e, "OnDelete", r.handler.OnDelete != nil, func() { r.handler.OnDelete(e.Context, newObject(c.Old)) })
			default:
				r.call(e, "OnUpdate", r.handler.OnUpdate != nil, func() {
					r.handler.OnUpdate(e.Context, newObject(c.Old), newObject(c.New))
				})
			}
		},
		Loses: func(*typewatch.Object, typewatch.Change) bool { return false }, // see AddEventHandler
	}
}

func (r *EventHandlerRegistration) add(e feed.Environment, object *typewatch.Object, isInInitialList bool) {
	r.call(e, "OnAdd", r.handler.OnAdd != nil, func() { r.handler.OnAdd(e.Context, newObject(object), isInInitialList) })
}

func (r *EventHandlerRegistration) call(e feed.Environment, name string, exists bool, f func()) {
	if exists && e.Context.Err() == nil {
		e.Call(name, name+" of an event handler panicked", f)
	}
}

// HasSynced reports whether OnAdd has been called for all existing objects since Run or RunWatches began.
func (r *EventHandlerRegistration) HasSynced() bool { return !r.hasEnded() && r.beforeSync() == nil }

// WaitForSync waits until HasSynced returns true. If ctx is cancelled first, the error is its cause. If the handler has
// been removed, the error is [ErrNotServed]. WaitForSync must not be called by the handler.
func (r *EventHandlerRegistration) WaitForSync(ctx context.Context) error {
	return r.waitUntil(ctx, r.beforeSync)
}

// beforeSync returns a channel that is closed when the existing objects of another session have been delivered. It
// returns nil if those of the current one have.
func (r *EventHandlerRegistration) beforeSync() (changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.delivered != nil && r.delivered == r.sub.Synced() {
		return nil
	}
	return r.changed
}

// Remove ends the delivery, and waits for a running function to return, and for the watch to end unless it is shared.
// If ctx is cancelled first, or was cancelled before, they end in the background, and the error is the cause. Apart
// from a call that has begun, no function is called afterwards. Remove can be called more than once. The handler itself
// can call it with a context that is cancelled.
func (r *EventHandlerRegistration) Remove(ctx context.Context) error {
	r.end()
	return r.close(ctx, "remove")
}
