package feed

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// ErrReplaced is returned for a [Caller] whose options are no longer in effect.
var ErrReplaced = errors.New("the handler has been replaced")

// secondary is a subscription to objects of another type.
type secondary struct {
	key Key
	sub *typewatch.Subscription

	// Guarded by the feed's lock.

	subscribed *Source // the source of the newest watch; newest can have another transform
	newest     *Source
	indexes    *typewatch.Indexes // those in use; newest can declare others
	// synced is true if the existing objects have been passed on since the feed was attached.
	synced bool
	// callers holds the objects whose handlers asked for the secondary before it had synced. A handler can have read an
	// object that was then deleted, so that the initial list does not contain it. They are reconciled once more.
	callers map[string]struct{}
}

func keysOf(sources []*Source) (keys []Key) {
	for _, source := range sources {
		keys = append(keys, source.Key())
	}
	return keys
}

// UpdateWatches replaces the sources of existing secondaries. It returns false and changes nothing if a source requires
// a different watch, or if a pending change affects one of the secondaries. [Feed.AddWatches] must then be called.
//
// A secondary keeps its indexes, and those with new names are added. Functions cannot be compared. Therefore, a handler
// that adds a watch with an index would otherwise discard the contents of the index on every reconcile.
//
// If a handler of the feed's type updates the secondaries, the caller identifies it. If its options have been replaced,
// nothing changes, and the error is [ErrReplaced]. Its object is passed to the target once more when the secondaries
// have passed on their existing objects, unless they have already.
//
// UpdateWatches allocates nothing. There are n sources, which the function at returns.
func (f *Feed) UpdateWatches(n int, at func(i int) *Source, caller Caller) (updated bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.isReplacedLocked(caller) {
		return false, ErrReplaced
	}
	for i := range n {
		source := at(i)
		sec := f.secondaries[source.Key()]
		if sec == nil || f.swap != nil || f.isChangingLocked(sec.key) || !sec.subscribed.keepsWatch(source) {
			return false, nil
		}
	}
	for i := range n {
		source := at(i)
		sec := f.secondaries[source.Key()]
		sec.updateLocked(source, sec.indexes.With(source.Watch.Indexes))
		sec.addCallerLocked(caller)
	}
	return true, nil
}

// AddWatches adds secondaries, or changes those with the same keys. An existing secondary that keeps its watch keeps
// its transform and its indexes; see [Feed.UpdateWatches]. When the secondaries have been added, the returned channel
// receives nil, or the error of UpdateWatches.
func (f *Feed) AddWatches(sources []*Source, caller Caller) (done <-chan error) {
	added := make(chan error, 1)
	f.apply(change{keys: keysOf(sources), f: func() { added <- f.addSecondaries(sources, true, caller) }})
	return added
}

// AddSecondaryIndexes adds the indexes whose names the secondary with the key does not have, and to the source with
// the key in a swap that has not matched the secondaries yet. An unknown key is ignored. The returned channel is
// closed when they have been added.
func (f *Feed) AddSecondaryIndexes(key Key, indexes *typewatch.Indexes) (done <-chan struct{}) {
	return f.apply(change{keys: []Key{key}, f: func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.swap != nil && f.swap.secondaries[key] != nil {
			merged := *f.swap.secondaries[key]
			merged.Watch.Indexes = merged.Watch.Indexes.With(indexes)
			f.swap.secondaries[key] = &merged
		}
		if sec := f.secondaries[key]; sec != nil {
			sec.updateLocked(sec.newest, sec.indexes.With(indexes))
		}
	}})
}

// isReplacedLocked reports whether the caller's options are no longer in effect.
func (f *Feed) isReplacedLocked(caller Caller) bool {
	return caller.Options != nil && caller.Options != f.options.Load()
}

// updateLocked replaces the source and the indexes of a secondary that keeps its watch.
func (sec *secondary) updateLocked(source *Source, indexes *typewatch.Indexes) {
	if sec.newest != source || sec.indexes != indexes {
		sec.newest, sec.indexes = source, indexes
		source.update(sec.sub, indexes)
	}
}

func (sec *secondary) addCallerLocked(caller Caller) {
	if caller.Options == nil || sec.synced {
		return
	}
	if sec.callers == nil {
		sec.callers = map[string]struct{}{}
	}
	sec.callers[caller.Key] = struct{}{}
}

// reconciled removes the objects from the callers, because they have just been passed to the target anyway.
func (f *Feed) reconciled(sec *secondary, keys []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(sec.callers) > 0 {
		for _, key := range keys {
			delete(sec.callers, key)
		}
	}
}

