package typewatch

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

// Unusable describes the objects of a watch that cannot be used, for example because they have no name. The store holds
// the last states of these objects in which they could be used, if any.
type Unusable struct {
	Objects int    // number of unusable objects
	Message string // the latest of these objects and the reason; empty if there are no unusable objects
}

var errUnidentified = errors.New("the deleted object has neither a name nor a UID")

// maxUnusable limits the unusable objects that a reflector holds. Further ones are only counted.
const maxUnusable = 1000

// unusableObjects holds the objects that a reflector cannot use. The zero value is empty.
type unusableObjects struct {
	items  map[string]*objects.Record // by the record's key; one object without a key and a UID has the key ""
	more   int                        // number of objects that are only counted
	latest *objects.Record            // one of the items
	// unidentified is true if an object has been received since the last list, or in it, that may be a version of any
	// stored object. Such a list removes no objects, and no subscription moves to the watch.
	unidentified bool
	relists      *time.Timer   // triggers a relist to find out which objects exist; nil unless unidentified is true
	delay        time.Duration // of the last relist
}

// keepUnusable adds a nil record to the items for each stored object that must be kept, because the list holds the
// object in an unusable form or an object that may be any other. In the latter case, it returns false.
func (r *reflector) keepUnusable(items map[string]*objects.Record, unusable []*objects.Record) (identified bool) {
	if len(unusable) == 0 {
		return true
	}
	keys, identified := r.watch.store.Identify(r.namespace, unusable)
	if !identified {
		keys = r.watch.store.KeysIn(r.namespace)
	}
	for _, key := range keys {
		if _, listed := items[key]; !listed {
			items[key] = nil
		}
	}
	return identified
}

// setUnusable replaces the unusable objects after a list. The caller must hold the watch's delivery lock.
func (r *reflector) setUnusable(unusable []*objects.Record, identified bool) {
	before := r.unusable
	before.stopRelists()
	r.unusable = unusableObjects{unidentified: !identified, delay: before.delay}
	for _, item := range unusable {
		if r.unusable.add(item.Key(), item) && before.items[item.Key()] == nil {
			r.watch.logUnusable(item)
		}
	}
	r.unusable.scheduleRelist(r.relist)
	r.watch.publishUnusable()
}

// addUnusable records an event with an unusable object. Events with objects that have neither a key nor a UID count as
// one object, so that their number is bounded. The caller must hold the watch's delivery lock.
func (r *reflector) addUnusable(item *objects.Record, identified bool) {
	key := item.Key()
	if known, uid := item.Identity(); known == "" && uid == "" {
		key, identified = "", false
	}
	r.unusable.unidentified = r.unusable.unidentified || !identified
	if !r.unusable.add(key, item) {
		r.unusable.more = 1 // the event may be about an object that is already counted
	}
	r.watch.logUnusable(item)
	r.unusable.scheduleRelist(r.relist)
	r.watch.publishUnusable()
}

// add reports whether the object is held. Otherwise it is only counted.
func (u *unusableObjects) add(key string, item *objects.Record) (held bool) {
	if u.items[key] == nil && len(u.items) >= maxUnusable {
		u.more++
		u.unidentified = true
		return false
	}
	if u.items == nil {
		u.items = map[string]*objects.Record{}
	}
	u.items[key], u.latest = item, item
	return true
}

// remove removes the objects with a key or a UID, and reports whether there were any.
func (u *unusableObjects) remove(key string, uid types.UID) (removed bool) {
	for stored, item := range u.items {
		if stored != "" && stored == key || uid != "" && item.GetUID() == uid {
			delete(u.items, stored)
			removed = true
		}
	}
	if removed && u.items[u.latest.Key()] != u.latest {
		u.latest = nil
		for _, item := range u.items {
			u.latest = item
			break
		}
	}
	return removed
}

// An object that cannot be identified can be repaired or deleted without an event that identifies it. Therefore, the
// reflector relists after a delay that grows from minRepair to maxRepair.
const (
	minRepair = time.Minute
	maxRepair = time.Hour
)

