package references

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/internal/runcontext"
)

// run holds the references of the objects of one run of the controller, and watches the types that they refer to. The
// zero value must be started.
type run struct {
	once   sync.Once // guards start
	config Config
	hooks  hooks

	// mu guards the fields below. It is not held while user code is called.
	mu       sync.Mutex
	ended    bool
	attempts uint64 // number of the newest attempt
	index    index
}

// kindWatch is the watch of a type.
type kindWatch struct {
	// started is closed when the start has ended. It has then set either standalone or err.
	started    chan struct{}
	standalone *dynamiccontroller.StandaloneWatch
	err        error

	// Guarded by the lock of the run.

	synced bool
	last   *evaluation // the last one; nil before the first one
}

// start initializes the run of the handler that was called with ctx. The references end together with the run, even if
// a handler hangs.
func (r *run) start(ctx context.Context, config Config, counts *counts) {
	r.once.Do(func() {
		ending := runcontext.Ending(ctx)
		r.mu.Lock() // Forget can be called before the run has started
		r.config, r.index, r.ended = config, newIndex(), ending.Err() != nil
		r.hooks = hooks{functions: config.Hooks, counts: counts, log: logr.FromContextOrDiscard(ctx)}
		r.mu.Unlock()
		context.AfterFunc(ending, r.end)
	})
}

// end drops all references.
func (r *run) end() {
	r.mu.Lock()
	var kinds []*kind
	for _, k := range r.index.kinds {
		kinds = append(kinds, k)
	}
	r.ended, r.index = true, newIndex()
	r.mu.Unlock()
	r.stopWatches(kinds)
}

// nextAttempt returns a number that is greater than that of all earlier attempts.
func (r *run) nextAttempt() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attempts++
	return r.attempts
}

// add adds a reference. If the type is not watched yet, add starts its watch.
func (r *run) add(
	id dynamiccontroller.ObjectIdentifiers, attempt uint64,
	gvr schema.GroupVersionResource, s selection, q *query,
) error {
	for {
		k, isNew, err := r.kindOf(gvr)
		if err != nil {
			return err
		}
		if isNew {
			r.startWatch(k)
		}
		<-k.watch.started
		if k.watch.err != nil {
			return k.watch.err
		}
		r.mu.Lock()
		current := r.index.kinds[gvr] == k
		if current {
			r.index.add(id, attempt, k, s, q)
		}
		r.mu.Unlock()
		if current {
			return nil
		}
		// The last other reference to the type was removed in the meantime, or the run has ended.
	}
}

// kindOf returns the kind for a type. If it is new, the caller must start its watch.
func (r *run) kindOf(gvr schema.GroupVersionResource) (k *kind, isNew bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return nil, false, dynamiccontroller.ErrRunEnded
	}
	if k := r.index.kinds[gvr]; k != nil {
		return k, false, nil
	}
	k = newKind(gvr)
	r.index.kinds[gvr] = k
	return k, true, nil
}

// startWatch starts the watch of a kind. If it fails, it removes the kind, so that the next reference tries again.
func (r *run) startWatch(k *kind) {
	k.watch.err = fmt.Errorf("references: Config.WatchOptions panicked or called runtime.Goexit for %s", k.gvr)
	defer func() {
		if k.watch.err != nil {
			r.mu.Lock()
			r.index.removeKind(k)
			r.mu.Unlock()
		}
		close(k.watch.started)
	}()
	mapFunc := func(_ context.Context, object dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
		ids := r.affected(k, object)
		if r.hasSynced(k) {
			r.hooks.routed(k.gvr, len(ids))
		}
		return ids
	}
	opts := slices.Clone(r.config.WatchOptions(k.gvr))
	deliversAll := len(opts) == 0 // an option can exclude changes
	opts = append(opts, dynamiccontroller.AfterLoss(func(context.Context) []dynamiccontroller.ObjectIdentifiers {
		<-k.watch.started
		return r.afterLoss(k, deliversAll)
	}))
	k.watch.standalone, k.watch.err = r.config.Controller.StartWatch(k.gvr, mapFunc, opts...)
	if k.watch.err == nil {
		go r.awaitSync(k, k.watch.standalone)
		r.hooks.started(k.gvr)
	}
}

// awaitSync reconciles the objects that refer to a kind once its watch has synced. It returns when the watch has synced
// or has been stopped.
func (r *run) awaitSync(k *kind, watch *dynamiccontroller.StandaloneWatch) {
	if watch.WaitForSync(context.Background()) != nil {
		return
	}
	r.mu.Lock()
	k.watch.synced = true
	ids := idsOf(k.targets())
	r.mu.Unlock()
	r.config.Controller.Enqueue(ids...)
}

