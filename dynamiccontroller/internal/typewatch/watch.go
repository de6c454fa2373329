package typewatch

import (
	"context"
	"errors"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/internal/listwatch"
	"github.com/dynamic-controller/engine/internal/protect"
)

// watch keeps its store in sync with the API server while it runs, and delivers the changes to event handlers. It is
// the store that its reflector writes to.
type watch struct {
	pool      *Pool
	number    uint64 // watches are numbered in the order of their creation
	key       Key
	shared    bool // whether other subscriptions can join
	log       logr.Logger
	transform cache.TransformFunc // nil if objects are stored as they are received
	requests  *listwatch.ListWatch
	state     *watchState
	store     *objects.Store

	// deliver guards the fields attached through emptied, and writes to the store. It is held while event handlers are
	// called, so that they are called in order and only after the change is visible in the store.
	deliver  sync.Mutex
	attached []*Subscription // subscriptions that have an event handler
	owners   ownerCache
	// observed is the version up to which the store reflects all changes. It includes bookmarks.
	observed version
	// unordered reports whether the last list had no version. In that case, the store cannot be compared with others.
	unordered bool
	// restored reports whether the last list was older than required because the API server's etcd was restored. The
	// store cannot be compared with one that has not been restored.
	restored bool

	// emptied reports whether the store is empty because of a type event, not because of a list.
	emptied bool

	// Written while deliver is held.
	position   atomic.Uint64 // the version of the last list, or of the newest event since then
	everListed atomic.Bool   // whether the store has ever held a complete list
	listed     atomic.Bool   // whether the store holds a complete list of the current term

	required atomic.Uint64                  // the oldest version that the next list may have
	incoming atomic.Pointer[[]*replacement] // replacements that wait for this watch; written under pool.mu

	// Guarded by pool.mu.
	subscriptions map[*Subscription]struct{}
	fails         bool               // requests fail, and no complete list has been received in this term
	closed        bool               // no subscription uses the watch
	term          *term              // the term in which the watch was last started
	cancel        context.CancelFunc // ends the goroutine
	done          chan struct{}      // closed when the last goroutine has returned
}

var (
	_ cache.ReflectorStore         = (*watch)(nil)
	_ cache.TransformingStore      = (*watch)(nil)
	_ cache.ReflectorBookmarkStore = (*watch)(nil)
)

func newWatch(p *Pool, number uint64, key Key, transform cache.TransformFunc) *watch {
	log := p.config.Log(key.GVR)
	w := &watch{
		pool: p, number: number, key: key, shared: transform == nil, log: log,
		store: objects.NewStore(key.Projection), subscriptions: map[*Subscription]struct{}{}, done: closedChannel,
	}
	w.incoming.Store(&[]*replacement{})
	if key.Projection != Keys {
		w.transform = protect.Transform(p.config.Transform, transform)
	}
	w.state = newWatchState(func(s State) { p.observe(w, s) })
	w.requests = listwatch.New(p.config.Source.Client(key.GVR, key.Namespace, key.Projection), listwatch.Config{
		GVR: key.GVR, LabelSelector: key.LabelSelector, FieldSelector: key.FieldSelector,
		MinVersion:  w.minVersion,
		ListError:   w.state.listFailed,
		WatchResult: w.state.watchResult,
		Relists:     p.relists,
	})
	return w
}

// steady is how long an attempt must last to reset the backoff. Relists after watches were closed early are limited
// separately.
const steady = time.Minute

// newRetry returns the delays between attempts. The first delays are short, because the API server returns NotFound for
// a few milliseconds after the type's CRD has been established. The later delays limit the cost of a missing type to
// two attempts per minute.
func newRetry() wait.DelayFunc {
	backoff := wait.Backoff{Duration: 10 * time.Millisecond, Cap: 30 * time.Second, Steps: 20, Factor: 2, Jitter: 0.2}
	return backoff.DelayFunc()
}

// run watches until ctx is cancelled and returns when its goroutines have ended. It can be called again. The store is
// kept between calls, so that deletions are detected when the first list of a term arrives.
func (w *watch) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, w.log))
	w.requests.Begin()
	w.state.begin()
	defer w.state.end()
	defer w.endTerm()
	defer w.requests.Join()
	defer cancel()

	reflector := w.requests.NewReflector(ctx, w.log, "typewatch", 10*time.Second, w)
	retry := newRetry()
	for ctx.Err() == nil {
		attempt, end := w.state.beginAttempt(ctx)
		began := time.Now()
		w.requests.BeginAttempt()
		err := reflector.ListAndWatchWithContext(attempt)
		end()
		if w.state.takeVanished() {
			w.requests.JoinStream()
			// All objects are gone. A handler that is waiting for the first list receives an empty list.
			w.setAll(map[string]*objects.Record{}, "", nil)
		}
		if errors.Is(err, listwatch.ErrRelist) || time.Since(began) > steady {
			retry = newRetry()
		}
		select {
		case <-listwatch.After(ctx, retry()):
		case <-w.state.wake:
			retry = newRetry()
		}
	}
}

