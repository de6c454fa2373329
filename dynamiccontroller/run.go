package dynamiccontroller

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/resync"
)

// run represents one call to Run: its workers, its handlers' context, and its registrations.
type run struct {
	controller *DynamicController
	// lifetime is the context that RunContext returns. It is cancelled when all handlers have returned.
	lifetime context.Context
	finish   context.CancelFunc
	// base is the parent of all handler contexts. It is cancelled with ErrRunEnded.
	base   context.Context
	cancel context.CancelCauseFunc
	// isOver reports whether Run's context has been cancelled. It checks that context directly, because a context with its
	// own deadline check, such as one from package replica, can expire before its children are cancelled.
	isOver  func() bool
	ending  atomic.Bool // set before the registrations are detached, so that no others are attached afterwards
	workers sync.WaitGroup

	registrations map[*registration]struct{} // guarded by the controller's lock
}

// runKey is the context key for the run that calls a handler.
type runKey struct{}

// RunContext takes a handler's context and returns the context of the run that called the handler. All handler calls of
// a run share this context, and each run has its own. It is cancelled after the run has ended and all of the run's
// handlers have returned. RunContext also accepts the context of a run, and any context derived from it. For all other
// contexts, it returns [context.Background].
//
// State that must not outlive a run, such as data that is valid only for one leadership term, can be kept in a map
// whose key is the context of the run. [context.AfterFunc] can then remove it.
func RunContext(ctx context.Context) context.Context {
	if r, ok := ctx.Value(runKey{}).(*run); ok {
		return r.lifetime
	}
	return context.Background()
}

// HistoryOf takes a handler's context and returns the number of the history to which resourceVersions belong. The
// number is zero until the engine notices that the versions of a type went back, which means that etcd was restored
// from a backup. It grows with each restore. Versions from different histories cannot be compared. State that compares
// them, such as a cache of written objects, must be dropped when the number grows. The engine lists the types again. If
// the server of a group does not store its versions, the number grows whenever that server restarts.
//
// For contexts that are not derived from a handler's context, HistoryOf returns zero.
func HistoryOf(ctx context.Context) int64 {
	if r, ok := ctx.Value(runKey{}).(*run); ok {
		return r.controller.pool.History()
	}
	return 0
}

// Run reconciles objects until ctx is cancelled. It starts the workers and, unless RunWatches is already running, the
// watches of all served types. Each run reconciles every object in the cache once, even if the object has not changed.
//
// When ctx is cancelled, no more handlers start, and the contexts of running handlers are cancelled with a cause that
// wraps both [ErrRunEnded] and the cause of ctx. Run waits for handlers and other user code to return, for at most
// Config.ShutdownTimeout. Its error lists any that are still running after that. Run can be called again while a
// handler is still running. That handler's object is not reconciled again until the handler returns.
//
// Run returns an error immediately if it is already running, or if user code of the previous run, other than handlers,
// is still running.
func (c *DynamicController) Run(ctx context.Context) error {
	if c.configErr != nil {
		return fmt.Errorf("run the dynamic controller: %w", c.configErr)
	}
	runCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &run{controller: c, isOver: func() bool { return ctx.Err() != nil || runCtx.Err() != nil }}
	// Handlers can continue for up to ShutdownTimeout after ctx has been cancelled.
	lifetime, finish := context.WithCancel(context.WithoutCancel(ctx))
	r.lifetime, r.finish = context.WithValue(lifetime, runKey{}, r), finish
	r.base, r.cancel = context.WithCancelCause(r.lifetime)
	attached, err := c.beginRun(r)
	if err != nil {
		return fmt.Errorf("run the dynamic controller: %w", err)
	}
	c.log.Info("Starting workers", keyWorkers, c.config.Workers)
	r.workers.Go(func() { r.resync(runCtx) })
	// Attach registrations before the watches start, because the first list detects deletions since the last run.
	releaseWatches := c.acquireWatches(ctx, attached)

	<-ctx.Done()
	cancel()
	r.cancel(fmt.Errorf("%w: %w", ErrRunEnded, context.Cause(ctx)))
	if left := r.end(releaseWatches); len(left) > 0 {
		return fmt.Errorf("run the dynamic controller: still running %s after the context was cancelled: %s",
			c.config.ShutdownTimeout, enumerate(left))
	}
	return nil
}

