package dynamiccontroller

import (
	"context"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// watchTerm is one time that watches run, from RunWatches or Run beginning to its end.
type watchTerm struct {
	spawn func(run func(context.Context)) context.CancelFunc // to be called with the controller's lock held
	end   func()                                             // ends all that was spawned and waits for it
	ended chan struct{}                                      // closed when end was called
	// closing: nothing is spawned any more. The controller's lock guards it.
	closing bool
}

func newWatchTerm(ctx context.Context) *watchTerm {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	t := &watchTerm{ended: make(chan struct{})}
	t.spawn = func(run func(context.Context)) context.CancelFunc {
		ctx, cancel := context.WithCancel(ctx)
		running.Go(func() {
			defer cancel()
			run(ctx)
		})
		return cancel
	}
	t.end = func() {
		close(t.ended)
		cancel()
		running.Wait()
	}
	return t
}

// hearTypeEvents passes on what is told of types to their watches, until the returned func is called.
func (c *DynamicController) hearTypeEvents() (stop func()) {
	if c.typeEvents == nil {
		return func() {}
	}
	return c.typeEvents(func(gvr schema.GroupVersionResource, served bool) {
		reg, err := c.registrationOf(gvr)
		switch {
		case err != nil:
		case served:
			c.watchOf(reg).Appeared()
		default:
			c.log.Info("the type is gone from the API server", keyGVR, nameOf(gvr))
			c.watchOf(reg).Vanished()
		}
	})
}

func (c *DynamicController) beginWatchingLocked(ctx context.Context) *watchTerm {
	c.watching = newWatchTerm(ctx)
	c.log.Info("watching", keyTypes, len(c.registrations))
	for _, reg := range c.registrations {
		c.startWatchLocked(reg)
	}
	return c.watching
}

// endWatching ends and joins the term's watches. Until that is done no others begin.
func (c *DynamicController) endWatching(watches *watchTerm) {
	c.mu.Lock()
	watches.closing = true
	c.mu.Unlock()
	watches.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watching = nil
}

// watchLocked starts the registration's watch if watches run; if not, the next term does.
func (c *DynamicController) watchLocked(reg *registration) {
	if c.watching != nil && !c.watching.closing {
		c.startWatchLocked(reg)
	}
}

func (c *DynamicController) startWatchLocked(reg *registration) {
	watch := reg.watch
	watch.ended = make(chan struct{})
	reg.watchStarted()
	watch.cancel = c.watching.spawn(func(ctx context.Context) {
		defer reg.watchEnded()
		defer close(watch.ended)
		select {
		case <-watch.after:
			watch.Run(ctx, reg.log)
		case <-ctx.Done():
		}
	})
}

// rewatchLocked gives the registration the watch that its options ask for, in place of the one that it has. Until the
// new one has synced, what is queued of the type waits.
func (c *DynamicController) rewatchLocked(reg *registration, next *served) {
	reg.group.Hold()
	watch := &runningWatch{
		Watch:  typewatch.New(reg.log, next.watched, c.clients, next.transform, func(s typewatch.State) { logState(reg.log, s) }),
		cancel: func() {},
		ended:  make(chan struct{}),
	}
	close(watch.ended)
	watch.after = watch.ended
	if before := reg.watch; before != nil {
		// What the old watch still tells goes to the queue; what it knew and the new one does not find was deleted. They
		// do not run side by side, so that whoever they call is called from one goroutine at a time.
		watch.Inherit(before.Watch)
		watch.after = before.ended
		before.cancel()
	}
	reg.watch = watch
	c.watchLocked(reg)
}

func logState(log logr.Logger, s typewatch.State) {
	switch s.Phase {
	case typewatch.Forbidden:
		log.Error(nil, "the type may not be watched, will retry", keyState, s.Phase, keyMessage, s.Message)
	case typewatch.NotFound, typewatch.Failing:
		log.Info("the type cannot be watched, will retry", keyState, s.Phase, keyMessage, s.Message)
	default:
		log.V(1).Info("watch changed state", keyState, s.Phase)
	}
}
