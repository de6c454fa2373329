package typewatch

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/internal/listwatch"
	"github.com/dynamic-controller/engine/internal/protect"
)

// watch holds the objects that its reflectors receive and delivers changes to event handlers.
type watch struct {
	pool       *Pool
	key        Key
	shared     bool // whether other subscriptions can join
	log        logr.Logger
	transform  cache.TransformFunc // nil if objects are stored as they are received
	state      *watchState
	store      *objects.Store
	reflectors []*reflector // one for each namespace of the key, or a single one for all namespaces

	// delivery guards attached, owners, the reflectors' fields, and all writes to the store. It is held while event
	// handlers are called, so that they run in order and see each change in the store.
	delivery sync.Mutex
	attached []*Subscription // subscriptions that have an event handler
	owners   objects.OwnerCache

	// Written only under delivery.
	everListed atomic.Bool // whether the store has ever held a complete list
	listed     atomic.Bool // whether the store holds a complete list from the current run

	incoming atomic.Pointer[[]*replacement] // replacements that wait for this watch; written under pool.mu

	// Guarded by pool.mu.
	subscriptions map[*Subscription]struct{}
	fails         bool               // requests fail, and no complete list has been received in this run
	closed        bool               // no subscription uses the watch
	startedIn     *run               // the run in which the watch was last started
	cancel        context.CancelFunc // ends the goroutine
	done          chan struct{}      // closed when the last goroutine has returned
}

// reflector keeps the objects of one namespace, or of all namespaces, in sync with the API server while it runs. It is
// the store that a [cache.Reflector] writes to.
type reflector struct {
	watch     *watch
	namespace string // empty for all namespaces
	requests  *listwatch.ListWatch
	state     *reflectorState

	// Guarded by the watch's delivery lock.

	// observed is the version up to which the store reflects all changes. Bookmarks advance it.
	observed version
	// unordered is true if the last list had no version. In that case, the store cannot be compared with others.
	unordered bool
	// restored is true if the last list was older than minVersion because the API server's etcd was restored. Versions in
	// this watch's store then cannot be compared with those in stores filled before the restore.
	restored bool
	listed   bool // whether the store holds a complete list from the current run
	emptied  bool // whether the objects were removed because of a type event, not because of a list

	position atomic.Uint64 // the version of the last list, or of the latest event since then; written under delivery
	required atomic.Uint64 // the oldest version that the next list may have
}

var (
	_ cache.ReflectorStore         = (*reflector)(nil)
	_ cache.TransformingStore      = (*reflector)(nil)
	_ cache.ReflectorBookmarkStore = (*reflector)(nil)
)

func newWatch(p *Pool, key Key, transform cache.TransformFunc) *watch {
	log := p.config.Log(key.GVR)
	w := &watch{
		pool: p, key: key, shared: transform == nil, log: log,
		store: objects.NewStore(key.Projection), subscriptions: map[*Subscription]struct{}{}, done: closedChannel,
	}
	w.incoming.Store(&[]*replacement{})
	if key.Projection != objects.Keys {
		w.transform = protect.Transform(p.config.Transform, transform)
	}
	namespaces := strings.Split(key.Namespaces, ",")
	w.state = newWatchState(len(namespaces), func(s State) { p.observe(w, s) })
	for i, namespace := range namespaces {
		r := &reflector{watch: w, namespace: namespace, state: w.state.reflectors[i]}
		r.requests = listwatch.New(p.config.Source.Client(key.GVR, namespace, key.Projection), listwatch.Config{
			GVR: key.GVR, LabelSelector: key.LabelSelector, FieldSelector: key.FieldSelector,
			MinVersion:  r.minVersion,
			ListError:   r.state.listFailed,
			WatchResult: r.state.watchResult,
			Relists:     p.relists,
		})
		w.reflectors = append(w.reflectors, r)
	}
	return w
}

// steady is how long an attempt must last to reset the backoff. Relists after an early close have their own rate limit.
const steady = time.Minute

// newRetry returns the delays between attempts. The first few delays are short, because the API server returns NotFound
// for a few milliseconds after the type's CRD becomes established. Later delays limit the cost of a missing type to two
// attempts per minute.
func newRetry() wait.DelayFunc {
	backoff := wait.Backoff{Duration: 10 * time.Millisecond, Cap: 30 * time.Second, Steps: 20, Factor: 2, Jitter: 0.2}
	return backoff.DelayFunc()
}

// run watches until ctx is cancelled and returns when its goroutines have ended. It can be called again. The store is
// kept between calls, so that deletions in the meantime are detected.
func (w *watch) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, w.log))
	var others sync.WaitGroup
	defer others.Wait()
	defer cancel() // before others.Wait, even if an event handler calls runtime.Goexit
	for _, r := range w.reflectors[1:] {
		others.Go(func() { r.run(ctx) })
	}
	w.reflectors[0].run(ctx)
}

func (r *reflector) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	r.requests.Begin()
	r.state.begin()
	defer r.state.end()
	defer r.endRun()
	defer r.requests.Join()
	defer cancel()

	reflector := r.requests.NewReflector(r.watch.log, "typewatch", 10*time.Second, r)
	retry := newRetry()
	for ctx.Err() == nil {
		attempt, end := r.state.beginAttempt(ctx)
		began := time.Now()
		r.requests.BeginAttempt(attempt)
		err := reflector.ListAndWatchWithContext(attempt)
		end()
		if r.state.takeVanished() {
			r.requests.JoinStream()
			// All objects are gone. A handler that is waiting for the first list receives an empty list.
			r.setAll(map[string]*objects.Record{}, "", nil)
		}
		if errors.Is(err, listwatch.ErrRelist) || time.Since(began) > steady {
			retry = newRetry()
		}
		select {
		case <-listwatch.After(ctx, retry()):
		case <-r.state.wake:
			retry = newRetry()
		}
	}
}

