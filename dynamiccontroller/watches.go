package dynamiccontroller

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/protect"
)

// watchTerm is one time that watches run, from RunWatches or Run beginning to its end.
type watchTerm struct {
	began chan struct{} // closed when whoever made the term has begun it
	ended chan struct{} // closed when it is to end
	over  chan struct{} // closed when it has
	// stopHearing is set before began is closed.
	stopHearing func()

	// The controller's lock guards what follows.

	ofRun bool // a Run watches for itself: the term ends with it, unless RunWatches takes it over
}

func (c *DynamicController) newWatchTermLocked(ofRun bool) *watchTerm {
	c.watching = &watchTerm{began: make(chan struct{}), ended: make(chan struct{}), over: make(chan struct{}), ofRun: ofRun}
	c.log.Info("watching", keyTypes, len(c.registrations))
	return c.watching
}

// beginWatching begins the term for whoever made it.
func (c *DynamicController) beginWatching(ctx context.Context, watches *watchTerm) {
	defer close(watches.began)
	c.pool.Begin(ctx)
	watches.stopHearing = c.hearTypeEvents()
}

// endWatching ends and joins the term's watches, unless they are RunWatches' and a Run asks. Until that is done no others
// begin.
func (c *DynamicController) endWatching(watches *watchTerm, byRun bool) {
	c.mu.Lock()
	if byRun && !watches.ofRun {
		c.mu.Unlock()
		return
	}
	close(watches.ended)
	c.mu.Unlock()

	defer close(watches.over)
	<-watches.began
	watches.stopHearing()
	c.pool.End()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watching = nil
}

// takeWatches gives the watches to RunWatches: those that a Run has begun go on as they are, so that it does not matter
// which of the two is first. A Run that is just ending them is waited for; when ctx ends meanwhile there is no term.
func (c *DynamicController) takeWatches(ctx context.Context) (watches *watchTerm, anew bool, err error) {
	for {
		c.mu.Lock()
		watches := c.watching
		switch {
		case watches == nil:
			defer c.mu.Unlock()
			return c.newWatchTermLocked(false), true, nil
		case !watches.ofRun:
			defer c.mu.Unlock()
			return nil, false, errWatching
		case !isClosed(watches.ended):
			defer c.mu.Unlock()
			watches.ofRun = false
			return watches, false, nil
		}
		c.mu.Unlock()
		select {
		case <-watches.over:
		case <-ctx.Done():
			return nil, false, nil
		}
	}
}

// hearTypeEvents passes type events on to the watches, until the returned func is called. If TypeEvents panics, the
// watches run without type events.
func (c *DynamicController) hearTypeEvents() (stop func()) {
	if c.typeEvents == nil {
		return func() {}
	}
	var cancel func()
	c.guardTypeEvents(func() {
		cancel = c.typeEvents(func(gvr schema.GroupVersionResource, served bool) {
			if served {
				c.pool.Appeared(gvr)
			} else if c.pool.Vanished(gvr) {
				c.log.Info("the type is gone from the API server", keyGVR, nameOf(gvr))
			}
		})
	})
	return func() {
		if cancel != nil {
			c.guardTypeEvents(cancel)
		}
	}
}

func (c *DynamicController) guardTypeEvents(call func()) {
	if panicked := protect.Call(call); panicked != nil {
		c.log.Error(panicked, "TypeEvents panicked", keyStack, string(panicked.Stack))
	}
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
