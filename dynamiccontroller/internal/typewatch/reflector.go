package typewatch

import (
	"context"
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/internal/listwatch"
)

// reflector keeps the objects of one namespace, or of all namespaces, in sync with the API server while it runs. It is
// the [listwatch.Store] of its loop.
type reflector struct {
	watch     *watch
	namespace string // empty for all namespaces
	requests  listwatch.Requests
	loop      *listwatch.Loop
	relist    func() // ends the loop's current request, so that it lists again

	// Used only by the loop's goroutine: the list that is being received.
	began    int64 // the history in which the list began
	floor    int64 // the history of the oldest version that the list may have
	received list

	// Guarded by the watch's delivery lock.

	// unordered is true if the last list had no version. In that case, the store cannot be compared with others.
	unordered bool
	listed    bool // whether the store holds a complete list from the current session
	emptied   bool // whether the objects were removed because of a type event, not because of a list
	unusable  unusableObjects
	relists   relistState

	// Written under delivery.
	position atomic.Uint64 // the version of the last list, or of the latest event since then
	observed atomic.Uint64 // the version up to which the store reflects all changes; bookmarks advance it
	history  atomic.Int64  // the history of the versions in the store
}

var _ listwatch.Store = (*reflector)(nil)

func (r *reflector) run(ctx context.Context) {
	defer r.endRun()
	r.loop.Run(ctx)
}

// MinVersion returns the oldest resourceVersion that the next list may have. The list must not be older than the
// reflector's objects in the store. If the watch will replace others, this also applies to their stores.
func (r *reflector) MinVersion() string {
	// Each history is read before the version. Otherwise, an old version could be taken for one of a new history.
	r.floor = r.history.Load()
	oldest := version(r.position.Load())
	for _, waiter := range *r.watch.waiters.Load() {
		for _, other := range waiter.current().reflectors {
			history, position := other.history.Load(), version(other.position.Load())
			if position > oldest {
				oldest, r.floor = position, history
			}
		}
	}
	return oldest.String()
}

// BeginList begins to collect the items of a list.
func (r *reflector) BeginList() {
	r.received = newList()
	r.began = r.watch.history()
}

// Collect adds an item to the list, or removes it if it was deleted in the meantime.
func (r *reflector) Collect(event apiwatch.Event) error {
	if event.Type == apiwatch.Deleted {
		return r.received.remove(deletedRecord(event.Object))
	}
	r.received.put(r.record(event.Object))
	return nil
}

// EndList stores the list.
func (r *reflector) EndList(result listwatch.ListResult, stored func()) {
	received := r.received
	r.received = list{}
	if result.WentBack {
		r.watch.owner.wentBack(r, r.floor)
		r.began = r.watch.history()
	}
	r.setAll(received, result.ResourceVersion, stored)
}

// Apply stores a change. A bookmark means that the store reflects all changes up to its version.
func (r *reflector) Apply(event apiwatch.Event) error {
	switch event.Type {
	case apiwatch.Deleted:
		return r.remove(event.Object)
	case apiwatch.Bookmark:
		return r.bookmark(event.Object)
	default:
		r.put(event.Object)
		return nil
	}
}

// Clear removes all objects, because the type is gone. A handler that is waiting for the first list receives an empty
// list.
func (r *reflector) Clear() { r.setAll(newList(), "", nil) }

func (r *reflector) bookmark(obj runtime.Object) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	w := r.watch
	w.delivery.Lock()
	defer w.delivery.Unlock()
	r.observed.Store(max(r.observed.Load(), uint64(versionNumber(m.GetResourceVersion()))))
	w.progressed()
	return nil
}

func (r *reflector) put(obj runtime.Object) {
	w := r.watch
	now := r.record(obj)
	w.delivery.Lock()
	defer w.delivery.Unlock()
	if r.observeEvent(now, false) {
		return
	}
	var changes []objects.Change
	if now.Unusable() != nil {
		r.addUnusable(now, true)
		if w.store.IsRecreated(now) {
			old, _ := w.store.Delete(now.Key())
			changes = []objects.Change{{Key: now.Key(), Old: old}}
		}
	} else {
		r.removeUnusable(now.Key(), now.GetUID())
		changes = w.store.Put(now)
	}
	r.advance(versionNumber(now.GetResourceVersion()))
	for _, c := range changes {
		w.notify(c)
	}
	w.progressed()
}

