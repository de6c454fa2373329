package dynamiccontroller

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/feed"
)

// Watch describes an additional watch for a served type: changes to objects of another type trigger reconciles. Create
// it with [Owns] or [Watches], and pass it to StartServingGVK or AddWatches.
//
// A Watch is immutable. It can be reused, even concurrently and with several controllers. A handler that calls
// AddWatches should create the Watch values once, not on each call. The zero Watch is invalid.
type Watch struct{ options *secondaryOptions }

var _ ServeOption = Watch{}

// Key returns the key of the watch.
func (w Watch) Key() WatchKey {
	if w.options == nil {
		return WatchKey{}
	}
	return w.options.key
}

func (w Watch) applyToServe(o *serveOptions) {
	if err := w.err(); err != nil {
		o.errs = append(o.errs, err)
		return
	}
	o.secondaries = append(o.secondaries, w.options)
}

// err returns the option errors that can be detected without a controller.
func (w Watch) err() error {
	if w.options == nil {
		return errors.New("the Watch is empty; use Owns or Watches")
	}
	return errors.Join(w.options.errs...)
}

// Owns returns a Watch on another type. When an object of that type changes, its owner, an object of the served type,
// is reconciled. The owner is the object whose UID is in the controller reference or, with [EveryOwner], in any owner
// reference. When a change moves an object to another owner, both owners are reconciled. If an object was deleted while
// the watch was down, its last known owner is reconciled. Owners that are not in the cache of the served type are
// ignored until they appear. The owners of all listed objects are reconciled, after any objects with new events.
//
// By default, all objects are watched, and only their metadata is cached ([CacheMetadata]). [CacheKeys] is invalid
// because it does not store owner references. A transform must keep the owner references.
//
// A type that cannot be watched, for example because it does not exist, does not block reconciles. [TypeStatus] reports
// its state. Invalid options are reported by StartServingGVK and AddWatches.
func Owns(child schema.GroupVersionResource, opts ...OwnsOption) Watch {
	o := &secondaryOptions{key: WatchKey{GVR: child, Owned: true}, watchOptions: watchOptions{cache: CacheMetadata}}
	applyAll(opts, OwnsOption.applyToOwns, o)
	return o.asWatch()
}

// Watches returns a Watch on another type. For each changed object, mapFunc returns the objects of the served type to
// reconcile, even if they are not in the cache. In all other respects, the Watch behaves like one from [Owns].
func Watches(gvr schema.GroupVersionResource, mapFunc MapFunc, opts ...WatchesOption) Watch {
	o := &secondaryOptions{key: WatchKey{GVR: gvr}, mapFunc: mapFunc}
	if mapFunc == nil {
		o.reject("the MapFunc is nil")
	}
	return newWatches(o, opts)
}

// newWatches applies the options of Watches or StartWatch to o, and returns the Watch.
func newWatches(o *secondaryOptions, opts []WatchesOption) Watch {
	o.cache = CacheMetadata
	applyAll(opts, WatchesOption.applyToWatches, o)
	return o.asWatch()
}

// asWatch completes and validates the options, and returns the Watch.
func (o *secondaryOptions) asWatch() Watch {
	if o.key.GVR.Version == "" || o.key.GVR.Resource == "" {
		o.reject("the GVR %+v must have a version and a resource", o.key.GVR)
	}
	if o.cache == CacheKeys {
		o.reject("WithCache(CacheKeys) is not supported; use CacheMetadata or CacheFull")
	}
	if o.key.EveryOwner && o.watch.BucketLabel != "" {
		o.reject("WithBucketLabel cannot be combined with EveryOwner, because the label has room for one owner's type")
	}
	o.complete(o.key.GVR)
	o.asFeed = o.source()
	o.asFeed.Watch.Secondary = true
	o.asFeed.Owned, o.asFeed.EveryOwner = o.key.Owned, o.key.EveryOwner
	o.key = watchKeyOf(o.asFeed.Key())
	if o.mapFunc != nil {
		o.asFeed.Targets = o.keys
	}
	for i, err := range o.errs {
		o.errs[i] = fmt.Errorf("%s: %w", o.key.name(), err)
	}
	return Watch{options: o}
}