// beginRun makes r the current run and starts its workers. The returned channels are closed once the existing
// registrations have been attached. StartServingGVK attaches later ones.
func (c *DynamicController) beginRun(r *run) (attached []<-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil {
		return nil, errors.New("already running")
	}
	c.current = r
	r.registrations = make(map[*registration]struct{}, len(c.registrations))
	for _, reg := range c.registrations {
		reg.group.Pause() // until its initial sync is done
		r.registrations[reg] = struct{}{}
	}
	c.queue.Restart()
	for range c.config.Workers { // before attaching, which would otherwise delay the first reconcile
		r.startWorker()
	}
	for _, reg := range c.registrations {
		attached = append(attached, reg.subscriptions.apply(change{f: func() { reg.subscriptions.attach(r) }}))
	}
	return attached, nil
}

// end stops the workers, the watches and the event handlers, in that order, so that running handlers can still read the
// caches. It waits for at most ShutdownTimeout. If the workers use up that time, it waits up to one second longer for
// the watches and the event handlers. It returns descriptions of everything that is still running. The run remains
// current until the watches and the event handlers have ended.
func (r *run) end(releaseWatches func()) (left []string) {
	c := r.controller
	r.ending.Store(true)
	for _, id := range c.queue.Cancel() {
		if reg, err := c.registrationOf(id.GVR); err == nil {
			reg.addAfter(id.NamespacedKey, 0) // for the next run
		}
	}
	timeout, stopTimer := context.WithTimeout(context.Background(), c.config.ShutdownTimeout)
	defer stopTimer()
	returned := closedAfter(func() {
		r.workers.Wait()
		r.finish()
	})
	if !await(timeout, returned) {
		for _, reg := range r.served() {
			left = append(left, reg.runningHandlers()...)
		}
		var stopGrace context.CancelFunc
		timeout, stopGrace = context.WithTimeout(context.Background(), min(c.config.ShutdownTimeout, time.Second))
		defer stopGrace()
	}
	released := make(chan struct{})
	detached := map[*registration]<-chan struct{}{} // set before released is closed
	ended := closedAfter(func() {
		releaseWatches()
		for _, reg := range r.served() {
			detached[reg] = reg.subscriptions.apply(change{f: reg.subscriptions.detach})
		}
		close(released)
		for _, done := range detached {
			<-done
		}
		c.mu.Lock()
		c.current = nil
		c.mu.Unlock()
	})
	switch {
	case await(timeout, ended):
	case !await(timeout, released):
		watches := c.pool.Running()
		for _, gvr := range watches {
			left = append(left, "the watch of "+nameOf(gvr))
		}
		if len(watches) == 0 {
			left = append(left, "TypeEvents or an unused watch")
		}
	default:
		for reg, done := range detached {
			if !await(timeout, done) {
				left = append(left, "a predicate or MapFunc of "+nameOf(reg.gvr)+" or of a type that shares its watches")
			}
		}
	}
	return left
}

// closedAfter calls f in a goroutine. The returned channel is closed when f returns.
func closedAfter(f func()) (done <-chan struct{}) {
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		f()
	}()
	return returned
}

// served returns the registrations of the run, including closed ones that have not ended.
func (r *run) served() []*registration {
	r.controller.mu.RLock()
	defer r.controller.mu.RUnlock()
	return slices.Collect(maps.Keys(r.registrations))
}

// startWorker starts a worker. It replaces the worker if a handler calls runtime.Goexit.
func (r *run) startWorker() {
	r.workers.Go(func() {
		returned := false
		defer func() {
			if !returned {
				r.startWorker()
			}
		}()
		r.work()
		returned = true
	})
}

