package typewatch

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/recordclient"
	"github.com/dynamic-controller/engine/internal/listwatch"
	"github.com/dynamic-controller/engine/internal/shards"
)

// Key identifies a watch. The key of a watch never changes.
type Key struct {
	GVR           schema.GroupVersionResource
	Namespaces    string // separated by commas, sorted and without duplicates; empty for all namespaces
	LabelSelector string // empty for all objects
	FieldSelector string // empty for all objects
	// BucketLabel is the label that contains the bucket of the type to which an object belongs. If it is not empty, the
	// watch is narrowed to Shard.
	BucketLabel string
	// Shard is set by the pool, from the [Activity] of the subscription. The zero Shard does not narrow the watch.
	Shard      shards.Shard
	Projection objects.Projection
}

// labelSelector returns the selector for requests.
func (k Key) labelSelector() string {
	narrowing := ""
	if k.Shard.Count > 0 {
		narrowing = k.Shard.Selector(k.BucketLabel)
	}
	if k.LabelSelector == "" || narrowing == "" {
		return k.LabelSelector + narrowing
	}
	return k.LabelSelector + "," + narrowing
}

// Options describes the objects of a subscription.
type Options struct {
	Key
	// Transform, if not nil, changes objects before they are stored. It must be safe for concurrent use. A watch with a
	// transform is never shared, because functions cannot be compared.
	Transform cache.TransformFunc
	// Secondary reports that changes to the objects reconcile objects of another type. After a restore, such watches are
	// relisted first, so that the other objects are reconciled with the current state.
	Secondary bool
	// Blocking must be true if the event handler can call user code for an object with these options. See [EventHandler].
	Blocking bool
	// Value is the caller's own value for these options. It must be comparable. See [View.Value].
	Value any
	// Indexes declares the indexes of the objects. It can be nil. See [View.ByIndex].
	Indexes *Indexes
}

// Config configures a Pool. Source and Log are required.
type Config struct {
	Source recordclient.Source
	Log    func(schema.GroupVersionResource) logr.Logger
	// Observe, if not nil, is called when the phase of any watch changes. It must not use the pool or a subscription.
	// unsynced is how long the watch had not been synced, if it is synced now.
	Observe func(key Key, state State, unsynced time.Duration)
	// Transform, if not nil, is applied to the objects of all watches, before the subscription's own transform. It must be
	// safe for concurrent use.
	Transform cache.TransformFunc
	// Reduce, if not nil, is applied to the JSON of objects before they are decoded for Transform. It must be safe for
	// concurrent use.
	Reduce func(object []byte) []byte
	// KindOf, if not nil, returns the kind of a type, or an empty one if it is unknown. Objects that are decoded as
	// metadata have this kind. It must be safe for concurrent use.
	KindOf func(schema.GroupVersionResource) schema.GroupVersionKind
	// Progress, if not nil, is called after a watch has received something, moved or changed its phase, so that the result
	// of [Subscription.Lacks] can have changed. It is called with locks held: it must not block or use the pool.
	Progress func()
}

// Pool holds the watches of all subscriptions. Subscriptions for the same objects share a watch. A Pool's methods are
// safe for concurrent use.
type Pool struct {
	config    Config
	relists   *rate.Limiter // limits relists, across all types, after watches were closed early
	gate      *listwatch.Gate
	histories histories
	// historyRelists limits the relists after a new history began, and checks the checks for one.
	historyRelists, checks *rate.Limiter

	mu      sync.Mutex // guards the fields below, and some fields of watches and subscriptions
	shared  map[Key]*watch
	byType  map[schema.GroupVersionResource][]*watch
	session *session // nil while no watch runs
	// checking is true while a check for a new history is in progress.
	checking bool

	holds atomic.Int64 // number of calls to Hold that have not been released
}

// session is a period during which watches run; see the package comment.
type session struct {
	ctx     context.Context // the parent context of all watches
	watches sync.WaitGroup
}

// NewPool returns a pool. Its watches do not run until [Pool.Start] is called.
func NewPool(config Config) *Pool {
	if config.Progress == nil {
		config.Progress = func() {}
	}
	return &Pool{
		config: config, relists: listwatch.NewRelistLimiter(), gate: listwatch.NewGate(),
		checks:         rate.NewLimiter(rate.Every(checkInterval), 1),
		historyRelists: rate.NewLimiter(historyRelistsPerSecond, historyRelistBurst),
		shared:         map[Key]*watch{}, byType: map[schema.GroupVersionResource][]*watch{},
	}
}

