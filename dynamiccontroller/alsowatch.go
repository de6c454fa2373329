package dynamiccontroller

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// AlsoWatch adds what the options ask for, any number of [Owns] and [Watches] and nothing else, to a type that is served,
// as if StartServingGVK had been called with them. A handler may call it with its own context and type when it learns of
// a new type of child. The objects that the initial list routes to are reconciled, and no others; what there is already
// stays as it is, but for its predicate and MapFunc, which are replaced. It makes no request and waits for no sync; what
// others who share the watch are told may have to be waited for, and when ctx ends meanwhile the rest is done in the
// background.
//
// A standby calls no handlers: what it is to keep warm for a promotion is to be added on every replica, by the one who serves
// the type there.
//
// What was added ends with [DynamicController.StopWatching], with the serving of the type, and when StartServingGVK is
// called again without it. The error is [ErrNotServed] if the type is not served.
func (c *DynamicController) AlsoWatch(ctx context.Context, gvr schema.GroupVersionResource, opts ...ServeOption) error {
	fail := func(err error) error { return fmt.Errorf("watch beside %s: %w", nameOf(gvr), err) }
	wanted, err := c.newSecondaries(opts)
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fail(err)
	}
	reg, added, attach, left, err := c.addSecondaries(gvr, wanted)
	if err != nil {
		return fail(err)
	}
	goOn(ctx, func() {
		left.leave(attach)
		if attach {
			defer c.heard(reg)
			c.attachSecondaries(added)
		}
	})
	if len(added) > 0 {
		reg.log.V(1).Info("watching beside the type", keyTypes, len(added))
	}
	return nil
}

// StopWatching ends what the options name, as they were given to AlsoWatch or StartServingGVK: [Owns] and [Watches] with
// the same type, namespace, selector and EveryOwner; a MapFunc, predicate and the like do not matter and may be nil. When
// it returns nothing of them reconciles any more. What is not watched is no error. If ctx ends first, because a
// predicate hangs for instance, the error says so, and it ends in its own time.
func (c *DynamicController) StopWatching(ctx context.Context, gvr schema.GroupVersionResource, opts ...ServeOption) error {
	fail := func(err error) error { return fmt.Errorf("stop watching beside %s: %w", nameOf(gvr), err) }
	named := namedSecondaries(opts)
	if err := errors.Join(named.errs...); err != nil {
		return fail(err)
	}
	left := c.removeSecondaries(gvr, named.secondaries)
	if len(left) == 0 {
		return nil
	}
	if !goOn(ctx, func() { left.leave(false) }) {
		return fail(context.Cause(ctx))
	}
	return nil
}

func (c *DynamicController) addSecondaries(gvr schema.GroupVersionResource, wanted []*secondaryOptions) (reg *registration, added []*secondary, attach bool, left leavings, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	reg = c.registrations[gvr]
	if reg == nil {
		return nil, nil, false, nil, ErrNotServed
	}
	for _, options := range wanted {
		s, gone := c.secondaryLocked(reg, options)
		left = append(left, gone...)
		if s != reg.secondaries[options.key] {
			added = append(added, s)
		}
		reg.secondaries[options.key] = s
	}
	return reg, added, c.hearLocked(reg), left, nil
}

func (c *DynamicController) removeSecondaries(gvr schema.GroupVersionResource, named []*secondaryOptions) (left leavings) {
	c.mu.Lock()
	defer c.mu.Unlock()
	reg := c.registrations[gvr]
	if reg == nil {
		return nil
	}
	for _, options := range named {
		if s := reg.secondaries[options.key]; s != nil {
			delete(reg.secondaries, options.key)
			left = append(left, c.releaseLocked(reg, s.need, nil))
			reg.gate.pass(s)
		}
	}
	return left
}