// addSecondaries adds the secondaries that do not exist yet. Existing secondaries switch to a different watch if
// necessary. If keepFunctions is true, a secondary that keeps its watch keeps its transform and its indexes.
func (f *Feed) addSecondaries(sources []*Source, keepFunctions bool, caller Caller) error {
	for _, source := range sources {
		f.mu.Lock()
		if f.isReplacedLocked(caller) { // by a swap in the meantime
			f.mu.Unlock()
			return ErrReplaced
		}
		if f.swap != nil && (caller.Options == nil || caller.Options == f.swap.next) {
			f.swap.add(source)
		}
		sec := f.secondaries[source.Key()]
		keep := sec != nil && (sec.subscribed.sameWatch(source) || keepFunctions && sec.subscribed.keepsWatch(source))
		indexes := source.Watch.Indexes
		switch {
		case sec == nil:
		case keep && keepFunctions:
			sec.updateLocked(source, sec.indexes.With(indexes))
		case keep:
			sec.updateLocked(source, indexes)
		default:
			sec.subscribed, sec.newest, sec.indexes = source, source, indexes
		}
		if sec != nil {
			sec.addCallerLocked(caller)
		}
		f.mu.Unlock()
		if sec == nil {
			f.add(source, caller)
		} else if !keep {
			sec.sub.Replace(source.options(), func() {}, func() {})
		}
	}
	return nil
}

func (f *Feed) add(source *Source, caller Caller) {
	f.mu.Lock()
	closed := f.closed
	f.mu.Unlock()
	if closed {
		return // the type was stopped while AddWatches was being called
	}
	sec := &secondary{key: source.Key(), subscribed: source, newest: source, indexes: source.Watch.Indexes}
	sub := f.activity.Subscribe(source.options(), func(state typewatch.State) { f.observe(sec, state) })
	f.mu.Lock()
	sec.sub = sub // under the lock, because observe may be called concurrently
	sec.addCallerLocked(caller)
	closed, attached := f.closed, f.lifetime
	if !closed {
		f.secondaries[sec.key] = sec
		if f.initialSync != nil {
			f.initialSync.waiting[sec.sub] = typewatch.State{}
		}
	}
	f.mu.Unlock()
	switch {
	case closed:
		f.endSubscription(sec.sub)
	case attached != nil:
		f.attachSecondary(attached, sec)
	}
}

func (f *Feed) attachSecondary(ctx context.Context, sec *secondary) {
	sec.sub.Attach(f.secondaryHandler(ctx, sec))
	f.observeCurrent(sec.sub)
}

// RemoveWatches removes the secondaries with the given keys. Unknown keys are ignored. When the returned channel is
// closed, no functions of their sources are running. It is nil if there is nothing to remove.
//
// If there is nothing to remove, RemoveWatches allocates nothing. There are n keys, which the function at returns.
func (f *Feed) RemoveWatches(n int, at func(i int) Key) (done <-chan struct{}) {
	if f.hasNone(n, at) {
		return nil
	}
	removed := make([]Key, n)
	for i := range n {
		removed[i] = at(i)
	}
	return f.apply(change{keys: removed, f: func() { f.removeSecondaries(removed) }})
}

func (f *Feed) removeSecondaries(keys []Key) {
	for _, key := range keys {
		f.mu.Lock()
		if f.swap != nil {
			delete(f.swap.secondaries, key)
		}
		sec := f.secondaries[key]
		delete(f.secondaries, key)
		if sec != nil {
			f.initialSync.finishLocked(sec.sub)
		}
		f.mu.Unlock()
		if sec != nil {
			sec.sub.Detach()
			f.endSubscription(sec.sub)
		}
	}
}

// hasNone reports whether none of the keys belongs to an existing secondary or to one that is about to be added.
func (f *Feed) hasNone(n int, at func(i int) Key) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range n {
		key := at(i)
		if f.secondaries[key] != nil || f.swap != nil && f.swap.secondaries[key] != nil || f.isChangingLocked(key) {
			return false
		}
	}
	return true
}

// delivered records that a subscription has passed on its existing objects.
func (f *Feed) delivered(sub *typewatch.Subscription) {
	f.mu.Lock()
	var callers []string
	for _, sec := range f.secondaries {
		if sec.sub == sub {
			sec.synced = true
			callers = slices.Collect(maps.Keys(sec.callers))
			sec.callers = nil
		}
	}
	f.mu.Unlock()
	if len(callers) > 0 {
		f.target.AddCallers(callers)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.initialSync.finishLocked(sub)
}
