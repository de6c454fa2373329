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

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/resync"
	"github.com/dynamic-controller/engine/internal/protect"
)

// run represents one call to Run: its workers, the context of their handlers, and the registrations that it serves.
type run struct {
	controller *DynamicController
	// base is the parent of the contexts of all handlers. It is cancelled with ErrRunEnded.
	base   context.Context
	cancel context.CancelCauseFunc
	// isOver reports whether the context of Run has been cancelled. It must check that context itself. A context that
	// expires by a clock, such as that of package replica, can have expired before its child contexts are cancelled.
	isOver func() bool
	// ending is set before the registrations are detached. After it has been set, no registration is attached.
	ending  atomic.Bool
	workers sync.WaitGroup

	registrations map[*registration]struct{} // guarded by the controller's lock
}

// Run reconciles objects until ctx is cancelled. It runs the workers. It also runs the watches of all served types,
// unless RunWatches is already running them. At first, every object in the cache is reconciled once. After that,
// objects are reconciled when they change.
//
// When ctx is cancelled, no more handlers start, and the contexts of running handlers are cancelled with [ErrRunEnded],
// which wraps the cause of ctx. Run waits for the handlers for at most Config.ShutdownTimeout. If some handlers have
// not returned by then, the error lists them. Run can be called again afterwards, even while such a handler is still
// running. The object of that handler is not reconciled again before the handler has returned. The error also lists
// predicates, MapFuncs and transforms that are still running. As long as one of them is running, another call to Run
// returns an error.
//
// Run returns an error immediately if it is already running.
func (c *DynamicController) Run(ctx context.Context) error {
	if err := c.run(ctx); err != nil {
		return fmt.Errorf("run the dynamic controller: %w", err)
	}
	return nil
}

func (c *DynamicController) run(ctx context.Context) error {
	if c.configErr != nil {
		return c.configErr
	}
	runCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &run{controller: c, isOver: func() bool { return ctx.Err() != nil || runCtx.Err() != nil }}
	// Handlers can continue for up to ShutdownTimeout after ctx has been cancelled.
	r.base, r.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	attached, err := c.beginRun(r)
	if err != nil {
		return err
	}
	c.log.Info("Starting workers", keyWorkers, c.config.Workers)
	for range c.config.Workers {
		r.startWorker()
	}
	r.workers.Go(func() { r.resync(runCtx) })
	// Registrations must be attached before the watches start, because the first list finds the deletions since the
	// last run. If RunWatches has already started the watches, there are no such deletions. acquireWatches then does
	// not wait for the registrations to be attached, which could take until running event handlers return.
	releaseWatches := c.acquireWatches(ctx, attached)

	<-ctx.Done()
	cancel()
	r.cancel(fmt.Errorf("%w: %w", ErrRunEnded, context.Cause(ctx)))
	if left := r.end(releaseWatches); len(left) > 0 {
		return fmt.Errorf("still running %s after the context was cancelled: %s", c.config.ShutdownTimeout, enumerate(left))
	}
	return nil
}

// beginRun makes r the current run and opens the queue. The returned channels are closed when the registrations are
// attached. Registrations that are created later are attached by StartServingGVK.
func (c *DynamicController) beginRun(r *run) (attached []<-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil {
		return nil, errRunning
	}
	c.current = r
	r.registrations = make(map[*registration]struct{}, len(c.registrations))
	for _, reg := range c.registrations {
		reg.group.Pause() // until its initial sync is done
		r.registrations[reg] = struct{}{}
	}
	c.queue.Restart()
	for _, reg := range c.registrations {
		attached = append(attached, reg.subscriptions.change(false, func() { reg.subscriptions.attach(r) }))
	}
	return attached, nil
}

// end stops the run: first the workers, whose handlers can still read the caches, then the watches, and then the event
// handlers. It waits for at most ShutdownTimeout. If the workers use up that time, it waits for the rest for up to
// endGrace longer. It returns descriptions of everything that is still running. The watches and event handlers among
// these keep r the current run until they have ended.
func (r *run) end(releaseWatches func()) (left []string) {
	c := r.controller
	r.ending.Store(true)
	r.markPending(c.queue.Cancel())
	timeout, stopTimer := context.WithTimeout(context.Background(), c.config.ShutdownTimeout)
	defer stopTimer()
	if !await(timeout, closedAfter(r.workers.Wait)) {
		left = c.runningHandlers()
		var stopGrace context.CancelFunc
		timeout, stopGrace = context.WithTimeout(context.Background(), min(c.config.ShutdownTimeout, endGrace))
		defer stopGrace()
	}
	released, ended := make(chan struct{}), make(chan struct{})
	detached := map[*registration]<-chan struct{}{} // set before released is closed
	go func() {
		releaseWatches()
		for _, reg := range r.served() {
			detached[reg] = reg.subscriptions.change(false, reg.subscriptions.detach)
		}
		close(released)
		for _, done := range detached {
			<-done
		}
		c.mu.Lock()
		c.current = nil
		c.mu.Unlock()
		close(ended)
	}()
	if await(timeout, ended) {
		return left
	}
	if !isClosed(released) {
		for _, gvr := range c.pool.Running() {
			left = append(left, "the watch of "+nameOf(gvr))
		}
		return left
	}
	for reg, done := range detached {
		if !isClosed(done) {
			left = append(left, "a predicate or MapFunc of "+nameOf(reg.gvr)+", or of a subscriber that shares a watch with it")
		}
	}
	return left
}

