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

// Watch describes a watch of another type that a served type needs, in addition to the watch of its own objects. [Owns]
// and [Watches] return it. A Watch can be passed to [DynamicController.StartServingGVK] as an option, and to
// [DynamicController.AddWatches].
//
// A Watch is immutable and can be used any number of times, with any controller, and concurrently. A handler that calls
// AddWatches should build its watches once rather than in each call. The zero Watch is invalid.
type Watch struct{ options *secondaryOptions }

var _ ServeOption = Watch{}

// WatchKey identifies one of the watches of a served type. If the keys of two Watch values are equal, they describe the
// same watch, possibly with different options. A WatchKey is comparable and can be used as a map key.
type WatchKey struct {
	GVR       schema.GroupVersionResource // the watched type
	Namespace string                      // empty for all namespaces
	// LabelSelector has the syntax of the API server. It is empty if the watch includes all objects, and
	// "!nothing,nothing" if it includes none.
	LabelSelector string
	// FieldSelector has the syntax of the API server, with its terms in alphabetical order. It is empty if the watch
	// includes all objects, and "metadata.name!=nothing,metadata.name=nothing" if it includes none.
	FieldSelector string
	Owned         bool // the watch was created by Owns, not by Watches
	EveryOwner    bool // Owns was called with the option EveryOwner
}

// name returns a short form for errors, such as "Owns(pods.v1)". It is not called String, because SecondaryStatus
// embeds WatchKey and would inherit that method.
func (k WatchKey) name() string {
	if k.Owned {
		return "Owns(" + nameOf(k.GVR) + ")"
	}
	return "Watches(" + nameOf(k.GVR) + ")"
}

// compare orders keys by type, namespace, selectors and kind of watch.
func (k WatchKey) compare(other WatchKey) int {
	return cmp.Or(
		strings.Compare(nameOf(k.GVR), nameOf(other.GVR)),
		strings.Compare(k.Namespace, other.Namespace),
		strings.Compare(k.LabelSelector, other.LabelSelector),
		strings.Compare(k.FieldSelector, other.FieldSelector),
		strings.Compare(k.name(), other.name()), // Owns before Watches
		strings.Compare(strconv.FormatBool(k.EveryOwner), strconv.FormatBool(other.EveryOwner)),
	)
}

// Key returns the key of the watch. It is computed once, by [Owns] or [Watches].
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

var errEmptyWatch = errors.New("the Watch is empty: use Owns or Watches")

// err returns the errors in the options, except for errors that depend on the controller.
func (w Watch) err() error {
	if w.options == nil {
		return errEmptyWatch
	}
	return errors.Join(w.options.errs...)
}

// OwnsOption is an option for [Owns]: [EveryOwner], or any [CommonOption].
type OwnsOption interface{ applyToOwns(o *secondaryOptions) }

// WatchesOption is an option for [Watches]: any [CommonOption].
type WatchesOption interface{ applyToWatches(o *secondaryOptions) }

// Owns watches another type and reconciles an object of the served type when an object that it owns changes. The owner
// is the object whose UID is in the controller reference. With [EveryOwner], all objects whose UIDs are in owner
// references are owners. When a change moves an object from one owner to another, both owners are reconciled. When an
// object was deleted while the watch was down, its last known owner is reconciled. Owners that are not in the cache of
// the served type are ignored; they are reconciled when they appear. The owners of all objects in the initial list are
// reconciled, with the priority of an initial list.
//
// By default all objects are watched, their metadata is cached ([CacheMetadata]), and every change is processed.
// [CacheKeys] is invalid because it does not store owner references. A transform must keep the owner references. The
// watch is shared with all other subscribers of the same objects, unless it has a transform.
//
// A type that cannot be watched, for example because it does not exist, does not block reconciles. [TypeStatus] reports
// its state. When its watch succeeds later, the owners of the listed objects are reconciled.
//
// Owns never fails. Invalid options are reported by StartServingGVK and AddWatches.
func Owns(child schema.GroupVersionResource, opts ...OwnsOption) Watch {
	o := newSecondaryOptions(WatchKey{GVR: child, Owned: true})
	for _, opt := range opts {
		if opt == nil {
			o.refuse("an option is nil")
			continue
		}
		opt.applyToOwns(o)
	}
	return o.watch()
}

