package dynamiccontroller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// Watch describes an additional watch for a served type: changes to objects of another type trigger reconciles. Create
// it with [Owns] or [Watches], and pass it to StartServingGVK or AddWatches.
//
// A Watch is immutable. It can be reused, even concurrently and with several controllers. A handler that calls
// AddWatches should create the Watch values once, not on each call. The zero Watch is invalid.
type Watch struct{ options *secondaryOptions }

var _ ServeOption = Watch{}

// WatchKey identifies one of the watches of a served type. Two Watch values with equal keys describe the same watch,
// possibly with different options. A WatchKey can be used as a map key.
type WatchKey struct {
	GVR        schema.GroupVersionResource // the watched type
	Namespaces string                      // sorted, and separated by commas; empty for all namespaces
	// LabelSelector uses the API server's syntax. It is "!nothing,nothing" if it matches no objects.
	LabelSelector string
	// FieldSelector uses the API server's syntax, with its terms in alphabetical order. It is
	// "metadata.name!=nothing,metadata.name=nothing" if it matches no objects.
	FieldSelector string
	Owned         bool // the watch was created by Owns, not by Watches
	EveryOwner    bool // Owns was called with the option EveryOwner
}

// name returns a short form of the key for error messages, such as "Owns(pods.v1)". It is not called String, because
// SecondaryStatus embeds WatchKey and would inherit that method.
func (k WatchKey) name() string {
	if k.Owned {
		return "Owns(" + nameOf(k.GVR) + ")"
	}
	return "Watches(" + nameOf(k.GVR) + ")"
}

// compare orders keys by type, namespaces, selectors and kind of watch.
func (k WatchKey) compare(other WatchKey) int {
	return cmp.Or(
		strings.Compare(nameOf(k.GVR), nameOf(other.GVR)),
		strings.Compare(k.Namespaces, other.Namespaces),
		strings.Compare(k.LabelSelector, other.LabelSelector),
		strings.Compare(k.FieldSelector, other.FieldSelector),
		strings.Compare(k.name(), other.name()), // Owns before Watches
		strings.Compare(strconv.FormatBool(k.EveryOwner), strconv.FormatBool(other.EveryOwner)),
	)
}

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

// OwnsOption is an option for [Owns]. [EveryOwner] and every [CommonOption] are OwnsOptions.
type OwnsOption interface{ applyToOwns(o *secondaryOptions) }

// WatchesOption is an option for [Watches]. Every [CommonOption] is a WatchesOption.
type WatchesOption interface{ applyToWatches(o *secondaryOptions) }

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
	o := &secondaryOptions{key: WatchKey{GVR: gvr}, mapFunc: mapFunc, watchOptions: watchOptions{cache: CacheMetadata}}
	if mapFunc == nil {
		o.reject("the MapFunc is nil")
	}
	applyAll(opts, WatchesOption.applyToWatches, o)
	return o.asWatch()
}

// EveryOwner makes [Owns] reconcile all owners of an object instead of only its controller.
func EveryOwner() OwnsOption { return everyOwner{} }

type everyOwner struct{}

func (everyOwner) applyToOwns(o *secondaryOptions) { o.key.EveryOwner = true }

// secondaryOptions holds the options of one Watch. It is immutable once Owns or Watches has returned.
type secondaryOptions struct {
	watchOptions
	key     WatchKey
	mapFunc MapFunc // nil if the Watch was created by Owns
}

func (o *secondaryOptions) subscription() typewatch.Options {
	options := o.watchOptions.subscription()
	options.Secondary = true
	return options
}

// asWatch completes and validates the options, and returns the Watch.
func (o *secondaryOptions) asWatch() Watch {
	if o.key.GVR.Version == "" || o.key.GVR.Resource == "" {
		o.reject("the GVR %+v must have a version and a resource", o.key.GVR)
	}
	if o.cache == CacheKeys {
		o.reject("WithCache(CacheKeys) is not supported; use CacheMetadata or CacheFull")
	}
	o.complete(o.key.GVR)
	o.key.Namespaces = o.watch.Namespaces
	o.key.LabelSelector, o.key.FieldSelector = o.watch.LabelSelector, o.watch.FieldSelector
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
// If a watch with the same key exists, only its MapFunc and predicate are replaced. However, if the cache mode differs,
// or if only the new Watch has a transform, the existing watch is replaced as soon as its replacement has synced. The
// transform of an existing watch is kept. To change it, call RemoveWatches first, or StartServingGVK again. While a
// handler is being replaced by StartServingGVK, its calls to AddWatches do not affect the new options. Once it has been
// replaced, its calls have no effect.
//
// AddWatches sends no requests and does not wait for a sync, but it may have to wait for running predicates and
// MapFuncs of types that share a watch with this type. If ctx is cancelled in the meantime, it returns nil and the
// watches are added in the background. It returns [ErrNotServed] if the type is not served. If one of the watches is
// invalid, none is added.
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
	reg, err := c.registrationOf(gvr)
	caller, _ := ctx.Value(handlerOf{c}).(*serveOptions)
	if caller != nil && caller.reg != reg {
		caller = nil
	}
	if err != nil || reg.subscriptions.updateWatches(watches, caller) {
		return err
	}
	options := make([]*secondaryOptions, 0, len(watches))
	for _, w := range watches {
		if err := c.source.Check(w.options.watch.Projection); err != nil {
			return fmt.Errorf("%s: %w", w.options.key.name(), err)
		}
		options = append(options, w.options)
	}
	add := func() { reg.subscriptions.addWatches(options, true, caller) }
	await(ctx, reg.subscriptions.apply(change{keys: keysOf(options), f: add}))
	return nil
}

func keysOf(watches []*secondaryOptions) (keys []WatchKey) {
	for _, o := range watches {
		keys = append(keys, o.key)
	}
	return keys
}