// endGrace is the maximum time to wait for watches and event handlers after handlers have used up ShutdownTimeout.
const endGrace = time.Second

// closedAfter calls f in a goroutine. The returned channel is closed when f has returned.
func closedAfter(f func()) (done <-chan struct{}) {
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		f()
	}()
	return returned
}

// served returns the registrations that the run serves.
func (r *run) served() []*registration {
	r.controller.mu.RLock()
	defer r.controller.mu.RUnlock()
	return slices.Collect(maps.Keys(r.registrations))
}

// markPending makes the next run reconcile the keys that the queue has dropped and that the cache does not hold. The
// next run reconciles all other objects anyway.
func (r *run) markPending(dropped []ObjectIdentifiers) {
	for _, id := range dropped {
		reg, err := r.controller.registrationOf(id.GVR)
		if err == nil && !reg.subscriptions.primary.View().Has(id.NamespacedKey) {
			reg.markPending(id.NamespacedKey)
		}
	}
}

// startWorker starts a worker. A worker whose handler has called runtime.Goexit is replaced.
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
	// A worker whose handler has outlived its run must not take an item of the next run.
	for !r.isOver() {
		id, reg, shutdown := queue.Next()
		if shutdown {
			return
		}
		if r.isOver() {
			reg.addOrMarkPending(id.NamespacedKey) // for the next run, which may already have begun
			queue.Done(id)
			return
		}
		r.controller.reconcile(reg, id)
	}
}

// resync adds every object of every type to the queue about once per period, until ctx is cancelled. It sends no
// requests.
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
				due := reg.resyncs.Due(now, period, func() []string {
					// The cache might no longer hold parked objects.
					return append(reg.subscriptions.primary.View().Keys(), reg.recordedKeys()...)
				})
				reg.add(fairqueue.Background, due)
			}
		}
	}
}

// RunWatches keeps the caches of all served types up to date until ctx is cancelled. It does not reconcile. Run it on
// every replica; Run can start and stop any number of times while it is running. A standby replica queues nothing.
//
// The watches run as long as RunWatches or Run is running, no matter which of them is called first. RunWatches returns
// an error immediately if it is already running.
func (c *DynamicController) RunWatches(ctx context.Context) error {
	if err := c.runWatches(ctx); err != nil {
		return fmt.Errorf("run the watches: %w", err)
	}
	return nil
}

func (c *DynamicController) runWatches(ctx context.Context) error {
	if c.configErr != nil {
		return c.configErr
	}
	if !c.watching.CompareAndSwap(false, true) {
		return errWatching
	}
	defer c.watching.Store(false)
	release := c.acquireWatches(ctx, nil)
	<-ctx.Done()
	release()
	return nil
}

var (
	errRunning  = errors.New("the controller is already running")
	errWatching = errors.New("the watches are already running")
)

// watchTerm is a period during which the watches are running. Its users are Run and RunWatches. It begins when the
// first of them starts and ends when the last one has ended.
type watchTerm struct {
	users int           // guarded by the controller's lock
	ready chan struct{} // closed when stop is set
	stop  func()
}

// acquireWatches starts the watches, unless they are already running. Before it starts them, it waits until all
// channels in before are closed or ctx is cancelled. The caller must call release once. When the last user calls it,
// release returns only after the watches have ended.
func (c *DynamicController) acquireWatches(ctx context.Context, before []<-chan struct{}) (release func()) {
	c.mu.Lock()
	term := c.watches
	if term == nil {
		term = &watchTerm{ready: make(chan struct{})}
		c.watches = term
		defer func() {
			for _, done := range before {
				await(ctx, done)
			}
			stop := c.pool.Start()
			cancel := c.subscribeTypeEvents()
			term.stop = func() {
				cancel()
				stop()
			}
			close(term.ready)
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
			<-term.ready
			term.stop()
		}
	}
}

// subscribeTypeEvents passes type events on to the watches until the returned function is called. If TypeEvents panics,
// the watches run without type events.
func (c *DynamicController) subscribeTypeEvents() (cancel func()) {
	if c.typeEvents == nil {
		return func() {}
	}
	var cancelEvents func()
	c.callTypeEvents(func() {
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
			c.callTypeEvents(cancelEvents)
		}
	}
}

func (c *DynamicController) callTypeEvents(call func()) {
	if panicked := protect.Call(call); panicked != nil {
		c.log.Error(panicked, "TypeEvents panicked", keyStack, string(panicked.Stack))
	}
}