// Watches watches another type and reconciles the objects of the served type that mapFunc returns for a changed object,
// whether or not the cache holds them. In all other respects, it behaves like [Owns].
func Watches(gvr schema.GroupVersionResource, mapFunc MapFunc, opts ...WatchesOption) Watch {
	o := newSecondaryOptions(WatchKey{GVR: gvr})
	o.mapFunc = mapFunc
	if mapFunc == nil {
		o.refuse("the MapFunc is nil")
	}
	for _, opt := range opts {
		if opt == nil {
			o.refuse("an option is nil")
			continue
		}
		opt.applyToWatches(o)
	}
	return o.watch()
}

// EveryOwner makes [Owns] reconcile all owners of an object instead of only its controller.
func EveryOwner() OwnsOption { return everyOwner{} }

type everyOwner struct{}

func (everyOwner) applyToOwns(o *secondaryOptions) { o.key.EveryOwner = true }

// secondaryOptions holds the options of one Watch. It does not change after Owns or Watches has returned.
type secondaryOptions struct {
	watchOptions
	key     WatchKey
	mapFunc MapFunc // nil with Owns
}

func newSecondaryOptions(key WatchKey) *secondaryOptions {
	return &secondaryOptions{watchOptions: watchOptions{cache: CacheMetadata}, key: key}
}

// watch completes the options and returns them as a Watch.
func (o *secondaryOptions) watch() Watch {
	if o.key.GVR.Version == "" || o.key.GVR.Resource == "" {
		o.refuse("the GVR %+v has no version or no resource", o.key.GVR)
	}
	if o.cache == CacheKeys {
		o.refuse("WithCache(CacheKeys) stores no owners: use CacheMetadata or CacheFull")
	}
	o.complete(o.key.GVR)
	o.key.Namespace, o.key.LabelSelector, o.key.FieldSelector = o.namespace, o.labelSelector, o.fieldSelector
	for i, err := range o.errs {
		o.errs[i] = fmt.Errorf("%s: %w", o.key.name(), err)
	}
	return Watch{options: o}
}

// AddWatches adds watches to a served type, as if StartServingGVK had been called with them. A handler can call it with
// its own context and type when it needs another type of child. For each new watch, the owners of the objects in its
// initial list, or the objects that its MapFunc returns for them, are reconciled. The call causes no other reconciles.
//
// If a watch with the same key already exists, it keeps running. Only its MapFunc and predicate are replaced, which
// causes no request and no reconcile. There are two exceptions: if the cache mode differs, or if a transform is added
// to a watch without one, a new watch replaces the current one once it has synced. A watch that has a transform keeps
// it: functions cannot be compared, so a call with another transform or without a transform does not change it. To
// change a transform, call RemoveWatches first, or StartServingGVK again. If one call contains two watches with the
// same key, the last one counts. A call that changes no watch is cheap and allocates nothing, so that a handler can
// make it in every reconcile.
//
// AddWatches makes no request and does not wait for a sync. It may have to wait for predicates and MapFuncs of
// subscribers that share a watch. If ctx is cancelled in the meantime, AddWatches returns nil and the change continues
// in the background.
//
// The watches end with [DynamicController.RemoveWatches], with StopServiceGVK, and with a StartServingGVK that does not
// include them. To keep their caches warm on a standby, where no handler is called, add them on every replica.
//
// AddWatches returns [ErrNotServed] if the type is not served. If one of the watches is invalid, none is added.
func (c *DynamicController) AddWatches(ctx context.Context, gvr schema.GroupVersionResource, watches ...Watch) error {
	err := context.Cause(ctx)
	for _, w := range watches {
		if err == nil {
			err = w.err()
		}
	}
	if err == nil {
		err = c.addWatches(ctx, gvr, watches)
	}
	if err != nil {
		return fmt.Errorf("add watches to %s: %w", nameOf(gvr), err)
	}
	return nil
}

func (c *DynamicController) addWatches(ctx context.Context, gvr schema.GroupVersionResource, watches []Watch) error {
	reg, err := c.registrationOf(gvr)
	if err != nil || reg.subscriptions.updateWatches(watches) {
		return err
	}
	options := make([]*secondaryOptions, 0, len(watches))
	for _, w := range watches {
		if err := w.options.check(c.clients); err != nil {
			return fmt.Errorf("%s: %w", w.options.key.name(), err)
		}
		options = append(options, w.options)
	}
	await(ctx, reg.subscriptions.change(false, func() { reg.subscriptions.addWatches(options, true) }))
	return nil
}

