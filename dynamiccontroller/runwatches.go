package dynamiccontroller

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/feed"
	"github.com/dynamic-controller/engine/internal/shards"
)

// RunWatches keeps the caches of the served types up to date until ctx is cancelled: those of all types or, if ctx
// carries a shard, of the types in the shard; see [WithShard]. It does not reconcile. Call RunWatches on every replica
// that may lead. While it is running, runs can start and end any number of times. A standby replica queues nothing.
//
// The watches of a type are running while RunWatches or Run is, for its shard or for all types. Afterwards, the type's
// caches are dropped if the last call to end was for a shard, or if other shards are still served or watched. Calls for
// several shards can run at the same time.
// RunWatches returns an error if it is already running for the shard, or for a shard with another count.
func (c *DynamicController) RunWatches(ctx context.Context) error {
	if err := c.runWatches(ctx); err != nil {
		return fmt.Errorf("run the watches: %w", err)
	}
	return nil
}

func (c *DynamicController) runWatches(ctx context.Context) error {
	if c.configErr != nil {
		return c.configErr
	}
	scope := shards.From(ctx)
	if err := validateShard(scope); err != nil {
		return err
	}
	if err := c.registry.beginWatches(scope); err != nil {
		return err
	}
	release := c.sessions.acquire(ctx, nil)
	<-ctx.Done()
	dropped := c.registry.leaveScope(scope)
	release()
	for _, watches := range dropped {
		<-watches.done
	}
	c.registry.forgetInactive(scope)
	c.registry.endWatches(scope)
	return nil
}

// WatchRunner runs the watches of a controller, and reports whether they have synced. It is a value for code that keeps
// caches up to date and does not need the rest of the controller, such as package replica. Use
// [DynamicController.Watches] to create it.
type WatchRunner struct{ controller *DynamicController }

// Watches returns a WatchRunner for the controller.
func (c *DynamicController) Watches() WatchRunner { return WatchRunner{c} }

// Run calls [DynamicController.RunWatches].
func (w WatchRunner) Run(ctx context.Context) error { return w.controller.RunWatches(ctx) }

// HasSynced reports whether the caches of all types that are being watched are complete. Types that cannot be listed do
// not count, as for HasSyncedShard, so that HasSynced can be used as a readiness check. It returns false while neither
// Run nor RunWatches is active.
func (w WatchRunner) HasSynced() bool { return w.isWarm(w.controller.registry.watched()) }

// HasSyncedShard reports whether a run of the shard could begin without waiting for a list. Run or RunWatches must be
// active for the shard, or for all types. The caches of the shard's types, of their owned and watched types, and of all
// standalone watches must be complete. A type that has been forbidden or missing for a quarter of a second does not
// count. A type whose requests fail for another reason does not count after one minute.
func (w WatchRunner) HasSyncedShard(index, count int) bool {
	return w.isWarm(w.controller.registry.registeredIn(shards.Shard{Index: index, Count: count}))
}

// isWarm reports whether the caches of the registrations and of all standalone watches are complete. It returns false
// if the registrations are not part of a current scope.
func (w WatchRunner) isWarm(regs []*registration, current bool) bool {
	if !current {
		return false
	}
	for _, reg := range regs {
		if !reg.feed.IsWarm() {
			return false
		}
	}
	for _, standalone := range w.controller.registry.standaloneWatches() {
		if !feed.IsWarm(standalone.sub) {
			return false
		}
	}
	return true
}

// startWatches starts the watches, and the type events for them.
func (c *DynamicController) startWatches() (stop func()) {
	stopWatches, cancel := c.pool.Start(), func() {}
	subscribed := closedAfter(func() { cancel = c.subscribeTypeEvents() })
	return func() {
		stopWatches() // first, because the functions of TypeEvents can hang
		<-subscribed
		cancel()
	}
}

// subscribeTypeEvents passes type events to the watches until cancel is called. A panic in TypeEvents is logged.
func (c *DynamicController) subscribeTypeEvents() (cancel func()) {
	if c.typeEvents == nil {
		return func() {}
	}
	var cancelEvents func()
	callUserCode(c.log, "TypeEvents panicked", func() {
		cancelEvents = c.typeEvents(func(gvr schema.GroupVersionResource, served bool) {
			if served {
				c.pool.Appeared(gvr)
			} else if c.pool.Vanished(gvr) {
				c.log.Info("Type is no longer served by the API server", keyGVR, nameOf(gvr))
			}
		})
	})
	return func() {
		if cancelEvents != nil {
			callUserCode(c.log, "TypeEvents panicked", cancelEvents)
		}
	}
}