// remove removes a deleted object. It returns an error if the object cannot be identified.
func (r *reflector) remove(obj runtime.Object) error {
	w, deleted := r.watch, deletedRecord(obj)
	w.delivery.Lock()
	defer w.delivery.Unlock()
	if r.observeEvent(deleted, true) {
		return nil
	}
	key, uid := deleted.Identity()
	keys, identified := []string{key}, true
	if !w.store.Has(key) {
		keys, identified = w.store.Identify(r.namespace, []*objects.Record{deleted})
	}
	wasUnusable := r.removeUnusable(key, uid)
	var changes []objects.Change
	for _, key := range keys {
		if old, known := w.store.Delete(key); known {
			changes = append(changes, objects.Change{Key: key, Old: old})
		}
	}
	r.advance(versionNumber(deleted.GetResourceVersion()))
	for _, c := range changes {
		w.notify(c)
	}
	w.progressed()
	if !identified || key == "" && len(keys) == 0 && !wasUnusable {
		r.addUnusable(deleted, false)
		return unidentifiedDeletion(deleted)
	}
	return nil
}

// setAll replaces the reflector's objects in the store with a list. The last states of the unusable objects stay in the
// store. setAll calls onStored before the event handlers. If the type has vanished, onStored is nil. The delivery lock
// is not needed for the comparison, which can take long, because only the reflector's own goroutine modifies these
// objects. If a replacement has added objects in the meantime, the comparison is repeated under the lock.
func (r *reflector) setAll(received list, resourceVersion string, onStored func()) {
	w, items, unusable := r.watch, received.items, received.sortedUnusable()
	carriedOver := w.carriedOver.Load()
	changes, identified := r.compare(items, unusable)
	newest := none
	for _, item := range items {
		if item != nil {
			newest = max(newest, versionNumber(item.GetResourceVersion()))
		}
	}
	listed := versionNumber(resourceVersion)
	w.delivery.Lock()
	defer w.delivery.Unlock()
	if w.carriedOver.Load() != carriedOver { // rare
		changes, identified = r.compare(items, unusable)
	}
	w.store.Replace(r.namespace, items)
	r.setUnusable(unusable, identified)
	r.unordered = resourceVersion == ""
	if listed != none {
		// If the API server's etcd was restored, the list's version is older than the position.
		r.position.Store(uint64(listed))
		r.observed.Store(uint64(listed))
	}
	r.advance(newest)
	if onStored != nil { // otherwise, the position still belongs to the earlier history
		r.history.Store(r.began) // after the versions, because it is read before them
	}
	r.listed, r.emptied = true, onStored == nil
	r.relists = relistState{perObject: r.relists.perObject, last: listed}
	if !slices.ContainsFunc(w.reflectors, func(r *reflector) bool { return !r.listed }) {
		w.everListed.Store(true)
		w.listed.Store(true)
	}
	if !r.emptied {
		onStored()
	}
	w.owner.listed()
	for _, c := range changes {
		w.notify(c)
	}
	w.startPass()
	w.changed()
}

// compare returns the changes from the stored objects to a list. It adds a nil record to the items for each stored
// object that must be kept.
func (r *reflector) compare(
	items map[string]*objects.Record, unusable []*objects.Record,
) (changes []objects.Change, identified bool) {
	identified = r.keepUnusable(items, unusable)
	changes = r.watch.store.DeletionsIn(r.namespace, items)
	if r.listed { // until then, listener.handle drops everything except deletions
		changes = append(changes, r.watch.store.Updates(items)...)
	}
	return changes, identified
}

// endRun is called when the reflector stops. It makes the next list count as the first one of a session.
func (r *reflector) endRun() {
	w := r.watch
	w.delivery.Lock()
	defer w.delivery.Unlock()
	r.listed = false
	r.unusable.stopRelists()
	w.listed.Store(false)
	w.owner.listed()
	for _, l := range w.attached {
		l.announced = false
	}
	w.changed()
}

// advance records the version of an event. It is called after the store has changed, so that a reader that sees the
// version also sees the change. The caller must hold the watch's delivery lock.
func (r *reflector) advance(v version) {
	r.position.Store(max(r.position.Load(), uint64(v)))
	r.observed.Store(max(r.observed.Load(), uint64(v)))
}

func (r *reflector) isBehind(older *reflector) bool {
	disjoint := r.namespace != older.namespace && r.namespace != "" && older.namespace != ""
	if disjoint || r.unordered || r.history.Load() > older.history.Load() {
		return false
	}
	return r.history.Load() < older.history.Load() || version(older.position.Load()).isNewer(version(r.observed.Load()))
}
