package typewatch

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/internal/listwatch"
	"github.com/dynamic-controller/engine/internal/protect"
)

// watch holds the objects that its reflectors store and delivers changes to event handlers.
type watch struct {
	pool       *Pool
	key        Key
	shared     bool // whether other subscriptions can join
	idle       bool // belongs to an inactive subscription and has no reflectors; see Activity
	log        logr.Logger
	transform  cache.TransformFunc // nil if objects are stored as they are received
	guard      protect.Guard       // calls the transforms
	state      *watchState
	store      *objects.Store
	selector   objectSelector
	reflectors []*reflector // one for each namespace of the key, or a single one for all namespaces

	// delivery guards attached, pass, passes, the reflectors' fields, and all writes to the store. It is held while
	// changes are delivered, so that they are delivered in order and the store reflects them. It is never held while user
	// code is called, apart from functions that assign objects to flows.
	delivery sync.Mutex
	attached []*Subscription // subscriptions that have an event handler
	pass     *pass           // nil if no pass is in progress
	passes   int             // number of passes so far

	unusableLogged bool // whether an unusable object has been logged; guarded by delivery

	progress atomic.Uint64 // see changed

	// Written only under delivery.
	unusable    atomic.Pointer[Unusable]
	changes     atomic.Int64 // number of changes that notify has delivered
	carriedOver atomic.Int64 // number of objects that replacements have added to the store
	everListed  atomic.Bool  // whether the store has ever held a complete list
	listed      atomic.Bool  // whether the store holds a complete list from the current session

	incoming atomic.Pointer[[]*replacement] // replacements that wait for this watch; written under pool.mu

	// Guarded by pool.mu.
	subscriptions map[*Subscription]struct{}
	fails         bool               // requests fail, and no complete list has been received in this session
	closed        bool               // no subscription uses the watch
	startedIn     *session           // the session in which the watch was last started
	cancel        context.CancelFunc // ends the goroutine
	done          chan struct{}      // closed when the last goroutine has returned
}

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

// newIdleWatch returns a watch for an inactive subscription. It does not belong to the pool.
func newIdleWatch(p *Pool, key Key) *watch {
	w := emptyWatch(p, key)
	w.idle = true
	w.state = newWatchState(func(State) {})
	return w
}

func emptyWatch(p *Pool, key Key) *watch {
	w := &watch{
		pool: p, key: key, selector: newObjectSelector(key),
		store: objects.NewStore(key.Projection), subscriptions: map[*Subscription]struct{}{}, done: closedChannel,
	}
	w.incoming.Store(&[]*replacement{})
	w.unusable.Store(&Unusable{})
	return w
}

func newWatch(p *Pool, key Key, transform cache.TransformFunc) *watch {
	w, log := emptyWatch(p, key), p.config.Log(key.GVR)
	w.shared, w.log = transform == nil, log
	if key.Projection != objects.Keys {
		w.transform = protect.Transform(p.config.Transform, transform)
	}
	w.state = newWatchState(func(s State) { p.observe(w, s) })
	for _, namespace := range strings.Split(key.Namespaces, ",") {
		requests := p.config.Source.Requests(key.GVR, namespace, key.Projection)
		r := &reflector{watch: w, namespace: namespace, requests: requests}
		r.history.Store(p.histories.of(key.GVR.Group))
		r.loop = listwatch.NewLoop(requests, r, listwatch.Options{
			Log: log, GVR: key.GVR, LabelSelector: key.labelSelector(), FieldSelector: key.FieldSelector,
			Observe: w.state.update, Relists: p.relists, Gate: p.gate, ConnectionLost: func() { p.connectionLost(w) },
		})
		r.relist = r.loop.Relist
		w.reflectors = append(w.reflectors, r)
		w.state.loops = append(w.state.loops, r.loop)
	}
	return w
}

