package dynamiccontroller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/feed"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// MapAnyFunc is the function of a [StandaloneWatch]. It returns the objects to reconcile, which can belong to any
// served types. Identifiers of types that are not served, or that no run serves, are ignored. Malformed keys are
// ignored, logged and counted in [TypeStatus].MalformedKeys of the type. If a state of an object is lost, as for a
// [MapFunc], all objects of all served types are reconciled once, or those that the function of [AfterLoss] returns. In
// all other respects, it behaves like a [MapFunc], except that calls can be concurrent when a run begins.
type MapAnyFunc func(ctx context.Context, object Object) []ObjectIdentifiers

// StandaloneWatch is a watch that belongs to no single type; see [DynamicController.StartWatch]. Its methods are safe
// for concurrent use. Until one of its functions returns, the watch triggers no reconciles, and can delay the initial
// reconciles of all types by up to ten seconds. This does not apply to the function of an index, for which only readers
// of the index wait.
type StandaloneWatch struct {
	independentWatch

	registry  *registry
	mapFunc   MapAnyFunc
	afterLoss func(context.Context) []ObjectIdentifiers // nil if there is no AfterLoss

	mu sync.Mutex // guards the fields below
	// attached holds the runs to which the watch delivers objects.
	attached map[*run]*attachment
	// replays are the channels of attached and those of runs that have ended. It can contain closed channels.
	replays []<-chan struct{}
	// synced is closed when all later changes are delivered. It is replaced when the event handler is removed.
	synced    chan struct{}
	cancel    context.CancelFunc // ends the context of the event handler; nil while there is no event handler
	detaching <-chan struct{}    // closed when the last event handler has been removed
	detached  chan struct{}      // closed and replaced when a run has been removed from attached
}

// attachment is the delivery of a standalone watch to a run.
type attachment struct {
	replayed <-chan struct{} // closed when the delivery of the existing objects has ended

	// Guarded by the watch's mu.

	began bool // whether the delivery of the existing objects has begun
	// session is the channel that Subscription.Synced returned when the delivery began. It is nil if the channel was not
	// closed, because the objects were then those of a former session.
	session <-chan struct{}
}

// StartWatch watches the objects of a type on behalf of all served types. When an object changes, the objects that
// mapFunc returns are reconciled, even if they are not in the cache. One call to mapFunc replaces the calls to the
// MapFuncs of all types that would otherwise watch the same objects. Use it if many types depend on a few objects each,
// and an index can tell which ones.
//
// When a run begins, mapFunc is called with each existing object, and the initial reconciles of the run wait for it as
// for the watches of [Watches]. If a type is served later, mapFunc is not called again. StartWatch accepts the options
// of [Watches], except for [WithBucketLabel]. In addition, it accepts [AfterLoss]. It sends no requests and does not
// wait for a sync; see [StandaloneWatch.WaitForSync]. The watch runs until [StandaloneWatch.Stop] is called.
//
// Watches with equal keys, and those of types and of [DynamicController.AddEventHandler] with the same requirements,
// share one list-watch loop and one cache, unless they have transforms; see S6. Each has functions of its own. A
// function that hangs does not delay those of the other watches.
func (c *DynamicController) StartWatch(
	gvr schema.GroupVersionResource, mapFunc MapAnyFunc, opts ...WatchesOption,
) (*StandaloneWatch, error) {
	options := independentOptions(gvr)
	options.standalone = true
	if mapFunc == nil {
		options.reject("the MapAnyFunc is nil")
	}
	watch, source, _, err := c.newIndependentWatch("the watch on "+nameOf(gvr), options, opts)
	if err != nil {
		return nil, fmt.Errorf("start a watch on %s: %w", nameOf(gvr), err)
	}
	w := &StandaloneWatch{
		independentWatch: watch, registry: c.registry, mapFunc: mapFunc, afterLoss: options.afterLoss,
		attached: map[*run]*attachment{}, detaching: closedAfter(func() {}),
		synced: make(chan struct{}), detached: make(chan struct{}),
	}
	subscribe := func() { w.sub = feed.Subscribe(c.pool, source, w.observe) }
	for _, r := range c.registry.addStandalone(w, subscribe) {
		w.attach(r, &replay{})
	}
	return w, nil
}

// StandaloneWatches returns the watches of StartWatch that have not been stopped, in the order in which they were
// started. [DynamicController.Status] does not contain them.
func (c *DynamicController) StandaloneWatches() []*StandaloneWatch {
	return slices.Clone(c.registry.standaloneWatches())
}

// Stop ends the watch, and waits for its functions to return, except those of indexes. If ctx is cancelled first, or
// was cancelled before, they end in the background, and the error is the cause. Apart from a call that has begun,
// neither MapAnyFunc nor AfterLoss is called afterwards. Stop can be called more than once. The watch's own functions
// can call it with a context that is cancelled.
func (w *StandaloneWatch) Stop(ctx context.Context) error {
	w.registry.removeStandalone(w)
	w.mu.Lock()
	w.end()
	if w.cancel != nil {
		w.cancel()
	}
	replays := slices.Clone(w.replays)
	w.mu.Unlock()
	return w.close(ctx, "stop", replays...)
}

