package dynamiccontroller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/feed"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// StartServingGVK watches the objects of a type and reconciles them with handler while Run is running. It sends no
// requests and does not wait for a sync; see [DynamicController.WaitForGVRSync]. If it returns an error, nothing has
// changed. It returns no error if the API server does not serve the type or denies access to it: [TypeStatus] reports
// this, and the watch is retried.
//
// If the controller already serves the type, the handler and the options are replaced, and every object is reconciled
// once. If the new options need a different watch, they take effect once that watch has synced; until then,
// [TypeStatus].Replacement reports the state of the new watch. Another call supersedes a pending replacement.
//
// StartServingGVK may have to wait for running predicates and MapFuncs of the type. If ctx is cancelled first, it
// returns nil and the work continues in the background. Handlers can call it.
func (c *DynamicController) StartServingGVK(
	ctx context.Context, gvr schema.GroupVersionResource, handler Handler, opts ...ServeOption,
) error {
	fail := func(err error) error { return fmt.Errorf("start serving %s: %w", nameOf(gvr), err) }
	if c.configErr != nil {
		return fail(c.configErr)
	}
	next, err := c.newServeOptions(gvr, handler, opts)
	if err != nil {
		return fail(err)
	}
	if ctx.Err() != nil {
		return fail(context.Cause(ctx))
	}
	reg, done := c.register(next)
	reg.log.Info("Started serving")
	await(ctx, done)
	return nil
}

// newServeOptions applies the options. The returned error lists all invalid options.
func (c *DynamicController) newServeOptions(
	gvr schema.GroupVersionResource, handler Handler, opts []ServeOption,
) (*serveOptions, error) {
	o := &serveOptions{
		gvr:     gvr,
		handler: handler,
		weight:  1,
		timeout: defaultReconcileTimeout,
	}
	if gvr.Version == "" || gvr.Resource == "" {
		o.reject("the GVR %+v must have a version and a resource", gvr)
	}
	if handler == nil {
		o.reject("the handler is nil")
	}
	applyAll(opts, ServeOption.applyToServe, o)
	if o.perFlow > 0 && o.flowOf == nil {
		o.reject("WithFlowConcurrency(%d) requires WithFlow", o.perFlow)
	}
	o.complete(gvr)
	o.errs = append(o.errs, c.source.Check(o.watch.Projection))
	for _, secondary := range o.secondaries {
		if err := c.source.Check(secondary.watch.Projection); err != nil {
			o.reject("%s: %w", secondary.key.name(), err)
		}
	}
	return o, invalid(errors.Join(o.errs...))
}

// register creates or changes a registration. Once the registration's subscriptions have been updated, done is closed.
func (c *DynamicController) register(next *serveOptions) (reg *registration, done <-chan struct{}) {
	log := c.logOf(next.gvr) // here, because the registry is locked when create is called
	create := func(forgotten <-chan struct{}) *registration {
		return newRegistration(c.core, next.gvr, log, forgotten, c.forget)
	}
	return c.registry.register(next, create, func(r *run, reg *registration) (attached <-chan struct{}) {
		return c.attach(r, reg, nil)
	})
}

// forget removes a registration that has ended. For the type's last registration, it calls Metrics.Forget first.
func (c *DynamicController) forget(reg *registration) {
	c.registry.forget(reg, func() {
		if c.metrics != nil {
			callUserCode(reg.log, "Metrics panicked", func() { c.metrics.Forget(reg.gvr) })
		}
	})
}

// feedOptions returns what the feed needs of the options. When they take effect, they become the registration's
// options.
func (r *registration) feedOptions(next *serveOptions) *feed.Options {
	next.feed = &feed.Options{
		Primary: next.source(), Secondaries: next.sources(), KeepSecondaries: next.keepWatches,
		Effect: func() {
			r.group.Configure(r.queueOptions(next))
			r.options.Store(next)
		},
	}
	return next.feed
}

// StopServiceGVK stops serving a type. It prevents further handler calls for the type, cancels the contexts of running
// handlers with [ErrServingStopped], and removes the type from the queue, the status and the metrics. StopServiceGVK
// waits for the handlers and the watch to end. If ctx is cancelled first, they end in the background, and the error
// lists what is still running. StopServiceGVK can then be called again to wait for them.
//
// It returns nil if the type is not served. When called with the context of one of the type's own handlers, it only
// returns an error, because it would otherwise wait for its own caller. With another context, a handler that stops its
// own type waits for itself until ctx is cancelled. If handlers or functions are still running after ten seconds, they
// are logged.
func (c *DynamicController) StopServiceGVK(ctx context.Context, gvr schema.GroupVersionResource) error {
	if own := callOf(ctx, c.core); own != nil && own.reg.gvr == gvr {
		return fmt.Errorf("stop serving %s: must not be called with the context of one of its own handlers", nameOf(gvr))
	}
	ending := c.registry.unregister(gvr)
	for _, reg := range ending {
		reg.close()
		c.waits.endOfType(reg)
	}
	if len(ending) > 0 {
		slow := time.AfterFunc(slowStop, func() { c.logSlowStop(gvr, ending) })
		defer slow.Stop()
	}
	var running []string
	for _, reg := range ending {
		if !await(ctx, reg.ended) {
			running = append(running, reg.stillActive()...)
		}
	}
	if len(running) > 0 {
		return fmt.Errorf("stop serving %s: %w; %w: %s",
			nameOf(gvr), context.Cause(ctx), ErrStillRunning, enumerate(running))
	}
	if len(ending) > 0 {
		c.log.Info("Stopped serving", keyGVR, nameOf(gvr))
	}
	return nil
}

// slowStop is the time after which StopServiceGVK logs what is still running.
const slowStop = 10 * time.Second

func (c *DynamicController) logSlowStop(gvr schema.GroupVersionResource, ending []*registration) {
	var running []string
	for _, reg := range ending {
		if !typewatch.IsClosed(reg.ended) {
			running = append(running, reg.stillActive()...)
		}
	}
	if len(running) == 0 { // the last registration has just ended
		return
	}
	c.log.Info("Waiting for a type to stop", keyGVR, nameOf(gvr), keyRunning, enumerate(running))
}