// AddWatches adds watches to a served type, as if StartServingGVK had been called with them. A handler can call
// AddWatches for its own type and with its own context. A new watch reconciles the owners of the listed objects or, for
// [Watches], the objects that its MapFunc returns. Calls that change nothing are cheap and can be made on every
// reconcile.
//
// If a watch with the same key exists, its MapFunc and predicate are replaced, and indexes with new names are added.
// Its transform and its other indexes are kept. To change them, call RemoveWatches first, or StartServingGVK again.
// However, if the cache mode differs, or if only the new Watch has a transform, the existing watch and its indexes are
// replaced as soon as the replacement has synced. While a handler is being replaced by StartServingGVK, its calls to
// AddWatches do not affect the new options. Once it has been replaced, its calls change nothing and return
// [ErrHandlerReplaced].
//
// If a handler adds a watch, or calls AddWatches for a watch that has not synced yet, its object is reconciled once
// more after the watch has synced. This matters if the handler has read an object, for example from the API server,
// that is deleted before the first list of the watch.
//
// AddWatches sends no requests and does not wait for a sync, but it waits for earlier changes to the type's watches,
// such as a RemoveWatches that waits for a MapFunc. If ctx is cancelled in the meantime, it returns nil and the watches
// are added in the background. It returns [ErrNotServed] if the type is not served. If one of the watches is invalid,
// none is added.
//
// The watches run until RemoveWatches or StopServiceGVK is called, or until StartServingGVK is called without them. To
// keep their caches up to date on standbys, call AddWatches on every replica.
func (c *DynamicController) AddWatches(ctx context.Context, gvr schema.GroupVersionResource, watches ...Watch) error {
	if err := c.addWatches(ctx, gvr, watches); err != nil {
		return fmt.Errorf("add watches to %s: %w", nameOf(gvr), err)
	}
	return nil
}

func (c *DynamicController) addWatches(ctx context.Context, gvr schema.GroupVersionResource, watches []Watch) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, w := range watches {
		if err := w.err(); err != nil {
			return err
		}
	}
	reg, err := c.registry.registrationOf(gvr)
	if err != nil {
		return err
	}
	var caller feed.Caller
	if made := callOf(ctx, c.core); made != nil && made.reg == reg {
		caller = feed.Caller{Options: made.options.feed, Key: made.key}
	}
	at := func(i int) *feed.Source { return watches[i].options.asFeed }
	if updated, err := reg.feed.UpdateWatches(len(watches), at, caller); updated || err != nil {
		return publicError(err)
	}
	sources := make([]*feed.Source, len(watches))
	for i, w := range watches {
		if err := c.source.Check(w.options.watch.Projection); err != nil {
			return fmt.Errorf("%s: %w", w.options.key.name(), err)
		}
		sources[i] = w.options.asFeed
	}
	select {
	case err := <-reg.feed.AddWatches(sources, caller):
		return publicError(err)
	case <-ctx.Done():
		return nil
	}
}

// publicError returns ErrHandlerReplaced instead of the feed's error.
func publicError(err error) error {
	if errors.Is(err, feed.ErrReplaced) {
		return ErrHandlerReplaced
	}
	return err
}

// RemoveWatches ends the watches with the given keys (see [Watch.Key]), whether AddWatches or StartServingGVK added
// them. Once it has returned nil, these watches add no more objects to the queue. Unknown keys and types that are not
// served are ignored. A call that removes nothing is cheap.
//
// RemoveWatches waits for running predicates and MapFuncs of these watches. If ctx is cancelled first, it returns the
// cause, and the removal continues in the background.
func (c *DynamicController) RemoveWatches(
	ctx context.Context, gvr schema.GroupVersionResource, keys ...WatchKey,
) error {
	reg, err := c.registry.registrationOf(gvr)
	if err != nil {
		return nil //nolint:nilerr // a type that is not served has no watches
	}
	done := reg.feed.RemoveWatches(len(keys), func(i int) feed.Key { return keys[i].asFeed() })
	if done != nil && !await(ctx, done) {
		return fmt.Errorf("remove watches from %s: %w", nameOf(gvr), context.Cause(ctx))
	}
	return nil
}
