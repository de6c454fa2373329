package dynamiccontroller

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/feed"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// EventHandler receives the objects of a type, and changes to them; see [DynamicController.AddEventHandler]. A function
// that is nil is not called. Calls for one registration are never concurrent. The context is cancelled by Remove.
//
// The functions can use the controller's listers. The lister of the registration shows the new state, or a later one.
// The functions must not call any other method of the controller or of the registration. Until a function returns,
// nothing else is delivered to the registration; others are not affected. If a function panics or calls
// runtime.Goexit, this is logged.
type EventHandler struct {
	// OnAdd is called with a new object. If isInInitialList is true, the object existed before; see
	// [DynamicController.AddEventHandler].
	OnAdd func(ctx context.Context, object Object, isInInitialList bool)
	// OnUpdate is called with the states before and after a change.
	OnUpdate func(ctx context.Context, oldObj, newObj Object)
	// OnDelete is called with the last known state of a deleted object. With a selector, an object that no longer matches
	// counts as deleted.
	OnDelete func(ctx context.Context, object Object)
}

// EventHandlerRegistration is an event handler that has been added. Its methods are safe for concurrent use.
type EventHandlerRegistration struct {
	sub     *typewatch.Subscription
	log     logr.Logger
	key     WatchKey
	handler EventHandler
	cancel  context.CancelFunc
	removed <-chan struct{} // closed when Remove has been called

	mu     sync.Mutex    // guards synced
	synced chan struct{} // closed while the existing objects have been delivered; replaced when a session begins
}

// AddEventHandler passes the objects of a type to a handler, whether or not the type is served. It is for parts of a
// program that reconcile nothing, for example those that export metrics or maintain an index. It adds nothing to the
// queue. If another watch of the controller has the same requirements, it is shared.
//
// Events are delivered while Run or RunWatches is active, on every replica. When the first list since then is complete,
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
	noKeys := func(context.Context, Object) []string { return nil } // makes the watch call functions without locks
	options := newWatches(&secondaryOptions{key: WatchKey{GVR: gvr}, mapFunc: noKeys}, opts)
	if err := c.checkEventHandler(handler, options); err != nil {
		return nil, fmt.Errorf("add an event handler for %s: %w", nameOf(gvr), err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &EventHandlerRegistration{
		log: c.logOf(gvr), key: options.Key(), handler: handler, cancel: cancel, removed: ctx.Done(),
		synced: make(chan struct{}),
	}
	r.sub = feed.Subscribe(c.pool, options.options.asFeed, nil)
	r.sub.Attach(r.eventHandler(ctx))
	return r, nil
}

func (c *DynamicController) checkEventHandler(handler EventHandler, options Watch) error {
	switch {
	case c.configErr != nil:
		return c.configErr
	case handler.OnAdd == nil && handler.OnUpdate == nil && handler.OnDelete == nil:
		return errors.New("the handler has no functions")
	case options.err() != nil:
		return options.err()
	case options.Key().BucketLabel != "":
		return errors.New("WithBucketLabel is not supported, because the watch belongs to no shard")
	default:
		return c.source.Check(options.options.watch.Projection)
	}
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
			r.mu.Lock()
			defer r.mu.Unlock()
			if !typewatch.IsClosed(r.synced) {
				close(r.synced)
			}
		},
		Changed: func(c typewatch.Change) {
			switch {
			case !feed.Accepts(e, c):
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
		Loses: func(*typewatch.Object, typewatch.Change) bool { return false }, // combined changes are documented
	}
}

func (r *EventHandlerRegistration) add(e feed.Environment, object *typewatch.Object, isInInitialList bool) {
	r.call(e, "OnAdd", r.handler.OnAdd != nil, func() { r.handler.OnAdd(e.Context, newObject(object), isInInitialList) })
}

func (r *EventHandlerRegistration) call(e feed.Environment, name string, exists bool, f func()) {
	if exists {
		e.Call(name, name+" of an event handler panicked", f)
	}
}

// Key returns a key that describes the watch. Several registrations can have equal keys.
func (r *EventHandlerRegistration) Key() WatchKey { return r.key }

// HasSynced reports whether OnAdd has been called for all existing objects since Run or RunWatches began.
func (r *EventHandlerRegistration) HasSynced() bool { return typewatch.IsClosed(r.syncedChannel()) }

// WaitForSync waits until HasSynced returns true. If ctx is cancelled first, the error is its cause. If the handler has
// been removed, the error is [ErrNotServed]. WaitForSync must not be called by the handler.
func (r *EventHandlerRegistration) WaitForSync(ctx context.Context) error {
	var err error
	select {
	case <-r.syncedChannel():
		return nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-r.removed:
		err = ErrNotServed
	}
	return fmt.Errorf("wait for the event handler for %s: %w", nameOf(r.key.GVR), err)
}

// syncedChannel returns the channel that is closed when the existing objects of the session have been delivered.
func (r *EventHandlerRegistration) syncedChannel() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if typewatch.IsClosed(r.synced) && !r.sub.View().HasSynced() { // another session has begun, or none is active
		r.synced = make(chan struct{})
	}
	return r.synced
}

// Status returns the status of the watch.
func (r *EventHandlerRegistration) Status() WatchStatus { return watchStatusOf(r.sub) }

// RunningFunction returns the function of the handler, or the predicate, that has been running for the longest time. It
// returns nil if none has been running for more than a second.
func (r *EventHandlerRegistration) RunningFunction() *RunningFunction {
	var status TypeStatus
	status.addRunning(r.sub, " of "+nameOf(r.key.GVR))
	return status.RunningFunction
}

// Lister returns a lister that reads the cache of the watch. After Remove, the cache is no longer updated.
func (r *EventHandlerRegistration) Lister() SecondaryLister {
	find := func() (typewatch.View, error) { return r.sub.View(), nil }
	return secondaryLister{lister: lister{gvr: r.key.GVR, find: find, addIndexes: r.addIndexes}}
}

func (r *EventHandlerRegistration) addIndexes(indexes *typewatch.Indexes) (done <-chan struct{}, err error) {
	if typewatch.IsClosed(r.removed) {
		return nil, fmt.Errorf("the event handler for %s: %w", nameOf(r.key.GVR), ErrNotServed)
	}
	r.sub.AddIndexes(indexes)
	return closedAfter(func() {}), nil
}

// Remove ends the delivery, and waits for a running function to return. If ctx is cancelled first, or was cancelled
// before, the function ends in the background, and the error is the cause. No function is called after Remove has been
// called, apart from one that is running. Remove can be called more than once. The handler itself can call it with a
// context that is cancelled.
func (r *EventHandlerRegistration) Remove(ctx context.Context) error {
	r.cancel()
	r.sub.Close()
	if !await(ctx, r.sub.Ended()) {
		return fmt.Errorf("remove the event handler for %s: %w", nameOf(r.key.GVR), context.Cause(ctx))
	}
	return nil
}