// work reconciles objects until the run is over.
func (r *run) work() {
	queue := r.controller.queue
	for !r.isOver() { // once this run is over, the queue may already serve the next one
		id, reg, waited, shutdown := queue.Next()
		if shutdown {
			return
		}
		if r.isOver() {
			reg.addAfter(id.NamespacedKey, 0) // for the next run
			queue.Done(id)
			return
		}
		reg.reconcile(id, waited)
	}
}

// resync adds every object to the queue about once per resync period, until ctx is cancelled. It sends no requests.
func (r *run) resync(ctx context.Context) {
	period := r.controller.config.ResyncPeriod
	if period < 0 {
		return
	}
	ticker := time.NewTicker(resync.Tick(period))
	defer ticker.Stop()
	seed := maphash.MakeSeed()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			for _, reg := range r.served() {
				reg.resyncs.Start(seed, now)
				reg.addBackground(reg.resyncs.Due(now, period, reg.allKeys))
			}
		}
	}
}

// RunWatches keeps the caches of all served types up to date until ctx is cancelled. It does not reconcile. Call
// RunWatches on every replica. While it is running, Run can start and stop any number of times. A standby replica
// queues nothing.
//
// The watches run while RunWatches or Run is running. RunWatches returns an error if it is already running.
func (c *DynamicController) RunWatches(ctx context.Context) error {
	if c.configErr != nil {
		return fmt.Errorf("run the watches: %w", c.configErr)
	}
	if !c.watching.CompareAndSwap(false, true) {
		return errors.New("run the watches: already running")
	}
	defer c.watching.Store(false)
	release := c.acquireWatches(ctx, nil)
	<-ctx.Done()
	release()
	return nil
}

// watchTerm is a period during which Run, RunWatches or both keep the watches running.
type watchTerm struct {
	users int         // guarded by the controller's lock
	stop  chan func() // once the watches have started, receives a function that stops them
}

// acquireWatches starts the watches, unless they are already running. Before starting them, it waits until the given
// channels are closed or ctx is cancelled. The caller must call release once. When the last user releases the watches,
// release stops them and waits for them to end.
func (c *DynamicController) acquireWatches(ctx context.Context, ready []<-chan struct{}) (release func()) {
	c.mu.Lock()
	term := c.watches
	if term == nil {
		term = &watchTerm{stop: make(chan func(), 1)}
		c.watches = term
		defer func() {
			for _, done := range ready {
				await(ctx, done)
			}
			stop, cancel := c.pool.Start(), func() {}
			subscribed := closedAfter(func() { cancel = c.subscribeTypeEvents() })
			term.stop <- func() {
				stop() // first, because the functions of TypeEvents can hang
				<-subscribed
				cancel()
			}
		}()
	}
	term.users++
	c.mu.Unlock()
	return func() {
		c.mu.Lock()
		term.users--
		last := term.users == 0
		if last {
			c.watches = nil
		}
		c.mu.Unlock()
		if last {
			stop := <-term.stop
			stop()
		}
	}
}

// subscribeTypeEvents passes type events to the watches until cancel is called. A panic in TypeEvents is logged.
func (c *DynamicController) subscribeTypeEvents() (cancel func()) {
	if c.typeEvents == nil {
		return func() {}
	}
	var cancelEvents func()
	callUserCode(c.log, "TypeEvents panicked", func() {
		cancelEvents = c.typeEvents(func(gvr schema.GroupVersionResource, served bool) {
			if served {
				c.pool.Appeared(gvr)
			} else if c.pool.Vanished(gvr) {
				c.log.Info("Type is no longer served by the API server", keyGVR, nameOf(gvr))
			}
		})
	})
	return func() {
		if cancelEvents != nil {
			callUserCode(c.log, "TypeEvents panicked", cancelEvents)
		}
	}
}
