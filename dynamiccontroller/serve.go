package dynamiccontroller

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// StartServingGVK watches the type's objects and reconciles them with handler from now on: at once while Run and the
// watches run, else as soon as they do. It registers all or nothing, makes no request and waits for no sync
// (WaitForGVRSync does); ctx bounds the call alone: the predicates and MapFuncs of those who share a watch with the type may
// have to be waited for, and when ctx ends meanwhile the type is registered and the rest is done in the background. What is
// wrong with the type itself, that it is not served or may
// not be watched, is seen in Status and retried.
//
// Called again for the same GVR it swaps handler and options, and reconciles every object once. Handlers that run
// already finish with what they began with. If the new options need another watch, nothing of the type is handed to
// its handler until that has synced.
//
// It may be called at any time and concurrently, from handlers too.
func (c *DynamicController) StartServingGVK(ctx context.Context, gvr schema.GroupVersionResource, handler Handler, opts ...ServeOption) error {
	fail := func(err error) error { return fmt.Errorf("start serving %s: %w", nameOf(gvr), err) }
	if c.configErr != nil {
		return fail(c.configErr)
	}
	next, err := c.newServed(gvr, handler, opts)
	if err != nil {
		return fail(err)
	}
	if ctx.Err() != nil {
		return fail(context.Cause(ctx))
	}
	reg, anew, attach, left := c.register(gvr, next)
	reg.log.Info("serving", keyAnew, anew)
	goOn(ctx, func() {
		left.leave(attach)
		if attach {
			c.attach(reg)
		}
	})
	return nil
}

// register makes the registration, or the swap of one that there is. It tells whether the caller is to attach it, once
// what is left of the needs before has left.
func (c *DynamicController) register(gvr schema.GroupVersionResource, next *served) (reg *registration, anew, attach bool, left leavings) {
	c.mu.Lock()
	defer c.mu.Unlock()
	reg, anew = c.registrations[gvr], true
	if reg == nil {
		reg, anew = newRegistration(c, gvr), false
		c.registrations[gvr] = reg
		reg.group = c.storage.Open(gvr, reg, next.limits())
		reg.gate.group = reg.group
		reg.group.Hold()
	} else {
		reg.group.SetLimits(next.limits())
	}
	left = append(c.needLocked(reg, next), c.secondariesLocked(reg, next.secondaries)...)
	reg.shutLocked()
	reg.served.Store(next)
	c.limits.set(gvr, next.limiter)
	return reg, anew, c.hearLocked(reg), left
}

// StopServiceGVK ends what StartServingGVK began. At once no handler starts any more, the contexts of those that run
// end ([ErrServingStopped]), and the type leaves queue, status, metrics and cache. Then it waits for handlers and watch
// to return. If ctx ends first the error says what still runs; it ends in its own time, and calling again waits again.
//
// A type that is not served is no error. Called with the context of one of the type's own handlers, it would wait for
// itself: an error at once, and nothing is stopped.
func (c *DynamicController) StopServiceGVK(ctx context.Context, gvr schema.GroupVersionResource) error {
	if own, _ := ctx.Value(ownKey{c}).(schema.GroupVersionResource); own == gvr && !own.Empty() {
		return fmt.Errorf("stop serving %s: called from one of its own handlers, which it would wait for", nameOf(gvr))
	}
	regs, left := c.unregister(gvr)
	for _, reg := range regs {
		reg.close()
	}
	if len(left) > 0 {
		go left.end() // a predicate that hangs, or ctx, may be in the way
	}
	var running []string
	for _, reg := range regs {
		if !isClosed(reg.ended) {
			select {
			case <-reg.ended:
			case <-ctx.Done():
				running = append(running, reg.stillRunning()...)
			}
		}
	}
	if len(running) > 0 {
		return fmt.Errorf("stop serving %s: %w while these still run: %s", nameOf(gvr), context.Cause(ctx), enumerate(running))
	}
	if len(regs) > 0 {
		c.log.Info("no longer serving", keyGVR, nameOf(gvr))
	}
	return nil
}

// unregister takes the type out of everything and returns the registrations of it that have not ended, and what is left of
// the needs of the last.
func (c *DynamicController) unregister(gvr schema.GroupVersionResource) (ending []*registration, left leavings) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if reg := c.registrations[gvr]; reg != nil {
		delete(c.registrations, gvr)
		c.ending[gvr] = append(c.ending[gvr], reg)
		reg.group.Close()
		reg.gate.close()
		left = append(left, c.releaseLocked(reg, reg.primary, nil))
		for _, s := range reg.secondaries {
			left = append(left, c.releaseLocked(reg, s.need, nil))
		}
		c.limits.remove(gvr)
	}
	return slices.Clone(c.ending[gvr]), left
}

// forget lets go of a registration that has ended, and has the metrics forget the type if it was the last.
func (c *DynamicController) forget(reg *registration) {
	c.mu.Lock()
	ending := slices.DeleteFunc(c.ending[reg.gvr], func(other *registration) bool { return other == reg })
	if len(ending) == 0 {
		delete(c.ending, reg.gvr)
	} else {
		c.ending[reg.gvr] = ending
	}
	last := len(ending) == 0 && c.registrations[reg.gvr] == nil
	c.mu.Unlock()
	if last {
		reg.report(func() { c.metrics.Forget(reg.gvr) })
	}
}