// Transformer returns the function that the reflector applies to objects while it collects a streaming list.
func (w *watch) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return w.record(obj) }
}

func (w *watch) Add(obj any) error { return w.put(obj) }

func (w *watch) Update(obj any) error { return w.put(obj) }

func (w *watch) Resync() error { return nil }

// Bookmark records that the store reflects all changes up to a resourceVersion.
func (w *watch) Bookmark(resourceVersion string) error {
	w.deliver.Lock()
	defer w.deliver.Unlock()
	w.observed = max(w.observed, versionNumber(resourceVersion))
	w.wakeIncoming()
	return nil
}

func (w *watch) put(obj any) error {
	r, err := w.record(obj)
	if err != nil {
		return err
	}
	w.deliver.Lock()
	defer w.deliver.Unlock()
	w.advance(versionNumber(r.GetResourceVersion()))
	if old, same := w.store.Put(r); !same {
		w.notify(objects.Change{Key: r.Key(), Old: old, New: r})
	}
	w.wakeIncoming()
	return nil
}

func (w *watch) Delete(obj any) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	key := cache.MetaObjectToName(m).String()
	w.deliver.Lock()
	defer w.deliver.Unlock()
	w.advance(versionNumber(m.GetResourceVersion()))
	if old, known := w.store.Delete(key); known {
		w.notify(objects.Change{Key: key, Old: old})
	}
	w.wakeIncoming()
	return nil
}

// Replace stores a complete list.
func (w *watch) Replace(list []any, resourceVersion string) error {
	items := make(map[string]*objects.Record, len(list))
	for _, obj := range list {
		r, err := w.record(obj)
		if err != nil {
			return err
		}
		items[r.Key()] = r
	}
	watching := w.requests.Completed()
	w.setAll(items, resourceVersion, func() { w.state.listed(watching) })
	return nil
}

// setAll replaces the content of the store. It calls the function stored before it calls the event handlers. If the
// type has vanished, stored is nil. Comparing the old and new content can take a long time. Meanwhile, deliver does not
// need to be held, because only the goroutine that runs the watch modifies the store.
func (w *watch) setAll(items map[string]*objects.Record, resourceVersion string, stored func()) {
	changes := w.store.ChangesTo(items, w.listed.Load())
	newest := none
	for _, r := range items {
		newest = max(newest, versionNumber(r.GetResourceVersion()))
	}
	listed := versionNumber(resourceVersion)
	w.deliver.Lock()
	defer w.deliver.Unlock()
	w.store.Replace(items)
	required := version(w.required.Swap(0))
	w.unordered, w.restored = resourceVersion == "", listed != none && required.isNewer(listed)
	if listed != none {
		// If the API server's etcd was restored, the list's version is older than the position.
		w.position.Store(uint64(listed))
		w.observed = listed
	}
	w.advance(newest)
	w.everListed.Store(true)
	w.listed.Store(true)
	if w.emptied = stored == nil; !w.emptied {
		stored()
	}
	w.pool.setSynced(w)
	for _, c := range changes {
		w.notify(c)
	}
	for _, s := range w.attached {
		s.announce(w)
	}
}

// endTerm ends the current term, so that the next list is the first one of a new term.
func (w *watch) endTerm() {
	w.deliver.Lock()
	defer w.deliver.Unlock()
	w.listed.Store(false)
	w.pool.setSynced(w)
	for _, s := range w.attached {
		s.announced = false
	}
}

// advance records the version of an event. The caller must hold w.deliver.
func (w *watch) advance(v version) {
	w.position.Store(max(w.position.Load(), uint64(v)))
	w.observed = max(w.observed, v)
}

// notify calls the event handlers. The caller must hold w.deliver.
func (w *watch) notify(c objects.Change) {
	for _, s := range w.attached {
		s.handle(c)
	}
	w.owners = ownerCache{} // so that the cache does not keep objects in memory
}

// wakeIncoming makes the replacements that wait for this watch check again whether the watch has caught up.
func (w *watch) wakeIncoming() {
	for _, r := range *w.incoming.Load() {
		r.check()
	}
}

// minVersion returns the oldest resourceVersion that the next list may have. The list must not be older than the
// store of this watch, or of any watch that this one will replace.
func (w *watch) minVersion() string {
	oldest := version(w.position.Load())
	for _, r := range *w.incoming.Load() {
		oldest = max(oldest, version(r.subscription.view.Load().watch.position.Load()))
	}
	if oldest != unordered {
		w.required.Store(uint64(oldest))
	}
	return oldest.String()
}

// isBehind reports whether the watch may lack changes that the older watch has delivered. The caller must hold the
// deliver locks of both watches.
func (w *watch) isBehind(older *watch) bool {
	position := version(older.position.Load())
	return !w.unordered && (!w.restored || older.restored) && position.isNewer(w.observed)
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
	if _, err := resourceversion.CompareResourceVersion(resourceVersion, resourceVersion); err != nil {
		return unordered
	}
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return unordered
	}
	return version(n)
}

// isNewer reports whether v is newer than the other version. It returns false if the versions cannot be compared.
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