// Subscribe returns a subscription for the objects that the options describe. The subscription joins an existing
// watch or a new one. Subscribe does not block.
//
// If observe is not nil, it is called when the phase of the subscription's current watch changes. It must not use the
// pool or change a subscription. It may be called once more while [Subscription.Close] is running.
func (p *Pool) Subscribe(options Options, observe func(State)) *Subscription {
	return p.subscribe(options, observe, nil)
}

func (p *Pool) subscribe(options Options, observe func(State), activity *Activity) *Subscription {
	s := &Subscription{
		pool: p, observe: observe, activity: activity, ended: make(chan struct{}), switched: closedChannel,
	}
	s.synced.Store(ptr.To(make(chan struct{})))
	p.mu.Lock()
	defer p.mu.Unlock()
	if activity != nil {
		activity.subscriptions[s] = struct{}{}
	}
	w := s.joinLocked(options)
	w.subscriptions[s] = struct{}{}
	s.setViewLocked(w, &options)
	s.setSynced(w.listed.Load())
	p.settleLocked(w)
	return s
}

// joinLocked returns the watch for the options. It prefers a watch with exactly the requested projection to one with a
// wider projection, and ignores the latter if it is failing to sync. If there is neither, it creates a watch.
func (p *Pool) joinLocked(options Options) *watch {
	if options.Transform != nil {
		return p.newWatchLocked(options.Key, options.Transform)
	}
	for key := options.Key; key.Projection <= objects.Complete; key.Projection++ {
		if w := p.sharedLocked(key); w != nil && (key == options.Key || !w.fails) {
			return w
		}
	}
	return p.newWatchLocked(options.Key, nil)
}

func (p *Pool) newWatchLocked(key Key, transform cache.TransformFunc) *watch {
	w := newWatch(p, key, transform)
	p.byType[key.GVR] = append(p.byType[key.GVR], w)
	if w.shared {
		p.shared[key] = w
	}
	p.startLocked(w)
	return w
}

// leaveLocked is called after s, or its replacement, has left the watch. It closes the watch if nothing uses it.
func (p *Pool) leaveLocked(w *watch, s *Subscription) {
	p.settleLocked(w)
	if w.closed || len(w.subscriptions)+len(*w.incoming.Load()) > 0 {
		return
	}
	w.closed = true
	gvr := w.key.GVR
	p.byType[gvr] = slices.DeleteFunc(p.byType[gvr], func(other *watch) bool { return other == w })
	if len(p.byType[gvr]) == 0 {
		delete(p.byType, gvr)
	}
	if p.shared[w.key] == w {
		delete(p.shared, w.key)
	}
	if w.cancel != nil {
		w.cancel()
	}
	s.waitForLocked(w.done)
}

// settleLocked determines whether subscriptions that need only a narrower projection keep using the watch. If no
// subscription needs the watch's projection, or if the watch fails before it has synced, settleLocked moves these
// subscriptions to another watch. Otherwise, any pending moves are cancelled.
func (p *Pool) settleLocked(w *watch) {
	if !w.shared || w.closed {
		return
	}
	stays, widest := false, objects.Keys
	visit := func(projection objects.Projection) {
		if projection < w.key.Projection {
			widest = max(widest, projection)
		} else {
			stays = true
		}
	}
	for s := range w.subscriptions {
		visit(s.view.Load().options.Projection)
	}
	incoming := *w.incoming.Load()
	for _, r := range incoming {
		visit(r.options.Projection)
	}
	stays = stays && !w.fails
	key := w.key
	key.Projection = widest
	for s := range w.subscriptions {
		switch options := s.view.Load().options; {
		case options.Projection == w.key.Projection:
		case stays && s.replacement != nil && s.replacement.isMove && s.fitsLocked(w, *options):
			s.dropLocked()
		case !stays && s.replacement == nil && s.fitsLocked(w, *options):
			r := s.replaceLocked(*options, p.exactLocked(key), func() {}, func() {})
			r.isMove = true
			go r.run()
		}
	}
	for _, r := range incoming {
		if !stays && r.options.Projection < w.key.Projection {
			r.setTargetLocked(p.exactLocked(key))
		}
	}
}

func (p *Pool) exactLocked(key Key) *watch {
	if w := p.sharedLocked(key); w != nil {
		return w
	}
	return p.newWatchLocked(key, nil)
}

// sharedLocked returns the watch with the key that subscriptions can join, or nil. It starts the watch, which may have
// been skipped when the session began.
func (p *Pool) sharedLocked(key Key) *watch {
	w := p.shared[key]
	if w != nil {
		p.startLocked(w)
	}
	return w
}

// Len returns the number of watches, except idle ones.
func (p *Pool) Len() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, watches := range p.byType {
		n += len(watches)
	}
	return n
}