// RemoveWatches ends the watches with the given keys (see [Watch.Key]), whether AddWatches or StartServingGVK added
// them. After it has returned nil, these watches cause no more reconciles. Keys that are not watched are ignored, and
// so is a type that is not served. A call that removes nothing takes two locks and allocates nothing.
//
// RemoveWatches waits for predicates and MapFuncs of subscribers that share a watch. If ctx is cancelled first, it
// returns the cause, and the removal continues in the background.
func (c *DynamicController) RemoveWatches(
	ctx context.Context, gvr schema.GroupVersionResource, keys ...WatchKey,
) error {
	reg, err := c.registrationOf(gvr)
	if err != nil || reg.subscriptions.hasNone(keys) {
		return nil
	}
	removed := slices.Clone(keys) // so that keys is not allocated if there is nothing to remove
	if !await(ctx, reg.subscriptions.change(true, func() { reg.subscriptions.removeWatches(removed) })) {
		return fmt.Errorf("remove watches from %s: %w", nameOf(gvr), context.Cause(ctx))
	}
	return nil
}

// secondary is a subscription to a type that is watched in addition to the served one.
type secondary struct {
	key WatchKey
	reg *registration
	sub *typewatch.Subscription
	// options are the options in effect. Event handlers read them without a lock.
	options atomic.Pointer[secondaryOptions]

	wanted *secondaryOptions // differs from options while the subscription is being replaced
}

// updateWatches replaces the predicates and MapFuncs of watches, unless something else has to be changed as well. It
// reports whether it has replaced them.
func (s *subscriptionSet) updateWatches(watches []Watch) (done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.replacing > 0 {
		return false // the order matters
	}
	for _, w := range watches {
		if sec := s.secondaries[w.options.key]; sec == nil || !sec.wanted.keepsWatch(&w.options.watchOptions) {
			return false
		}
	}
	for _, w := range watches {
		s.secondaries[w.options.key].updateLocked(w.options)
	}
	return true
}

// updateLocked replaces the options of the secondary. The new options must allow the secondary to keep its watch.
func (sec *secondary) updateLocked(options *secondaryOptions) {
	if sec.wanted == sec.options.Load() {
		sec.options.Store(options)
	}
	sec.wanted = options
}

// addWatches adds secondaries, and replaces the subscriptions of those that need a different watch. With
// keepTransforms, a secondary that has a transform keeps it.
func (s *subscriptionSet) addWatches(watches []*secondaryOptions, keepTransforms bool) {
	if s.mu.Lock(); keepTransforms && s.pending != nil {
		s.pending.secondaries = append(s.pending.secondaries, watches...)
	}
	s.mu.Unlock()
	for _, options := range watches {
		s.mu.Lock()
		sec := s.secondaries[options.key]
		keep := sec != nil && (sec.wanted.sameWatch(&options.watchOptions) ||
			keepTransforms && sec.wanted.keepsWatch(&options.watchOptions))
		if keep {
			sec.updateLocked(options)
		}
		s.mu.Unlock()
		switch {
		case keep:
		case sec == nil:
			s.add(options)
		default:
			s.replaceSecondary(sec, options)
		}
	}
}

func (s *subscriptionSet) add(options *secondaryOptions) {
	sec := &secondary{key: options.key, reg: s.reg, wanted: options}
	sec.options.Store(options)
	observe := func(state typewatch.State) { s.observe(sec, state) }
	sub := s.reg.controller.pool.Subscribe(options.subscription(), observe)
	s.mu.Lock()
	sec.sub = sub // under the lock, because observe may already be called
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
		s.reg.end(sec.sub)
	case attached != nil:
		s.attachSecondary(attached, sec)
	}
}

func (s *subscriptionSet) replaceSecondary(sec *secondary, options *secondaryOptions) {
	s.mu.Lock()
	sec.wanted = options
	s.mu.Unlock()
	sec.sub.Replace(options.subscription(), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		sec.options.Store(sec.wanted)
	})
}

// removeWatches ends secondaries. When it returns, their event handlers are not running.
func (s *subscriptionSet) removeWatches(keys []WatchKey) {
	s.mu.Lock()
	if s.pending != nil {
		s.pending.secondaries = slices.DeleteFunc(s.pending.secondaries, func(o *secondaryOptions) bool {
			return slices.Contains(keys, o.key)
		})
	}
	s.mu.Unlock()
	for _, key := range keys {
		s.mu.Lock()
		sec := s.secondaries[key]
		delete(s.secondaries, key)
		if sec != nil {
			s.initialSync.finishLocked(sec.sub)
		}
		s.mu.Unlock()
		if sec != nil {
			sec.sub.Detach()
			s.reg.end(sec.sub)
		}
	}
}

// hasNone reports whether there are no secondaries with the keys, and none is about to be added.
func (s *subscriptionSet) hasNone(keys []WatchKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.changing && !slices.ContainsFunc(keys, func(key WatchKey) bool { return s.secondaries[key] != nil })
}
