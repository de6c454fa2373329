package typewatch

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/internal/listwatch"
	"github.com/dynamic-controller/engine/internal/protect"
)

// watch holds the objects that its reflectors store and delivers changes to its listeners. It runs when and for as long
// as its owner wants, and is not aware of subscriptions.
type watch struct {
	*contents
	env        *environment
	owner      owner
	transform  cache.TransformFunc // nil if objects are stored as they are received
	guard      protect.Guard       // calls the transforms
	state      *watchState
	selector   objectSelector
	reflectors []*reflector // one for each namespace of the key, or a single one for all namespaces

	// delivery guards attached, pass, passes, the reflectors' fields, and all writes to the store. It is held while
	// changes are delivered, so that they are delivered in order and the store reflects them. It is never held while user
	// code is called, apart from functions that assign objects to flows.
	delivery sync.Mutex
	attached []*listener // those that have an event handler
	pass     *pass       // nil if no pass is in progress
	passes   int         // number of passes so far

	unusableLogged bool // whether an unusable object has been logged; guarded by delivery

	carriedOver atomic.Int64             // number of objects added to the store by carryOver; written under delivery
	progress    atomic.Uint64            // see changed
	waiters     atomic.Pointer[[]waiter] // never nil; set by the owner
}

// environment is what all watches of a pool have in common.
type environment struct {
	config    Config
	relists   *rate.Limiter // limits relists, across all types, after watches were closed early
	gate      *listwatch.Gate
	histories histories
	holds     atomic.Int64 // passes do not begin while it is above zero; see Pool.Hold
}

// owner has the functions with which a watch notifies its owner. They must not block, apart from taking locks that come
// after the ones that are held; see the package comment.
type owner struct {
	// listed is called after a list has been stored, and when a session has ended. The delivery lock is held.
	listed func()
	// observe is called when the phase has changed. The lock of the watch's state is held.
	observe func(State)
	// wentBack is called if a reflector's list is older than its objects, whose history is given. No lock is held.
	wentBack func(r *reflector, history int64)
	// connectionLost is called when a watch was closed early, or when the server cannot be reached. No lock is held.
	connectionLost func()
}

// waiter waits until it can use a watch instead of another one.
type waiter interface {
	// current returns the watch in use until then. The new one must not be older.
	current() *watch
	// check is called after the new watch has received something. It does not block.
	check()
}

// newIdleWatch returns a watch without reflectors, which is never synced. It needs no owner.
func newIdleWatch(env *environment, key Key) *watch {
	w := &watch{
		contents: &contents{key: key, store: objects.NewStore(key.Projection), kindOf: env.config.KindOf},
		env:      env, selector: newObjectSelector(key), state: newWatchState(func(State) {}),
	}
	w.waiters.Store(&[]waiter{})
	w.unusable.Store(&Unusable{})
	return w
}

// newWatch returns a watch with reflectors. It is not running.
func newWatch(env *environment, key Key, transform cache.TransformFunc, owner owner) *watch {
	w, config := newIdleWatch(env, key), env.config
	w.owner, w.state = owner, newWatchState(owner.observe)
	w.shared, w.log = transform == nil, config.Log(key.GVR)
	if key.Projection != objects.Keys {
		w.transform = protect.Transform(config.Transform, transform)
	}
	for _, namespace := range strings.Split(key.Namespaces, ",") {
		requests := config.Source.Requests(key.GVR, namespace, key.Projection)
		r := &reflector{watch: w, namespace: namespace, requests: requests}
		r.history.Store(env.histories.of(key.GVR.Group))
		r.loop = listwatch.NewLoop(requests, r, listwatch.Options{
			Log: w.log, GVR: key.GVR, LabelSelector: key.labelSelector(), FieldSelector: key.FieldSelector,
			Observe: w.state.update, Relists: env.relists, Gate: env.gate, ConnectionLost: owner.connectionLost,
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

// notify delivers a change to all listeners. The caller must hold w.delivery.
func (w *watch) notify(c objects.Change) {
	w.changes.Add(1)
	if len(w.attached) == 0 {
		return
	}
	change := newStoreChange(c)
	if w.pass != nil {
		w.pass.changes = append(w.pass.changes, change)
	}
	for _, l := range w.attached {
		l.handle(change)
	}
}

// detach removes a listener, if it is attached. The caller must hold w.delivery.
func (w *watch) detach(l *listener) {
	w.attached = slices.DeleteFunc(w.attached, func(other *listener) bool { return other == l })
}

// progressed is called after each event.
func (w *watch) progressed() {
	w.wakeWaiters()
	w.changed()
}

// changed is called when the watch has received something, or its phase has changed.
func (w *watch) changed() {
	w.progress.Add(1)
	w.env.config.Progress()
}

// wakeWaiters makes each waiter check whether it can use this watch.
func (w *watch) wakeWaiters() {
	for _, waiter := range *w.waiters.Load() {
		waiter.check()
	}
}

// history returns the number of the current history of the watch's group.
func (w *watch) history() int64 { return w.env.histories.of(w.key.GVR.Group) }

// isBehind reports whether the watch may lack changes that the older watch has delivered. Versions of different
// histories cannot be compared. The caller must hold the delivery locks of both watches.
func (w *watch) isBehind(older *watch) bool {
	return slices.ContainsFunc(w.reflectors, func(r *reflector) bool {
		return slices.ContainsFunc(older.reflectors, r.isBehind)
	})
}

// isEmptied reports whether a type event has removed objects since the last list. The caller must hold w.delivery.
func (w *watch) isEmptied() bool {
	return slices.ContainsFunc(w.reflectors, func(r *reflector) bool { return r.emptied })
}