func (r *run) hasSynced(k *kind) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return k.watch.synced
}

// evaluation holds the targets that refer to an object. For an update whose labels are unchanged, those of the new
// state are those of the old one.
type evaluation struct {
	added           int // of the kind
	namespace, name string
	labels          labels.Set
	matching        []*target
}

// isOf reports whether the evaluation is that of an object, and still complete.
func (e *evaluation) isOf(object dynamiccontroller.Object, set labels.Set, k *kind) bool {
	return e.added == k.added && e.name == object.GetName() && e.namespace == object.GetNamespace() &&
		maps.Equal(e.labels, set)
}

// affected returns the objects to reconcile after a change to an object. Before the watch has synced, it returns none,
// because all referrers are then reconciled once after the sync.
func (r *run) affected(k *kind, object dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
	set := labels.Set(object.GetLabels())
	r.mu.Lock()
	if !k.watch.synced {
		r.mu.Unlock()
		return nil
	}
	e := k.watch.last
	known := e != nil && e.isOf(object, set, k)
	if !known {
		e = &evaluation{added: k.added, namespace: object.GetNamespace(), name: object.GetName(), labels: set}
		e.matching = k.candidates(e.namespace, e.name, set)
	}
	r.mu.Unlock()
	// A reference that is declared from here on needs no reconcile: its object has not been read yet.
	if !known {
		e.matching = slices.DeleteFunc(e.matching, func(to *target) bool { return !to.matches(set) })
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k.watch.last = e
	return idsOf(slices.Values(e.matching))
}

// afterLoss returns the objects to reconcile after states of objects of a kind were lost. These are the objects that
// refer to the kind. If deliversAll is true, each change to an object that exists is delivered at least once, because
// no option excludes changes. Objects that refer by name to an existing object are then not among them.
func (r *run) afterLoss(k *kind, deliversAll bool) []dynamiccontroller.ObjectIdentifiers {
	r.mu.Lock()
	if !k.watch.synced { // all referrers are reconciled once after the sync
		r.mu.Unlock()
		return nil
	}
	targets := slices.Collect(k.targets())
	r.mu.Unlock()
	if deliversAll {
		objects := k.watch.standalone.Lister()
		targets = slices.DeleteFunc(targets, func(to *target) bool { return to.exists(objects) })
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return idsOf(slices.Values(targets))
}

// lister returns a lister for the cache of a type's watch.
func (r *run) lister(gvr schema.GroupVersionResource) (dynamiccontroller.SecondaryLister, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return nil, dynamiccontroller.ErrRunEnded
	}
	if k := r.index.kinds[gvr]; k != nil && k.isReferredTo() {
		return k.watch.standalone.Lister(), nil
	}
	return nil, dynamiccontroller.ErrNotServed
}

// removeBefore removes the references of an object that no attempt since the given one has declared.
func (r *run) removeBefore(id dynamiccontroller.ObjectIdentifiers, attempt uint64) {
	r.mu.Lock()
	unused := r.index.removeBefore(id, attempt)
	r.mu.Unlock()
	r.stopWatches(unused)
}

func (r *run) forget(id dynamiccontroller.ObjectIdentifiers) {
	r.mu.Lock()
	unused := r.index.removeBefore(id, r.attempts+1)
	r.mu.Unlock()
	r.stopWatches(unused)
}

func (r *run) forgetType(gvr schema.GroupVersionResource) {
	r.mu.Lock()
	var unused []*kind
	for id := range r.index.referrers {
		if id.GVR == gvr {
			unused = append(unused, r.index.removeBefore(id, r.attempts+1)...)
		}
	}
	r.mu.Unlock()
	r.stopWatches(unused)
}

// stopWatches ends the watches of kinds that have been removed from the index. It does not wait for them. A watch that
// is being started ends once it has been started. Each watch is stopped once. The hooks are called when all watches
// have been stopped, because they can hang.
func (r *run) stopWatches(kinds []*kind) {
	var stopped []*kind
	for _, k := range kinds {
		select {
		case <-k.watch.started:
			if k.stopWatch() {
				stopped = append(stopped, k)
			}
		default:
			go func() {
				<-k.watch.started
				if k.stopWatch() {
					r.hooks.stopped(k.gvr)
				}
			}()
		}
	}
	for _, k := range stopped {
		r.hooks.stopped(k.gvr)
	}
}

// stopWatch stops the watch of a kind. It returns false if the start of the watch failed.
func (k *kind) stopWatch() bool {
	if k.watch.standalone == nil {
		return false
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = k.watch.standalone.Stop(ctx) // the watch ends in the background
	return true
}
