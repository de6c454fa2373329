package dynamiccontroller

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/runcontext"
	"github.com/dynamic-controller/engine/internal/shards"
	"github.com/dynamic-controller/engine/internal/writes"
)

// Run reconciles objects until ctx is cancelled. It starts the workers and, unless RunWatches is already running, the
// watches of the served types. Each run reconciles every object in the cache once, even if the object has not changed.
//
// When ctx is cancelled, no more handlers start, and the contexts of running handlers are cancelled with a cause that
// wraps both [ErrRunEnded] and the cause of ctx. Run waits for handlers and other user code to return, for at most
// Config.ShutdownTimeout. Its error lists any that are still running after that. The error wraps one with the method
// Returned() <-chan struct{}, whose channel is closed when nothing of the run is running any more. Run can be called
// again while a handler is still running. That handler's object is not reconciled again until the handler returns.
//
// If ctx carries a shard, Run serves the types of that shard; see [WithShard]. Several shards can run at the same time.
// Each run has its own [RunContext]. All runs share the workers, and promises F1 to F3 hold across all of them. The end
// of a run does not affect the others. When a shard's run has ended and RunWatches does not keep its caches up to date,
// they are dropped, together with failures, delays and parked objects. The next run lists the objects again.
//
// Run returns an error if it is already running for the shard, for all types or for a shard with another
// count, or if user code of an earlier run of the shard, other than handlers, is still running.
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
	scope := shards.From(ctx)
	if err := validateShard(scope); err != nil {
		return err
	}
	r := &run{
		core: c.core, scope: scope, isOver: func() bool { return ctx.Err() != nil },
		ledger: c.ledgerFrom(ctx), reading: make(chan struct{}, c.config.Workers),
		calls: map[*worker]bool{}, done: make(chan struct{}), meter: meter{began: time.Now()},
	}
	// Handlers can continue for up to ShutdownTimeout after ctx has been cancelled.
	lifetime, finish := context.WithCancel(context.WithoutCancel(ctx))
	lifetime = runcontext.WithEnding(lifetime, func() context.Context { return r.base })
	r.lifetime, r.finish = context.WithValue(lifetime, runKey{}, r), finish
	r.base, r.cancel = context.WithCancelCause(r.lifetime)
	release := c.pool.Hold() // so that each cache is read once for all registrations
	attached, err := c.beginRun(r)
	if err != nil {
		release()
		finish()
		return err
	}
	go releaseAfter(attached, release)
	// Attach registrations before the watches start, because the first list detects deletions since the last run.
	releaseWatches := c.sessions.acquire(ctx, attached)

	<-ctx.Done()
	r.cancel(fmt.Errorf("%w: %w", ErrRunEnded, context.Cause(ctx)))
	if left, returned := c.endRun(r, releaseWatches); len(left) > 0 {
		return &leftRunning{fmt.Errorf("%w %s after the context was cancelled: %s", ErrStillRunning,
			c.config.ShutdownTimeout, enumerate(left)), returned}
	}
	return nil
}

// leftRunning is the error of a run that has left something running. Package replica finds its method with errors.As.
type leftRunning struct {
	error
	returned <-chan struct{}
}

func (e *leftRunning) Unwrap() error { return e.error }

// Returned returns a channel that is closed when nothing of the run is running any more.
func (e *leftRunning) Returned() <-chan struct{} { return e.returned }

// maxHold limits the time for which the caches are not read when a run begins. Attaching takes longer only if user code
// hangs.
const maxHold = time.Second

// releaseAfter calls release when all channels are closed, or after maxHold.
func releaseAfter(attached []<-chan struct{}, release func()) {
	ctx, cancel := context.WithTimeout(context.Background(), maxHold)
	defer cancel()
	for _, done := range attached {
		await(ctx, done)
	}
	release()
}

// beginRun adds r to the current runs, and starts the workers unless another run has. The returned channels are closed
// once the existing registrations have been attached. StartServingGVK attaches later ones.
func (c *DynamicController) beginRun(r *run) (attached []<-chan struct{}, err error) {
	var replays map[*StandaloneWatch]*replay
	started := false
	begin := func(watches []*StandaloneWatch) {
		replays = newReplays(watches)
		r.crew, started = c.crews.join() // before attaching, which would otherwise delay the first reconcile
	}
	attached, err = c.registry.addRun(r, begin, func(r *run, reg *registration) <-chan struct{} {
		return c.attach(r, reg, replays)
	})
	for w, p := range replays {
		w.attach(r, p)
	}
	if started { // logged here, because the registry was locked before
		c.log.Info("Starting workers", keyWorkers, c.config.Workers)
	}
	return attached, err
}

