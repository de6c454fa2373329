package feed

import (
	"context"
	"slices"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// maxBatch limits the number of keys that are passed on at once.
const maxBatch = 256

// eventHandler returns the event handler of the primary subscription. The functions of the source receive ctx.
func (f *Feed) eventHandler(ctx context.Context) typewatch.EventHandler {
	e := Environment{Context: ctx, Log: f.log, sub: f.primary}
	return typewatch.EventHandler{
		Known: func(batch []*typewatch.Object) {
			keys := make([]string, len(batch))
			for i, object := range batch {
				keys[i] = object.Key()
			}
			f.target.AddExisting(keys)
		},
		Synced: func() { f.delivered(f.primary) },
		Changed: func(c typewatch.Change) {
			accepted := accepts(e, c)
			if c.New == nil {
				f.target.Deleted(c.Key, accepted)
			}
			if accepted {
				f.target.AddChanged([]string{c.Key})
			}
		},
		Loses: Loses,
		Lost:  f.target.AddAllAfterLoss,
	}
}

// A change can have an old state in another form than the new one, because a watch with another projection or transform
// has replaced the earlier one. Functions of the new source must not be called with that old state.

// Accepts reports whether the predicate of the source under which the object, or its last state, was stored accepts a
// change. It is for event handlers that belong to no feed.
func Accepts(e Environment, c typewatch.Change) bool { return accepts(e, c) }

// accepts calls the predicate of the source under which the object, or its last state, was stored.
func accepts(e Environment, c typewatch.Change) bool {
	latest := c.New
	if latest == nil {
		latest = c.Old
	}
	source := sourceOf(latest)
	return source.Accepts == nil || source.Accepts(e, comparableOld(c), c.New)
}

// comparableOld returns the old state, or nil if it has another form than the new one.
func comparableOld(c typewatch.Change) *typewatch.Object {
	if c.Old != nil && c.New != nil && !c.Old.View.SameForm(c.New.View) {
		return nil
	}
	return c.Old
}

// secondaryHandler returns the event handler of a secondary. Once the context is cancelled, the rest of the existing
// objects is ignored, because the next run passes on all objects again.
func (f *Feed) secondaryHandler(ctx context.Context, sec *secondary) typewatch.EventHandler {
	e := Environment{Context: ctx, Log: f.log, sub: sec.sub}
	return typewatch.EventHandler{
		Known: func(batch []*typewatch.Object) {
			if ctx.Err() != nil {
				return
			}
			source, store := sourceOf(batch[0]), f.Store() // a batch has one view
			var targets []string
			for _, object := range batch {
				if source.Targets == nil {
					targets = appendOwners(targets, source, store, object.Owners())
					continue
				}
				if ctx.Err() != nil {
					return
				}
				targets = f.appendTargets(e, targets, source, object)
				if len(targets) >= maxBatch { // a source can return many keys for each object
					f.addExisting(sec, targets)
					targets = nil
				}
			}
			f.addExisting(sec, targets)
		},
		Synced: func() { f.delivered(sec.sub) },
		Changed: func(c typewatch.Change) {
			f.target.AddAffected(unique(f.targetsOf(e, c)), sec.key.GVR, c.Key)
		},
		Loses: Loses,
		Lost:  f.target.AddAllAfterLoss,
	}
}

// targetsOf returns the keys of the objects to reconcile because of a change to a secondary's object.
func (f *Feed) targetsOf(e Environment, c typewatch.Change) (targets []string) {
	Affected(e, c, func(e Environment, source *Source, object *typewatch.Object) {
		targets = f.appendTargets(e, targets, source, object)
	})
	return targets
}

// Affected calls visit with each state of a changed object that determines what must be reconciled, and with the source
// whose functions may be called with that state. The environment of visit carries the change, without a state that has
// another form than the visited one.
func Affected(e Environment, c typewatch.Change, visit func(e Environment, source *Source, object *typewatch.Object)) {
	old := comparableOld(c)
	if c.Old != nil && old == nil { // the earlier source determines what the old state affects
		source := sourceOf(c.Old)
		visit(e.during(source, typewatch.Change{Key: c.Key, Old: c.Old}), source, c.Old)
	}
	if !accepts(e, c) {
		return
	}
	latest := c.New
	if latest == nil {
		latest = c.Old
	}
	source := sourceOf(latest)
	e = e.during(source, typewatch.Change{Key: c.Key, Old: old, New: c.New})
	if old != nil { // it can have been stored under an earlier source
		visit(e, source, old)
	}
	if c.New != nil {
		visit(e, source, c.New)
	}
}

func (f *Feed) addExisting(sec *secondary, targets []string) {
	if len(targets) > 0 {
		targets = unique(targets)
		f.reconciled(sec, targets)
		f.target.AddExisting(targets)
	}
}

// unique sorts the keys and removes duplicates.
func unique(keys []string) []string {
	slices.Sort(keys)
	return slices.Compact(keys)
}

// appendTargets appends the keys of the objects to reconcile because of a state of a secondary's object.
func (f *Feed) appendTargets(e Environment, keys []string, source *Source, object *typewatch.Object) []string {
	if source.Targets == nil {
		return appendOwners(keys, source, f.Store(), object.Owners())
	}
	for _, returned := range source.Targets(e, object) {
		key, err := f.target.Normalize(returned)
		if err != nil {
			f.target.Malformed(source.Name, returned, err)
			continue
		}
		keys = append(keys, key)
	}
	return keys
}

// reconciles reports whether the source, which has no Targets, reconciles an owner.
func (s *Source) reconciles(owner *objects.Owner) bool { return owner.Controller || s.EveryOwner }

// appendOwners appends the owners that are in a store, which is the cache of the feed's own type. Owners are identified
// by UID.
func appendOwners(keys []string, source *Source, store *objects.Store, owners []objects.Owner) []string {
	for i := range owners {
		if !source.reconciles(&owners[i]) {
			continue
		}
		if key, known := store.FindOwner(&owners[i]); known {
			keys = append(keys, key)
		}
	}
	return keys
}
