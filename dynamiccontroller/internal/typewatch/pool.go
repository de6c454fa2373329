package typewatch

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/recordclient"
	"github.com/dynamic-controller/engine/internal/listwatch"
)

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
	environment // of all watches
	// historyRelists limits the relists after a new history began, and checks the checks for one.
	historyRelists, checks *rate.Limiter

	mu      sync.Mutex // guards the fields below, places, and some fields of subscriptions
	shared  map[Key]*place
	byType  map[schema.GroupVersionResource][]*place
	session *session // nil while no watch runs
	// checking is true while a check for a new history is in progress.
	checking bool
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
		environment: environment{
			config: config, relists: listwatch.NewRelistLimiter(), gate: listwatch.NewGate(),
		},
		checks:         rate.NewLimiter(rate.Every(checkInterval), 1),
		historyRelists: rate.NewLimiter(historyRelistsPerSecond, historyRelistBurst),
		shared:         map[Key]*place{}, byType: map[schema.GroupVersionResource][]*place{},
	}
}

// Subscribe returns a subscription for the objects that the options describe. The subscription joins an existing
// watch or a new one. Subscribe does not block.
//
// If observe is not nil, it is called when the phase of the subscription's current watch changes. It must not use the
// pool or change a subscription. It may be called once more while [Subscription.Close] is running.
func (p *Pool) Subscribe(options Options, observe func(State)) *Subscription {
	s := newSubscription(p, observe)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.subscribeLocked(s, options)
	return s
}

// subscribeLocked gives a new subscription its first watch.
func (p *Pool) subscribeLocked(s *Subscription, options Options) {
	at := s.joinLocked(options)
	at.subscriptions[s] = struct{}{}
	s.setViewLocked(at, &options)
	s.setSynced(at.watch.listed.Load())
	p.settleLocked(at)
}

// joinLocked returns the place for the options. It prefers a watch with exactly the requested projection to one with a
// wider projection, and ignores the latter if it is failing to sync. If there is neither, it creates a watch.
func (p *Pool) joinLocked(options Options) *place {
	if options.Transform != nil {
		return p.newPlaceLocked(options.Key, options.Transform)
	}
	for key := options.Key; key.Projection <= objects.Complete; key.Projection++ {
		if at := p.sharedLocked(key); at != nil && (key == options.Key || !at.fails) {
			return at
		}
	}
	return p.newPlaceLocked(options.Key, nil)
}

func (p *Pool) newPlaceLocked(key Key, transform cache.TransformFunc) *place {
	at := newPlace()
	at.watch = newWatch(&p.environment, key, transform, owner{
		listed:         func() { p.setSynced(at) },
		observe:        func(state State) { p.observe(at, state) },
		wentBack:       p.beginHistory,
		connectionLost: func() { p.connectionLost(at.watch) },
	})
	p.byType[key.GVR] = append(p.byType[key.GVR], at)
	if at.watch.shared {
		p.shared[key] = at
	}
	p.startLocked(at)
	return at
}

// newIdlePlaceLocked returns a place for one subscription that is not active. It is not among those of the pool.
func (p *Pool) newIdlePlaceLocked(key Key) *place {
	at := newPlace()
	at.watch, at.idle = newIdleWatch(&p.environment, key), true
	return at
}

// leaveLocked is called after s, or its replacement, has left the place. It ends the watch if nothing uses it.
func (p *Pool) leaveLocked(at *place, s *Subscription) {
	p.settleLocked(at)
	if at.closed || len(at.subscriptions)+len(at.incoming) > 0 {
		return
	}
	at.closed = true
	key := at.watch.key
	p.byType[key.GVR] = slices.DeleteFunc(p.byType[key.GVR], func(other *place) bool { return other == at })
	if len(p.byType[key.GVR]) == 0 {
		delete(p.byType, key.GVR)
	}
	if p.shared[key] == at {
		delete(p.shared, key)
	}
	if at.cancel != nil {
		at.cancel()
	}
	s.waitForLocked(at.done)
}

// settleLocked determines whether subscriptions that need only a narrower projection keep using the watch. If no
// subscription needs the watch's projection, or if the watch fails before it has synced, settleLocked moves these
// subscriptions to another watch. Otherwise, any pending moves are cancelled.
func (p *Pool) settleLocked(at *place) {
	key := at.watch.key
	if !at.watch.shared || at.closed {
		return
	}
	stays, widest := false, objects.Keys
	visit := func(projection objects.Projection) {
		if projection < key.Projection {
			widest = max(widest, projection)
		} else {
			stays = true
		}
	}
	for s := range at.subscriptions {
		visit(s.view.Load().options.Projection)
	}
	incoming := at.incoming
	for _, r := range incoming {
		visit(r.options.Projection)
	}
	stays = stays && !at.fails
	narrower := key
	narrower.Projection = widest
	for s := range at.subscriptions {
		switch options := s.view.Load().options; {
		case options.Projection == key.Projection:
		case stays && s.replacement != nil && s.replacement.isMove && s.presence.fitsLocked(at, options.Key):
			s.dropLocked()
		case !stays && s.replacement == nil && s.presence.fitsLocked(at, options.Key):
			s.moveLocked(p.exactLocked(narrower))
		}
	}
	for _, r := range incoming {
		if !stays && r.options.Projection < key.Projection {
			r.setTargetLocked(p.exactLocked(narrower))
		}
	}
}

func (p *Pool) exactLocked(key Key) *place {
	if at := p.sharedLocked(key); at != nil {
		return at
	}
	return p.newPlaceLocked(key, nil)
}

// sharedLocked returns the place with the key that subscriptions can join, or nil. It starts the watch, which may have
// been skipped when the session began.
func (p *Pool) sharedLocked(key Key) *place {
	at := p.shared[key]
	if at != nil {
		p.startLocked(at)
	}
	return at
}

// Len returns the number of watches, except idle ones.
func (p *Pool) Len() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, places := range p.byType {
		n += len(places)
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
	for _, places := range p.byType {
		for _, at := range places {
			if isWantedLocked(at) {
				p.startLocked(at)
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
		for _, places := range p.byType {
			all = append(all, watchesOf(places)...)
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
func (p *Pool) startLocked(at *place) {
	current := p.session
	if current == nil || at.idle || at.closed || at.startedIn == current {
		return
	}
	ctx, cancel := context.WithCancel(current.ctx)
	w, before, done := at.watch, at.done, make(chan struct{})
	at.startedIn, at.cancel, at.done = current, cancel, done
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
	for gvr, places := range p.byType {
		if slices.ContainsFunc(places, func(at *place) bool { return !IsClosed(at.done) }) {
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
	return watchesOf(p.byType[gvr])
}

// setSynced updates the subscriptions after the watch has stored a list or its session has ended. The caller must hold
// the delivery lock.
func (p *Pool) setSynced(at *place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at.watch.wakeWaiters()
	listed := at.watch.listed.Load()
	if at.fails && listed {
		at.fails = false
		p.settleLocked(at)
	}
	for s := range at.subscriptions {
		s.setSynced(listed)
		if s.replacement != nil {
			s.replacement.check() // a list can move the watch back to an older version; see watch.isBehind
		}
	}
}

// observe notifies the observers that a watch's phase has changed. It is called with the watch state's mu held.
func (p *Pool) observe(at *place, state State) {
	w := at.watch
	p.mu.Lock()
	at.fails = !w.listed.Load() && (state.Phase == Forbidden || state.Phase == Failing)
	p.settleLocked(at)
	var observers []func(State)
	for s := range at.subscriptions {
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