// WaitForSync waits until the watch has synced during a run, and mapFunc has been called with all existing objects.
// From then on until the run ends, mapFunc is called with each change. A handler that starts the watch can have read an
// object that is deleted before the first list of the watch. Such a deletion is not delivered, so the handler's object
// must be reconciled once more after WaitForSync has returned nil.
//
// Between runs, WaitForSync waits for the next run. If several shards run, mapFunc has been called with all existing
// objects for each of them. WaitForSync does not wait for shards that begin to run later.
//
// WaitForSync must not be called by the watch's own functions, for which it waits. If ctx is cancelled first, the error
// is its cause. If the watch has been stopped, the error is [ErrNotServed].
func (w *StandaloneWatch) WaitForSync(ctx context.Context) error {
	return w.waitUntil(ctx, w.beforeSync)
}

// beforeSync returns a channel that is closed before the condition of WaitForSync can hold. It returns nil if the
// condition holds.
func (w *StandaloneWatch) beforeSync() (done <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !typewatch.IsClosed(w.synced) {
		return w.synced
	}
	done = w.detached
	for r, a := range w.attached {
		switch {
		case r.ending.Load(): // the delivery of the existing objects can have ended early
		case !typewatch.IsClosed(a.replayed):
			return a.replayed
		default:
			done = nil
		}
	}
	return done
}

// replay is the delivery of the existing objects of a standalone watch to a run.
type replay struct {
	mu    sync.Mutex // guards the fields below
	done  bool
	after []func()
}

// then calls f when the existing objects have been delivered.
func (p *replay) then(f func()) {
	p.mu.Lock()
	if !p.done {
		p.after = append(p.after, f)
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	f()
}

// newReplays returns a replay for each watch.
func newReplays(watches []*StandaloneWatch) map[*StandaloneWatch]*replay {
	replays := make(map[*StandaloneWatch]*replay, len(watches))
	for _, w := range watches {
		replays[w] = &replay{}
	}
	return replays
}

func (p *replay) finish() {
	p.mu.Lock()
	after := p.after
	p.done, p.after = true, nil
	p.mu.Unlock()
	for _, f := range after {
		f()
	}
}

// attach begins to deliver changes, unless another run has done so, and delivers the existing objects to the run.
func (w *StandaloneWatch) attach(r *run, p *replay) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hasEnded() || r.ending.Load() {
		go p.finish()
		return
	}
	detaching := w.detaching
	replayed := closedAfter(func() {
		defer p.finish()
		// The former handler is removed before the next one is set.
		if !w.await(r, detaching) || !w.await(r, w.setHandler(r)) {
			return
		}
		w.replay(r)
	})
	w.attached[r] = &attachment{replayed: replayed}
	w.replays = append(slices.DeleteFunc(w.replays, typewatch.IsClosed), replayed)
}

// await waits until done is closed. It returns false if the run ends or the watch is stopped first.
func (w *StandaloneWatch) await(r *run, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-r.base.Done():
	case <-w.ended:
	}
	return false
}

// setHandler sets the event handler, unless there is one. The returned channel is closed when all later changes are
// delivered. It is nil if the run has been detached in the meantime.
func (w *StandaloneWatch) setHandler(r *run) (synced <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.attached[r] == nil {
		return nil
	}
	switch {
	case w.cancel == nil:
		ctx, cancel := context.WithCancel(context.Background())
		w.cancel = cancel
		w.sub.Attach(w.eventHandler(ctx))
	case typewatch.IsClosed(w.synced) && !w.sub.View().HasSynced(): // a new session has begun
		w.synced = make(chan struct{})
	}
	return w.synced
}

// detach ends the delivery to a run. It waits for functions of the watch that were called for the run or, if it was the
// last one, for all functions.
func (w *StandaloneWatch) detach(r *run) {
	w.mu.Lock()
	a := w.attached[r]
	delete(w.attached, r)
	close(w.detached)
	w.detached = make(chan struct{})
	if len(w.attached) == 0 && w.cancel != nil {
		w.cancel()
		w.cancel = nil
		if typewatch.IsClosed(w.synced) {
			w.synced = make(chan struct{})
		}
		w.detaching = closedAfter(w.sub.Detach)
	}
	detaching := w.detaching
	w.mu.Unlock()
	if a != nil {
		<-a.replayed
		<-detaching
	}
}

// replay delivers the existing objects to the types of a run.
func (w *StandaloneWatch) replay(r *run) {
	w.beginReplay(r)
	view := w.sub.View()
	e := feed.NewEnvironment(r.base, w.log, w.sub)
	records := view.Store().All()
	next := func() {
		for len(records) > 0 && r.base.Err() == nil && !w.hasEnded() {
			w.enqueueExisting(r, w.ids(e, typewatch.NewObject(records[0], view)))
			records = records[1:]
		}
		records = nil
	}
	for len(records) > 0 { // the function can call runtime.Goexit; see protect.Guard
		<-closedAfter(next)
	}
}