func (u *unusableObjects) scheduleRelist(relist func()) {
	switch {
	case !u.unidentified:
		u.delay = 0
	case u.relists == nil:
		u.delay = min(max(2*u.delay, minRepair), maxRepair)
		u.relists = time.AfterFunc(u.delay, relist)
	}
}

func (u *unusableObjects) stopRelists() {
	if u.relists != nil {
		u.relists.Stop()
		u.relists = nil
	}
}

// removeUnusable must be called when a usable object or a deletion has been received. It reports whether the object was
// unusable. The caller must hold the watch's delivery lock.
func (r *reflector) removeUnusable(key string, uid types.UID) (removed bool) {
	if removed = r.unusable.remove(key, uid); removed {
		r.watch.publishUnusable()
	}
	return removed
}

// publishUnusable updates the result of [View.Unusable].
func (w *watch) publishUnusable() {
	var all Unusable
	for _, r := range w.reflectors {
		u := &r.unusable
		all.Objects += len(u.items) + u.more
		if u.latest != nil {
			all.Message = nameOf(u.latest) + ": " + reasonOf(u.latest).Error()
		}
	}
	if all.Message != "" && w.hasUnidentified() {
		all.Message += "; until a list identifies all objects, no deletions are taken from lists"
	}
	if all != *w.unusable.Load() {
		w.unusable.Store(&all)
	}
}

// hasUnidentified reports whether the watch has received an object that may be a version of any stored one. The caller
// must hold the watch's delivery lock.
func (w *watch) hasUnidentified() bool {
	return slices.ContainsFunc(w.reflectors, func(r *reflector) bool { return r.unusable.unidentified })
}

// unidentifiedDeletion returns the error from a deletion that can be that of any object.
func unidentifiedDeletion(deleted *objects.Record) error {
	return fmt.Errorf("an object was deleted that cannot be identified: %s: %w", nameOf(deleted), reasonOf(deleted))
}

func nameOf(item *objects.Record) string {
	switch key, uid := item.Identity(); {
	case key != "":
		return key
	case uid != "":
		return "object with UID " + string(uid)
	default:
		return "object without name and UID"
	}
}

func reasonOf(item *objects.Record) error { return cmp.Or(item.Unusable(), errUnidentified) }

// logUnusable logs an unusable object. The first one of a watch is logged at V(0), the others at V(1).
func (w *watch) logUnusable(item *objects.Record) {
	log := w.log
	if w.unusableLogged {
		log = log.V(1)
	}
	w.unusableLogged = true
	key, uid := item.Identity()
	log.Info("Object cannot be used, skipped", "object", key, "uid", uid,
		"resourceVersion", item.GetResourceVersion(), "error", reasonOf(item).Error())
}

// identify returns the keys of the objects that the older watch holds and that this watch has received only in an
// unusable form. It returns false if an unusable object may be a version of any object of the older watch. The caller
// must hold the delivery locks of both watches.
func (w *watch) identify(older *watch) (keys []string, identified bool) {
	if w.hasUnidentified() {
		return nil, false
	}
	for _, r := range w.reflectors {
		if len(r.unusable.items) == 0 {
			continue
		}
		found, all := older.store.Identify(r.namespace, slices.Collect(maps.Values(r.unusable.items)))
		if !all {
			return nil, false
		}
		keys = append(keys, found...)
	}
	slices.Sort(keys)
	return slices.DeleteFunc(slices.Compact(keys), w.store.Has), true
}

// canHold reports whether the watch's store can hold the older watch's records: they must not have fewer fields, nor
// the result of a transform.
func (w *watch) canHold(older *watch) bool {
	return w.key.Projection == objects.Keys ||
		w.key.Projection <= older.key.Projection && w.shared && older.shared
}

// carryOver stores the older watch's states of objects and returns the changes. The caller must hold the delivery locks
// of both watches.
func (w *watch) carryOver(older *watch, keys []string) (changes []objects.Change) {
	for _, key := range keys {
		changes = append(changes, objects.Change{Key: key, New: w.store.CopyFrom(older.store, key)})
		w.carriedOver.Add(1)
	}
	return changes
}