// Transformer returns the function that the reflector applies to objects while it collects a streaming list.
func (r *reflector) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return r.watch.record(obj) }
}

func (r *reflector) Add(obj any) error { return r.put(obj) }

func (r *reflector) Update(obj any) error { return r.put(obj) }

func (r *reflector) Resync() error { return nil }

// Bookmark records that the store reflects all changes up to resourceVersion.
func (r *reflector) Bookmark(resourceVersion string) error {
	w := r.watch
	w.delivery.Lock()
	defer w.delivery.Unlock()
	r.observed = max(r.observed, versionNumber(resourceVersion))
	w.wakeIncoming()
	return nil
}

func (r *reflector) put(obj any) error {
	w := r.watch
	now, err := w.record(obj)
	if err != nil {
		return err
	}
	w.delivery.Lock()
	defer w.delivery.Unlock()
	r.advance(versionNumber(now.GetResourceVersion()))
	if old, same := w.store.Put(now); !same {
		w.notify(objects.Change{Key: now.Key(), Old: old, New: now})
	}
	w.wakeIncoming()
	return nil
}

func (r *reflector) Delete(obj any) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	w, key := r.watch, cache.MetaObjectToName(m).String()
	w.delivery.Lock()
	defer w.delivery.Unlock()
	r.advance(versionNumber(m.GetResourceVersion()))
	if old, known := w.store.Delete(key); known {
		w.notify(objects.Change{Key: key, Old: old})
	}
	w.wakeIncoming()
	return nil
}

// Replace stores a complete list.
func (r *reflector) Replace(list []any, resourceVersion string) error {
	items := make(map[string]*objects.Record, len(list))
	for _, obj := range list {
		item, err := r.watch.record(obj)
		if err != nil {
			return err
		}
		items[item.Key()] = item
	}
	watching := r.requests.Completed()
	r.setAll(items, resourceVersion, func() { r.state.listed(watching) })
	return nil
}

// setAll replaces the reflector's objects in the store. It calls onStored before the event handlers. If the type has
// vanished, onStored is nil. The delivery lock is not needed for the comparison, which can take long, because only the
// reflector's own goroutine modifies these objects.
func (r *reflector) setAll(items map[string]*objects.Record, resourceVersion string, onStored func()) {
	w := r.watch
	changes := w.store.DeletionsIn(r.namespace, items)
	if r.listed { // until then, Subscription.handle drops everything except deletions
		changes = append(changes, w.store.Updates(items)...)
	}
	newest := none
	for _, item := range items {
		newest = max(newest, versionNumber(item.GetResourceVersion()))
	}
	listed := versionNumber(resourceVersion)
	w.delivery.Lock()
	defer w.delivery.Unlock()
	w.store.Replace(r.namespace, items)
	required := version(r.required.Swap(0))
	r.unordered, r.restored = resourceVersion == "", listed != none && required.isNewer(listed)
	if listed != none {
		// If the API server's etcd was restored, the list's version is older than the position.
		r.position.Store(uint64(listed))
		r.observed = listed
	}
	r.advance(newest)
	r.listed, r.emptied = true, onStored == nil
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
	for _, s := range w.attached {
		s.announce(w)
	}
}

// endRun is called when the reflector stops. It makes the next list count as the first one of a run.
func (r *reflector) endRun() {
	w := r.watch
	w.delivery.Lock()
	defer w.delivery.Unlock()
	r.listed = false
	w.listed.Store(false)
	w.pool.setSynced(w)
	for _, s := range w.attached {
		s.announced = false
	}
}

// advance records the version of an event. The caller must hold the watch's delivery lock.
func (r *reflector) advance(v version) {
	r.position.Store(max(r.position.Load(), uint64(v)))
	r.observed = max(r.observed, v)
}

// notify calls the event handlers. The caller must hold w.delivery.
func (w *watch) notify(c objects.Change) {
	for _, s := range w.attached {
		s.handle(c)
	}
	w.owners = objects.OwnerCache{} // so that the cache does not keep objects in memory
}

// wakeIncoming triggers an attempt to switch for each replacement that is waiting for this watch.
func (w *watch) wakeIncoming() {
	for _, r := range *w.incoming.Load() {
		r.check()
	}
}

// minVersion returns the oldest resourceVersion that the next list may have. The list must not be older than the
// reflector's objects in the store. If the watch will replace others, this also applies to their stores.
func (r *reflector) minVersion() string {
	oldest := version(r.position.Load())
	for _, incoming := range *r.watch.incoming.Load() {
		for _, other := range incoming.subscription.view.Load().watch.reflectors {
			oldest = max(oldest, version(other.position.Load()))
		}
	}
	if oldest != unordered {
		r.required.Store(uint64(oldest))
	}
	return oldest.String()
}

// isBehind reports whether the watch may lack changes that the older watch has delivered. The caller must hold the
// delivery locks of both watches.
func (w *watch) isBehind(older *watch) bool {
	return slices.ContainsFunc(w.reflectors, func(r *reflector) bool {
		return slices.ContainsFunc(older.reflectors, r.isBehind)
	})
}

func (r *reflector) isBehind(older *reflector) bool {
	disjoint := r.namespace != older.namespace && r.namespace != "" && older.namespace != ""
	position := version(older.position.Load())
	return !disjoint && !r.unordered && (!r.restored || older.restored) && position.isNewer(r.observed)
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