// beginReplay must be called before replay reads the store.
func (w *StandaloneWatch) beginReplay(r *run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a := w.attached[r]; a != nil {
		a.began = true
		if session := w.sub.Synced(); typewatch.IsClosed(session) {
			a.session = session
		}
	}
}

// runsWithFormerObjects returns the runs to which the objects of a former session have been or are being delivered,
// except those that are ending.
func (w *StandaloneWatch) runsWithFormerObjects() (runs []*run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	session := w.sub.Synced()
	for r, a := range w.attached {
		if a.began && a.session != session && !r.ending.Load() {
			runs = append(runs, r)
		}
	}
	return runs
}

// eventHandler returns an event handler. The context is cancelled, under the lock, when the event handler is removed.
func (w *StandaloneWatch) eventHandler(ctx context.Context) typewatch.EventHandler {
	e := feed.NewEnvironment(ctx, w.log, w.sub)
	return typewatch.EventHandler{
		// Each run has a replay. If it has delivered the objects of a former session, they are delivered again.
		Known: func(batch []*typewatch.Object) {
			runs := w.runsWithFormerObjects()
			if len(runs) == 0 {
				return
			}
			for _, object := range batch {
				ids := w.ids(e, object)
				for _, r := range runs {
					if !r.ending.Load() {
						w.enqueueExisting(r, ids)
					}
				}
			}
		},
		Synced: func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			if ctx.Err() == nil && !typewatch.IsClosed(w.synced) {
				close(w.synced)
			}
		},
		Changed: func(c typewatch.Change) {
			if w.hasEnded() {
				return
			}
			ids := map[ObjectIdentifiers]struct{}{}
			feed.Affected(e, c, func(e feed.Environment, _ *feed.Source, object *typewatch.Object) {
				for _, id := range w.ids(e, object) {
					ids[id] = struct{}{}
				}
			})
			if len(ids) > 0 {
				w.enqueue(fairqueue.Live, becauseOf(w.key.GVR, c.Key), nil, slices.Collect(maps.Keys(ids)))
			}
		},
		Loses: feed.Loses,
		Lost:  func() { w.reconcileAfterLoss(e) },
	}
}

// reconcileAfterLoss adds the objects that the function of AfterLoss returns to the queue. If there is no function, or
// if it panics, it adds all objects.
func (w *StandaloneWatch) reconcileAfterLoss(e feed.Environment) {
	if w.hasEnded() {
		return
	}
	ids, known := w.idsAfterLoss(e)
	if known {
		w.enqueue(fairqueue.Background, because(CauseResync), nil, ids)
		return
	}
	for _, reg := range w.registry.servedByRuns() {
		reg.AddAllAfterLoss()
	}
}

// idsAfterLoss calls the function of AfterLoss. It returns false if no function is set, or if the function panics.
func (w *StandaloneWatch) idsAfterLoss(e feed.Environment) (ids []ObjectIdentifiers, known bool) {
	if w.afterLoss == nil {
		return nil, false
	}
	over := false
	call := func() {
		known = e.Call("AfterLoss", "AfterLoss panicked, reconciling all objects", func() {
			ids = w.afterLoss(e.Context)
		})
		over = true
	}
	for !over { // the function can call runtime.Goexit; see protect.Guard
		<-closedAfter(call)
	}
	return ids, known
}

// ids calls the MapAnyFunc. It returns nil if the function panics, or if the watch has been stopped.
func (w *StandaloneWatch) ids(e feed.Environment, object *typewatch.Object) (ids []ObjectIdentifiers) {
	if w.hasEnded() || !e.Call("MapAnyFunc", "MapAnyFunc panicked, nothing enqueued", func() {
		ids = w.mapFunc(e.Context, newObject(object))
	}) {
		return nil
	}
	return ids
}

// enqueueExisting adds objects to the queue because of an object that has existed before.
func (w *StandaloneWatch) enqueueExisting(r *run, ids []ObjectIdentifiers) {
	w.enqueue(fairqueue.Background, because(CauseInitialList), r, ids)
}

// enqueue adds objects to the queue. If only is not nil, objects of types that another run serves are ignored. If it is
// nil, and the run of a type is ending, objects that are not in the cache are kept for the next run.
func (w *StandaloneWatch) enqueue(lane fairqueue.Lane, cause queueCause, only *run, ids []ObjectIdentifiers) {
	for _, id := range ids {
		reg, err := w.registry.registrationOf(id.GVR)
		if err != nil || only != nil && !reg.isIn(only.scope) {
			continue
		}
		key, err := normalizeKey(id.NamespacedKey)
		if err != nil {
			reg.ignoreMalformedKey("function of the watch on "+nameOf(w.key.GVR), id.NamespacedKey, err)
			continue
		}
		if !reg.group.Because(cause).Add(lane, key) && only == nil && w.registry.isServedByRun(reg) {
			reg.keepAbsent(key)
		}
	}
}

// observe passes the state of the watch to the initial syncs that wait for it.
func (w *StandaloneWatch) observe(state typewatch.State) {
	for _, reg := range w.registry.servedByRuns() {
		reg.feed.Observe(w.sub, state)
	}
}
