package dynamiccontroller

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// StartServingGVK watches the type's objects and reconciles them with handler from now on: at once while Run and the
// watches run, else as soon as they do. It registers all or nothing, makes no request and waits for no sync
// (WaitForGVRSync does); ctx bounds the call alone. What is wrong with the type itself, that it is not served or may
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
	reg, anew, attach := c.register(gvr, next)
	reg.log.Info("serving", keyAnew, anew)
	if attach {
		c.attach(reg)
	}
	return nil
}

// register makes the registration, or the swap of one that there is. It tells whether the caller is to attach it.
func (c *DynamicController) register(gvr schema.GroupVersionResource, next *served) (reg *registration, anew, attach bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	reg, anew = c.registrations[gvr], true
	if reg == nil {
		reg, anew = newRegistration(c, gvr), false
		c.registrations[gvr] = reg
		reg.group = c.storage.Open(gvr, reg, next.limits())
		c.rewatchLocked(reg, next)
	} else {
		reg.group.SetLimits(next.limits())
		if !reg.served.Load().sameWatch(next) {
			c.rewatchLocked(reg, next)
		}
	}
	reg.served.Store(next)
	c.limits.set(gvr, next.limiter)
	return reg, anew, c.reconciling
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
	regs := c.unregister(gvr)
	for _, reg := range regs {
		reg.close()
	}
	var left []string
	for _, reg := range regs {
		if !isClosed(reg.ended) {
			select {
			case <-reg.ended:
			case <-ctx.Done():
				left = append(left, reg.stillRunning()...)
			}
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("stop serving %s: %w while these still run: %s", nameOf(gvr), context.Cause(ctx), enumerate(left))
	}
	if len(regs) > 0 {
		c.log.Info("no longer serving", keyGVR, nameOf(gvr))
	}
	return nil
}

// unregister takes the type out of everything and returns the registrations of it that have not ended.
func (c *DynamicController) unregister(gvr schema.GroupVersionResource) []*registration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if reg := c.registrations[gvr]; reg != nil {
		delete(c.registrations, gvr)
		c.ending[gvr] = append(c.ending[gvr], reg)
		reg.group.Close()
		reg.watch.cancel()
		c.limits.remove(gvr)
	}
	return slices.Clone(c.ending[gvr])
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
		reg.tell(func() { c.metrics.Forget(reg.gvr) })
	}
}
