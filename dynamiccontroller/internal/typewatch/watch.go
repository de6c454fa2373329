package typewatch

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/dynamic-controller/engine/internal/listwatch"
	"github.com/dynamic-controller/engine/internal/protect"
)

// watch keeps its contents equal to the objects on the API server while it runs, and delivers their changes. It
// implements the reflector's store.
type watch struct {
	pool      *Pool
	number    uint64 // watches are numbered in the order of their creation
	key       Key
	shared    bool // whether other subscriptions can join
	log       logr.Logger
	transform cache.TransformFunc
	requests  *listwatch.ListWatch
	state     *watchState
	contents  contents

	// deliver guards attached through emptied, and writes to contents. It is held while event handlers are called, so
	// that they are called in order, and only after the change is visible in the store.
	deliver  sync.Mutex
	attached []*Subscription // subscriptions that have an event handler
	owners   ownerCache
	// observed is the version up to which the contents reflect all changes. It includes bookmarks.
	observed version
	// unordered reports whether the last list has no version, so that the store cannot be compared with others.
	unordered bool
	// restored reports whether the last list was older than required because the API server's etcd was restored. The
	// store cannot be compared with one that has not been restored.
	restored bool

	// emptied reports whether the contents are empty because of a type event, not because of a list.
	emptied bool

	// Written while deliver is held.
	position   atomic.Uint64 // the version of the last list, or of the newest event since then
	everListed atomic.Bool   // whether the contents have ever held a complete list
	listed     atomic.Bool   // whether the contents hold a complete list of the current term

	required atomic.Uint64                  // the oldest version that the next list can have
	incoming atomic.Pointer[[]*replacement] // replacements that wait for this watch; written under pool.mu

	// Guarded by pool.mu.
	subscriptions map[*Subscription]struct{}
	fails         bool               // requests fail, and no complete list has arrived in this term
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
		subscriptions: map[*Subscription]struct{}{}, done: closedChannel,
	}
	w.incoming.Store(&[]*replacement{})
	w.contents = newObjects()
	if key.Projection == Keys {
		w.contents = newIdentities()
	}
	w.transform = func(obj any) (any, error) { return key.Projection.reduce(obj), nil }
	if custom := protect.Transform(log, p.config.Transform, transform); custom != nil {
		w.transform = func(obj any) (any, error) { return custom(key.Projection.reduce(obj)) }
	}
	w.state = newWatchState(func(s State) { p.observe(w, s) })
	w.requests = listwatch.New(p.config.Clients, listwatch.Config{
		GVR: key.GVR, Namespace: key.Namespace, LabelSelector: key.LabelSelector, FieldSelector: key.FieldSelector,
		MetadataOnly: key.Projection != Full,
		MinVersion:   w.minVersion,
		ListError:    w.state.listFailed,
		WatchResult:  w.state.watchResult,
		Relists:      p.relists,
	})
	return w
}

// steady is how long an attempt must have lasted for the backoff to be reset. A separate limit applies to relists after
// a watch that was closed early.
const steady = time.Minute

// newRetry returns the delays between attempts. The first delays are short, because requests for a type return NotFound
// for a few milliseconds after its CRD has been established. The last delays limit the cost of a type that does not
// exist to two requests per minute.
func newRetry() wait.DelayFunc {
	backoff := wait.Backoff{Duration: 10 * time.Millisecond, Cap: 30 * time.Second, Steps: 20, Factor: 2, Jitter: 0.2}
	return backoff.DelayFunc()
}

// run watches until ctx is cancelled and returns when its goroutines have ended. It can be called again. The contents
// are kept in between, so that the first list of a term finds deletions.
func (w *watch) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, w.log))
	w.requests.Begin()
	w.state.begin()
	defer w.state.end()
	defer w.endTerm()
	defer w.requests.Join()
	defer cancel()

	reflector := cache.NewReflectorWithOptions(w.requests.ListerWatcher(), nil, w, cache.ReflectorOptions{
		Name:            "typewatch",
		TypeDescription: w.key.GVR.String(),
		Logger:          &w.log,
		Clock:           stoppableClock{after: func(d time.Duration) <-chan time.Time { return after(ctx, d) }},
		// This backoff applies to requests that the reflector retries itself, which are those that end with a refused
		// connection or with a 429. The reflector's default backoff begins at 0.8 s.
		Backoff: &wait.Backoff{
			Duration: 20 * time.Millisecond, Cap: 10 * time.Second, Steps: 10, Factor: 2, Jitter: 0.5,
		},
	})
	retry, answers := newRetry(), false
	for ctx.Err() == nil {
		attempt, end := w.state.beginAttempt(ctx)
		began, err := time.Now(), error(nil)
		if !answers {
			err = w.requests.Probe(attempt)
		}
		if err == nil {
			w.requests.BeginAttempt()
			err = reflector.ListAndWatchWithContext(attempt)
		}
		end()
		relist := errors.Is(err, listwatch.ErrRelist)
		answers = err == nil || relist
		if w.state.takeVanished() {
			answers = false
			w.requests.JoinStream()
			// All objects are gone. A handler that is waiting for the first list receives an empty list.
			w.setAll(map[string]any{}, "", nil)
		}
		if relist || time.Since(began) > steady {
			retry = newRetry()
		}
		select {
		case <-after(ctx, retry()):
		case <-w.state.wake:
			retry = newRetry()
		}
	}
}