// RemoveWatches ends the watches with the given keys (see [Watch.Key]), whether AddWatches or StartServingGVK added
// them. Once it has returned nil, these watches add no more objects to the queue. Unknown keys and types that are not
// served are ignored. A call that removes nothing is cheap.
//
// RemoveWatches waits for running predicates and MapFuncs of types that share a watch with this type. If ctx is
// cancelled first, it returns the cause, and the removal continues in the background.
func (c *DynamicController) RemoveWatches(
	ctx context.Context, gvr schema.GroupVersionResource, keys ...WatchKey,
) error {
	reg, err := c.registrationOf(gvr)
	if err != nil || reg.subscriptions.hasNone(keys) {
		return nil
	}
	removed := slices.Clone(keys) // so that keys does not escape to the heap if there is nothing to remove
	remove := func() { reg.subscriptions.removeWatches(removed) }
	if !await(ctx, reg.subscriptions.apply(change{keys: removed, f: remove})) {
		return fmt.Errorf("remove watches from %s: %w", nameOf(gvr), context.Cause(ctx))
	}
	return nil
}

// secondary is a subscription to a type other than the served one.
type secondary struct {
	key WatchKey
	reg *registration
	sub *typewatch.Subscription
	// options holds the options in effect. Event handlers read them without a lock.
	options atomic.Pointer[secondaryOptions]

	wanted     *secondaryOptions // takes effect once a pending replacement has synced
	subscribed *watchOptions     // the options of the newest watch; wanted can have another transform
}

// updateWatches replaces the options of existing watches. It returns false and changes nothing if the new options
// require a different watch, or if a pending change affects one of the watches. For caller, see addWatches.
func (s *subscriptionSet) updateWatches(watches []Watch, caller *serveOptions) (done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if caller != nil && caller != s.reg.options.Load() {
		return true
	}
	for _, w := range watches {
		sec := s.secondaries[w.options.key]
		if sec == nil || s.pending != nil || s.isChangingLocked(sec.key) ||
			!sec.subscribed.keepsWatch(&w.options.watchOptions) {
			return false
		}
	}
	for _, w := range watches {
		s.secondaries[w.options.key].updateLocked(w.options)
	}
	return true
}

// updateLocked replaces the options of a secondary that keeps its watch.
func (sec *secondary) updateLocked(options *secondaryOptions) {
	if sec.wanted == sec.options.Load() {
		sec.options.Store(options)
	}
	sec.wanted = options
}

// addWatches adds the secondaries that do not exist yet. Existing secondaries switch to a different watch if necessary.
// If keepTransforms is true, a secondary that has a transform keeps it. If a handler of the type calls AddWatches,
// caller holds the options that were in effect when the handler was called. Otherwise, it is nil.
func (s *subscriptionSet) addWatches(watches []*secondaryOptions, keepTransforms bool, caller *serveOptions) {
	for _, options := range watches {
		s.mu.Lock()
		if caller != nil && caller != s.reg.options.Load() { // a swap has replaced the handler
			s.mu.Unlock()
			return
		}
		if p := s.pending; p != nil && (caller == nil || caller == p.next) {
			p.secondaries[options.key] = options
		}
		sec := s.secondaries[options.key]
		keep := sec != nil && (sec.subscribed.sameWatch(&options.watchOptions) ||
			keepTransforms && sec.subscribed.keepsWatch(&options.watchOptions))
		if keep {
			sec.updateLocked(options)
		} else if sec != nil {
			sec.wanted, sec.subscribed = options, &options.watchOptions
		}
		s.mu.Unlock()
		if sec == nil {
			s.add(options)
		} else if !keep {
			sec.sub.Replace(options.subscription(), func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				sec.options.Store(sec.wanted)
			}, func() {})
		}
	}
}

func (s *subscriptionSet) add(options *secondaryOptions) {
	if typewatch.IsClosed(s.reg.stopped) {
		return // the type was stopped while AddWatches was being called
	}
	sec := &secondary{key: options.key, reg: s.reg, wanted: options, subscribed: &options.watchOptions}
	sec.options.Store(options)
	observe := func(state typewatch.State) { s.observe(sec, state) }
	sub := s.reg.controller.pool.Subscribe(options.subscription(), observe)
	s.mu.Lock()
	sec.sub = sub // under the lock, because observe may be called concurrently
	closed, attached := s.closed, s.lifetime
	if !closed {
		s.secondaries[sec.key] = sec
		if s.initialSync != nil {
			s.initialSync.waiting[sec.sub] = typewatch.State{}
		}
	}
	s.mu.Unlock()
	switch {
	case closed:
		s.reg.endSubscription(sec.sub)
	case attached != nil:
		s.attachSecondary(attached, sec)
	}
}

// removeWatches removes the secondaries with the given keys. When it returns, their event handlers have stopped.
func (s *subscriptionSet) removeWatches(keys []WatchKey) {
	for _, key := range keys {
		s.mu.Lock()
		if s.pending != nil {
			delete(s.pending.secondaries, key)
		}
		sec := s.secondaries[key]
		delete(s.secondaries, key)
		if sec != nil {
			s.initialSync.finishLocked(sec.sub)
		}
		s.mu.Unlock()
		if sec != nil {
			sec.sub.Detach()
			s.reg.endSubscription(sec.sub)
		}
	}
}

// hasNone reports whether none of the keys belongs to an existing secondary or to one that is about to be added.
func (s *subscriptionSet) hasNone(keys []WatchKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !slices.ContainsFunc(keys, func(key WatchKey) bool {
		return s.secondaries[key] != nil || s.pending != nil && s.pending.secondaries[key] != nil || s.isChangingLocked(key)
	})
}