// attach starts the delivery of a registration's objects to the queue. The returned channel is closed when it has
// begun. If the run has just begun, the initial sync also waits for the standalone watches.
func (c *DynamicController) attach(
	r *run, reg *registration, replays map[*StandaloneWatch]*replay,
) (attached <-chan struct{}) {
	others := make([]*typewatch.Subscription, 0, len(replays))
	for w := range replays {
		others = append(others, w.sub)
	}
	return reg.feed.Attach(others, func() context.Context {
		reg.group.Assign() // here, because it calls the function of WithFlow
		ctx := reg.enter(r.base, r)
		if r.ending.Load() {
			return nil
		}
		c.waits.hold(r, reg)
		reg.AddExisting(reg.attempts.Keys())
		for w, p := range replays {
			p.then(func() { reg.feed.Finish(w.sub) })
		}
		return ctx
	})
}

// ledgerFrom returns the ledger for a run: that of the leaders, which ctx carries, or that of this controller.
func (c *DynamicController) ledgerFrom(ctx context.Context) *writes.Ledger {
	if l := writes.LedgerFrom(ctx); l != nil && c.isServer(l.Server) {
		return l
	}
	return &c.ledger
}

// endRun stops the calls, the watches and the event handlers, in that order, so that running handlers can still read
// the caches. It waits for the calls for at most ShutdownTimeout, and then for the watches and the event handlers for
// at most Config.watchTimeout. It returns descriptions of everything that is still running, and a channel that is
// closed when it has returned; nil if there is nothing. The run remains current until the watches and the event
// handlers have ended.
func (c *DynamicController) endRun(r *run, releaseWatches func()) (left []string, all <-chan struct{}) {
	c.registry.beginEnd(r)
	for _, reg := range c.registry.servedBy(r) {
		// The queue drops the waiting objects. Those that are not in the cache are kept for the next run.
		reg.keepAbsent(reg.group.Stop()...)
	}
	began := time.Now()
	timeout, stopTimer := withLimit(c.config.ShutdownTimeout)
	defer stopTimer()
	calls := r.endCalls()
	c.waits.endOfRun(r)
	returned := closedAfter(func() {
		<-calls
		r.reads.Wait()
		r.finish()
	})
	if !await(timeout, returned) {
		for _, reg := range c.registry.servedBy(r) {
			left = append(left, reg.runningHandlers()...)
		}
		r.replaceWorkers()
	}
	timeout, stopWatchTimer := withLimit(c.config.watchTimeout(time.Since(began)))
	defer stopWatchTimer()
	exited := c.crews.leave()
	released := make(chan struct{})
	var dropped atomic.Pointer[[]activity]
	var pending []activity // set before released is closed
	ended := closedAfter(func() {
		<-exited
		pending = c.registry.leaveScope(r.scope)
		watches := slices.Clone(pending)
		dropped.Store(&watches)
		releaseWatches()
		pending = append(pending, c.detach(r)...)
		close(released)
		for _, p := range pending {
			<-p.done
		}
		c.registry.forgetInactive(r.scope)
		c.registry.removeRun(r)
	})
	switch {
	case await(timeout, ended):
	case !await(timeout, released):
		left = append(left, c.runningWatches(dropped.Load())...)
	default:
		known := len(left)
		for _, p := range pending {
			if !await(timeout, p.done) {
				left = append(left, p.description)
			}
		}
		if len(left) == known { // everything has just returned, so that the run ends at once
			<-ended
		}
	}
	if len(left) > 0 {
		all = closedAfter(func() {
			<-returned
			<-ended
		})
	}
	return left, all
}

// detach ends the delivery of objects to a run. It returns the functions that can still be running.
func (c *DynamicController) detach(r *run) (pending []activity) {
	for _, reg := range c.registry.servedBy(r) {
		pending = append(pending, activity{"a predicate or MapFunc of " + nameOf(reg.gvr), reg.feed.Detach()})
	}
	for _, w := range c.registry.standaloneWatches() {
		done := closedAfter(func() { w.detach(r) })
		pending = append(pending, activity{"a function of the standalone watch on " + nameOf(w.key.GVR), done})
	}
	return pending
}

// runningWatches describes the watches that have not stopped: those that are running, and those that were dropped.
func (c *DynamicController) runningWatches(dropped *[]activity) (running []string) {
	for _, gvr := range c.pool.Running() {
		running = append(running, "the watch of "+nameOf(gvr))
	}
	if dropped != nil {
		for _, watch := range *dropped {
			if !typewatch.IsClosed(watch.done) {
				running = append(running, watch.description)
			}
		}
	}
	if len(running) == 0 {
		return []string{"TypeEvents or an unused watch"}
	}
	return running
}