// run watches until ctx is cancelled and returns when its goroutines have ended. It can be called again. The store is
// kept between calls, so that deletions in the meantime are detected.
func (w *watch) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var others sync.WaitGroup
	defer others.Wait()
	defer cancel() // before others.Wait, even if a transform calls runtime.Goexit
	for _, r := range w.reflectors[1:] {
		others.Go(func() { r.run(ctx) })
	}
	w.reflectors[0].run(ctx)
}

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
	for _, incoming := range *r.watch.incoming.Load() {
		for _, other := range incoming.subscription.view.Load().watch.reflectors {
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
	r.began = r.watch.pool.histories.of(r.watch.key.GVR.Group)
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
	if pool := r.watch.pool; result.WentBack {
		pool.beginHistory(r, r.floor)
		r.began = pool.histories.of(r.watch.key.GVR.Group)
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
	w.pool.setSynced(w)
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
	if r.listed { // until then, Subscription.handle drops everything except deletions
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
	w.pool.setSynced(w)
	for _, s := range w.attached {
		s.announced = false
	}
	w.changed()
}

// advance records the version of an event. It is called after the store has changed, so that a reader that sees the
// version also sees the change. The caller must hold the watch's delivery lock.
func (r *reflector) advance(v version) {
	r.position.Store(max(r.position.Load(), uint64(v)))
	r.observed.Store(max(r.observed.Load(), uint64(v)))
}

// notify delivers a change to all subscriptions that have an event handler. The caller must hold w.delivery.
func (w *watch) notify(c objects.Change) {
	w.changes.Add(1)
	if len(w.attached) == 0 {
		return
	}
	change := newStoreChange(c)
	if w.pass != nil {
		w.pass.changes = append(w.pass.changes, change)
	}
	for _, s := range w.attached {
		s.handle(change)
	}
}

// progressed is called after each event.
func (w *watch) progressed() {
	w.wakeIncoming()
	w.changed()
}

// changed is called when the watch has received something, or its phase has changed.
func (w *watch) changed() {
	w.progress.Add(1)
	w.pool.config.Progress()
}

// wakeIncoming triggers an attempt to switch for each replacement that is waiting for this watch.
func (w *watch) wakeIncoming() {
	for _, r := range *w.incoming.Load() {
		r.check()
	}
}

// isBehind reports whether the watch may lack changes that the older watch has delivered. Versions of different
// histories cannot be compared. The caller must hold the delivery locks of both watches.
func (w *watch) isBehind(older *watch) bool {
	return slices.ContainsFunc(w.reflectors, func(r *reflector) bool {
		return slices.ContainsFunc(older.reflectors, r.isBehind)
	})
}

func (r *reflector) isBehind(older *reflector) bool {
	disjoint := r.namespace != older.namespace && r.namespace != "" && older.namespace != ""
	if disjoint || r.unordered || r.history.Load() > older.history.Load() {
		return false
	}
	return r.history.Load() < older.history.Load() || version(older.position.Load()).isNewer(version(r.observed.Load()))
}

// isEmptied reports whether a type event has removed objects since the last list. The caller must hold w.delivery.
func (w *watch) isEmptied() bool {
	return slices.ContainsFunc(w.reflectors, func(r *reflector) bool { return r.emptied })
}

// version is a resourceVersion parsed as a number, so that it can be read and compared without a lock.
type version uint64

const (
	none      version = 0              // no version has been received
	unordered version = math.MaxUint64 // a version that cannot be compared; it is never replaced by an event's version
)

func versionNumber(resourceVersion string) version {
	if resourceVersion == "" || resourceVersion == "0" { // "0" is the version of an empty fake server
		return none
	}
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil || resourceVersion[0] == '0' { // numbers have no leading zeros
		return unordered
	}
	return version(n)
}

// isNewer reports whether v is newer than its argument. It returns false if the versions cannot be compared.
func (v version) isNewer(than version) bool { return v != unordered && v > than }

func (v version) String() string {
	switch v {
	case none:
		return ""
	case unordered:
		return "unordered"
	default:
		return strconv.FormatUint(uint64(v), 10)
	}
}