// Start runs the watches of all active subscriptions, current and future, until stop is called; see [Activity]. It does
// not block. stop cancels the watches and waits for their goroutines to end. A hung transform delays stop. The stores
// are kept. If Start is called again, watches start once those of the earlier call have ended.
func (p *Pool) Start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	current := &session{ctx: ctx}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.session = current
	for _, watches := range p.byType {
		for _, w := range watches {
			if w.isWantedLocked() {
				p.startLocked(w)
			}
		}
	}
	return func() {
		cancel()
		p.mu.Lock()
		if p.session == current {
			p.session = nil
		}
		p.mu.Unlock()
		current.watches.Wait()
	}
}

// Hold delays the delivery of existing objects until release is called. A caller that attaches many subscriptions uses
// it, so that each watch is read only once for all of them. It does not delay changes.
func (p *Pool) Hold() (release func()) {
	p.holds.Add(1)
	return sync.OnceFunc(func() {
		if p.holds.Add(-1) > 0 {
			return
		}
		var all []*watch
		p.mu.Lock()
		for _, watches := range p.byType {
			all = append(all, watches...)
		}
		p.mu.Unlock()
		for _, w := range all {
			w.delivery.Lock()
			w.startPass()
			w.delivery.Unlock()
		}
	})
}

// startLocked starts the watch's goroutine if the pool is running. If the watch's goroutine from an earlier session has
// not ended, the new one waits for it.
func (p *Pool) startLocked(w *watch) {
	current := p.session
	if current == nil || w.idle || w.closed || w.startedIn == current {
		return
	}
	ctx, cancel := context.WithCancel(current.ctx)
	before, done := w.done, make(chan struct{})
	w.startedIn, w.cancel, w.done = current, cancel, done
	current.watches.Go(func() {
		defer close(done)
		defer cancel()
		<-before
		if ctx.Err() == nil {
			w.run(ctx)
		}
	})
}

// Appeared must be called when the API server starts serving a type. Watches that are backing off retry immediately.
func (p *Pool) Appeared(gvr schema.GroupVersionResource) {
	for _, w := range p.watches(gvr) {
		w.state.endBackoff()
	}
}

// Vanished must be called when the type no longer exists. A NotFound response from one API server is not sufficient,
// because that server can lag behind. The type's watches immediately enter the NotFound phase, deliver a deletion for
// each object in their stores, and keep retrying. A watch that has not sent a request since [Pool.Start] keeps its
// objects until its first list completes. Vanished reports whether the type has any watches.
func (p *Pool) Vanished(gvr schema.GroupVersionResource) bool {
	watches := p.watches(gvr)
	for _, w := range watches {
		w.state.markVanished()
	}
	return len(watches) > 0
}

// Running returns the GVRs of all watches that are in use and whose goroutines are still running.
func (p *Pool) Running() (types []schema.GroupVersionResource) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for gvr, watches := range p.byType {
		if slices.ContainsFunc(watches, func(w *watch) bool { return !IsClosed(w.done) }) {
			types = append(types, gvr)
		}
	}
	return types
}

// Watches returns the number of watches of the type. It counts the watches of pending replacements, but not watches
// that are ending because no subscription uses them.
func (p *Pool) Watches(gvr schema.GroupVersionResource) int { return len(p.watches(gvr)) }

func (p *Pool) watches(gvr schema.GroupVersionResource) []*watch {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.byType[gvr])
}

// setSynced updates the watch's subscriptions after w.listed has changed. The caller must hold w.delivery.
func (p *Pool) setSynced(w *watch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.wakeIncoming()
	if w.fails && w.listed.Load() {
		w.fails = false
		p.settleLocked(w)
	}
	for s := range w.subscriptions {
		s.setSynced(w.listed.Load())
		if s.replacement != nil {
			s.replacement.check() // a list can move the watch back to an older version; see watch.isBehind
		}
	}
}

// observe notifies the observers that a watch's phase has changed. It is called with the watch state's mu held.
func (p *Pool) observe(w *watch, state State) {
	p.mu.Lock()
	w.fails = !w.listed.Load() && (state.Phase == Forbidden || state.Phase == Failing)
	p.settleLocked(w)
	var observers []func(State)
	for s := range w.subscriptions {
		if s.observe != nil {
			observers = append(observers, s.observe)
		}
	}
	p.mu.Unlock()
	for _, observe := range observers {
		observe(state)
	}
	if p.config.Observe != nil {
		p.config.Observe(w.key, state, state.Since.Sub(w.state.unsynced))
	}
	w.changed()
}

var closedChannel = func() chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return ch
}()

// IsClosed reports whether the channel is closed. No values may be sent on the channel.
func IsClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
