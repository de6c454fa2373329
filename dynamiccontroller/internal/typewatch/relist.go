package typewatch

import (
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/internal/listwatch"
)

// relist is a list that is received while the watch is open. Only its goroutine uses the field received.
type relist struct {
	reflector *reflector
	received  list
	touched   map[string]version // shared with relistState; written under the delivery lock, and not while it is read
}

var _ listwatch.RelistStore = (*reflector)(nil)

// relistState is what a reflector knows about lists next to its watch. It is guarded by the watch's delivery lock.
type relistState struct {
	// touched has the versions of the events since such a list began, by key. It is nil if none is being received.
	touched map[string]version
	// ignored is the version of the last list next to the watch. The watch can lag behind it. Events up to this version
	// are ignored if they would add an object that the list did not contain, or if the store holds a newer state of the
	// object.
	ignored version
	// last is the version of the last event, or of the list before the watch. If an event has an older version, versions
	// belong to single objects, and cannot be compared with that of a list.
	last      version
	perObject bool
}

// BeginRelist begins a list next to the open watch.
func (r *reflector) BeginRelist() listwatch.Relist {
	r.watch.delivery.Lock()
	defer r.watch.delivery.Unlock()
	touched := map[string]version{}
	r.relists.touched = touched
	return &relist{reflector: r, received: newList(), touched: touched}
}

// Collect adds an item to the list.
func (l *relist) Collect(item runtime.Object) { l.received.put(l.reflector.record(item)) }

// Abort drops the list.
func (l *relist) Abort() {
	r := l.reflector
	r.watch.delivery.Lock()
	defer r.watch.delivery.Unlock()
	r.relists.touched = nil
}

// End replaces the objects with the list, except those that the watch has changed after the version of the list.
func (l *relist) End(resourceVersion string) {
	r := l.reflector
	w, items, listed := r.watch, l.received.items, versionNumber(resourceVersion)
	l.keepNewer(listed)
	unusable, carriedOver := l.received.sortedUnusable(), w.carriedOver.Load()
	changes, identified := r.compare(items, unusable)
	w.delivery.Lock()
	defer w.delivery.Unlock()
	if w.carriedOver.Load() != carriedOver { // see setAll
		changes, identified = r.compare(items, unusable)
	}
	w.store.Replace(r.namespace, items)
	for key, item := range r.unusable.items {
		if l.isNewer(key, listed) {
			l.received.unusable[key] = item
		}
	}
	r.setUnusable(l.received.sortedUnusable(), identified)
	r.relists.touched = nil
	if listed != none && listed != unordered {
		r.relists.ignored = listed
		r.advance(listed)
	}
	for _, c := range changes {
		w.notify(c)
	}
	w.progressed()
}

// keepNewer makes the list contain the stored states of the objects that the watch has changed after its version. The
// list's version is newer than the stored state of all others. No event is applied during the call.
func (l *relist) keepNewer(listed version) {
	store := l.reflector.watch.store
	for key := range l.touched {
		if !l.isNewer(key, listed) {
			continue
		}
		delete(l.received.unusable, key)
		delete(l.received.items, key)
		if store.Has(key) {
			l.received.items[key] = nil
		}
	}
}

// isNewer reports whether the watch has changed the object after the version of the list.
func (l *relist) isNewer(key string, listed version) bool {
	v, touched := l.touched[key]
	return touched && (l.reflector.relists.perObject || v == none || v == unordered || listed == unordered || v > listed)
}

// observeEvent records an event and reports whether it is ignored, because a list next to the watch was newer. The
// caller must hold the watch's delivery lock.
func (r *reflector) observeEvent(event *objects.Record, deleted bool) (ignored bool) {
	s, v := &r.relists, versionNumber(event.GetResourceVersion())
	s.perObject = s.perObject || v < s.last
	s.last = v
	if v != none && v <= s.ignored && !s.perObject && r.isReflected(event, v, deleted) {
		return true
	}
	if s.touched != nil {
		s.touched[event.Key()] = v
	}
	return false
}

// isReflected reports whether the store, which reflects a list that is newer than the event, holds a newer state of the
// event's object. Some servers send deletions with the last version of the object, so that a deletion with the version
// of the stored object is not ignored.
func (r *reflector) isReflected(event *objects.Record, v version, deleted bool) bool {
	stored, known := r.watch.store.Get(event.Key())
	switch {
	case !known:
		return true
	case deleted:
		return !isSameObject(stored, event) || versionNumber(stored.GetResourceVersion()) > v
	default:
		return versionNumber(stored.GetResourceVersion()) >= v
	}
}