// after returns a channel that receives a value after d, or when ctx ends.
func after(ctx context.Context, d time.Duration) <-chan time.Time {
	fired := make(chan time.Time, 1)
	ctx, cancel := context.WithTimeout(ctx, d)
	context.AfterFunc(ctx, func() {
		cancel()
		fired <- time.Now()
	})
	return fired
}

// stoppableClock is the real clock, except that the wait of After can be stopped. The reflector needs it because it
// waits for its backoff without checking its context (watchList, client-go v0.37), for up to ten seconds.
type stoppableClock struct {
	clock.RealClock
	after func(time.Duration) <-chan time.Time
}

func (c stoppableClock) After(d time.Duration) <-chan time.Time { return c.after(d) }

// Transformer returns the transform that the reflector applies while it collects a list.
func (w *watch) Transformer() cache.TransformFunc { return w.transform }

// Add stores an object.
func (w *watch) Add(obj any) error { return w.put(obj) }

// Update stores an object.
func (w *watch) Update(obj any) error { return w.put(obj) }

// Resync does nothing.
func (w *watch) Resync() error { return nil }

// Bookmark records that the contents reflect all changes up to a resourceVersion.
func (w *watch) Bookmark(resourceVersion string) error {
	w.deliver.Lock()
	defer w.deliver.Unlock()
	w.observed = max(w.observed, versionNumber(resourceVersion))
	w.wakeIncoming()
	return nil
}

func (w *watch) put(obj any) error {
	obj, err := w.transform(obj)
	if err != nil {
		return err
	}
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return err
	}
	w.deliver.Lock()
	defer w.deliver.Unlock()
	w.advance(versionNumber(versionOf(obj)))
	if old, same := w.contents.put(key, obj); !same {
		w.notify(change{key: key, old: old, now: obj})
	}
	w.wakeIncoming()
	return nil
}

// Delete removes an object.
func (w *watch) Delete(obj any) error {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return err
	}
	w.deliver.Lock()
	defer w.deliver.Unlock()
	w.advance(versionNumber(versionOf(obj)))
	if old, known := w.contents.delete(key); known {
		w.notify(change{key: key, old: old})
	}
	w.wakeIncoming()
	return nil
}

// Replace stores a complete list.
func (w *watch) Replace(list []any, resourceVersion string) error {
	items := make(map[string]any, len(list))
	for _, obj := range list {
		obj, err := w.transform(obj)
		if err != nil {
			return err
		}
		key, err := cache.MetaNamespaceKeyFunc(obj)
		if err != nil {
			return fmt.Errorf("list item without a key: %w", err)
		}
		items[key] = obj
	}
	watching := w.requests.Completed()
	w.setAll(items, resourceVersion, func() { w.state.listed(watching) })
	return nil
}

// setAll replaces the contents. It calls the function stored before it calls the event handlers. If the type has
// vanished, stored is nil. Comparing the old contents with the new ones can take long, but does not require the lock
// deliver, because only the goroutine that runs the watch modifies the contents.
func (w *watch) setAll(items map[string]any, resourceVersion string, stored func()) {
	changes := changesTo(w.contents, items, w.listed.Load())
	newest := none
	for _, obj := range items {
		newest = max(newest, versionNumber(versionOf(obj)))
	}
	listed := versionNumber(resourceVersion)
	w.deliver.Lock()
	defer w.deliver.Unlock()
	w.contents.replace(items)
	required := version(w.required.Swap(0))
	w.unordered, w.restored = resourceVersion == "", listed != none && required.isNewer(listed)
	if listed != none {
		// The version of the list is older than the position if the API server's etcd was restored.
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
func (w *watch) notify(c change) {
	for _, s := range w.attached {
		s.handle(c)
	}
	w.owners = ownerCache{} // so that it keeps no object in memory
}

// wakeIncoming makes the replacements that wait for this watch check again whether it has caught up.
func (w *watch) wakeIncoming() {
	for _, r := range *w.incoming.Load() {
		r.check()
	}
}

// minVersion returns the oldest resourceVersion that the next list can have. The list must not be older than the
// contents of this watch, or than the contents of any watch that this one is to replace.
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

// isBehind reports whether the watch may lack changes that the older one has delivered. The caller must hold the lock
// deliver of both watches.
func (w *watch) isBehind(older *watch) bool {
	position := version(older.position.Load())
	return !w.unordered && (!w.restored || older.restored) && position.isNewer(w.observed)
}

// version is a received resourceVersion. It is stored as a number, so that it can be read and compared without a lock.
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
