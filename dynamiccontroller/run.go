package dynamiccontroller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Run reconciles until ctx ends: it runs the workers, and the watches too unless RunWatches does. Every object in the
// cache is reconciled once, and then whenever something happens to it.
//
// When ctx ends no handler starts any more and the contexts of those that run end at once ([ErrRunEnded], which wraps
// ctx's own cause). Run waits for them for at most Config.ShutdownTimeout; if some have not returned by then its error
// names them. It may be run again then, also while such a handler still runs: its object is not reconciled before it
// returned. A predicate, MapFunc or transform that hangs is named too, but until it has returned there is no other run.
//
// Run returns an error at once if it runs already, and ends with one if it relied on RunWatches and that ended.
func (c *DynamicController) Run(ctx context.Context) error {
	fail := func(err error) error { return fmt.Errorf("run the dynamic controller: %w", err) }
	if c.configErr != nil {
		return fail(c.configErr)
	}
	run, cancel := context.WithCancel(ctx)
	defer cancel()
	watches, anew, regs, err := c.beginReconciling(run.Done())
	if err != nil {
		return fail(err)
	}
	c.log.Info("reconciling", keyWorkers, c.config.Workers)
	base, cancelBase := context.WithCancelCause(context.WithoutCancel(ctx))
	var workers sync.WaitGroup
	// Ctx is asked itself: one that looks at a clock, as package replica's does, says that it ended before its children know.
	isOver := func() bool { return ctx.Err() != nil || run.Err() != nil }
	for range c.config.Workers {
		c.startWorker(base, isOver, &workers)
	}
	workers.Go(func() { c.resync(run) })
	var attached sync.WaitGroup
	for _, reg := range regs {
		// Each by itself: where the watches run already the author's funcs are called, and one may hang.
		attached.Go(func() { c.attach(reg) })
	}
	if anew {
		// Not before: what the first list tells is to be heard. Until then nothing is told, so that this waits for nobody. The
		// watches outlive ctx, for handlers that finish still read the cache.
		attached.Wait()
		c.beginWatching(context.WithoutCancel(ctx), watches)
	}

	var result error
	select {
	case <-ctx.Done():
	case <-watches.ended:
		result = errWatchesEnded
		if ctx.Err() != nil {
			result = nil
		}
	}
	cancel()
	cancelBase(fmt.Errorf("%w: %w", ErrRunEnded, orElse(context.Cause(ctx), errWatchesEnded)))
	c.miss(c.storage.Cancel())
	if left := c.endReconciling(&workers, watches); left != "" {
		result = errors.Join(result, fmt.Errorf("these have not returned %s after their contexts ended: %s", c.config.ShutdownTimeout, left))
	}
	if result != nil {
		return fail(result)
	}
	return nil
}

// startWorker keeps a worker going: one whose handler ends its goroutine is replaced.
func (c *DynamicController) startWorker(base context.Context, isOver func() bool, workers *sync.WaitGroup) {
	workers.Go(func() {
		returned := false
		defer func() {
			if !returned {
				c.startWorker(base, isOver, workers)
			}
		}()
		c.work(base, isOver)
		returned = true
	})
}

// RunWatches keeps the caches of all served types warm until ctx ends, and reconciles nothing: it is the half of the
// controller for every replica, beside which Run may begin and end any number of times. On a standby nothing is queued.
//
// Run may also have begun before it, as when both are started at once: its watches go on and are RunWatches' from then
// on. While another RunWatches runs, it returns an error at once.
func (c *DynamicController) RunWatches(ctx context.Context) error {
	fail := func(err error) error { return fmt.Errorf("run the watches: %w", err) }
	if c.configErr != nil {
		return fail(c.configErr)
	}
	watches, anew, err := c.takeWatches(ctx)
	switch {
	case err != nil:
		return fail(err)
	case watches == nil:
		return nil
	case anew:
		c.beginWatching(ctx, watches)
	}
	<-ctx.Done()
	c.endWatching(watches, false)
	return nil
}

// beginReconciling opens the queue, and takes it on itself to run the watches if nobody else does.
// It returns the registrations that are to be attached, which was counted in: those that come later see to it themselves.
// Over is closed when the run ends.
func (c *DynamicController) beginReconciling(over <-chan struct{}) (watches *watchTerm, anew bool, regs []*registration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reconciling {
		return nil, false, nil, errRunning
	}
	c.reconciling = true
	c.hearing.open, c.hearing.over = true, over
	c.storage.Restart()
	regs = slices.Collect(maps.Values(c.registrations))
	for _, reg := range regs {
		reg.shutLocked()
		c.hearLocked(reg)
	}
	if c.watching == nil {
		return c.newWatchTermLocked(true), true, regs, nil
	}
	return c.watching, false, regs, nil
}

// endReconciling waits for the workers, and then ends the watches if they are the run's own. What holds that up for
// longer than ShutdownTimeout is named; it is waited for in the background, and until a watch that hangs has ended there
// is no other run.
func (c *DynamicController) endReconciling(workers *sync.WaitGroup, watches *watchTerm) (left string) {
	timeout := make(chan struct{})
	timer := time.AfterFunc(c.config.ShutdownTimeout, func() { close(timeout) })
	defer timer.Stop()
	within := func(f func()) bool {
		done := make(chan struct{})
		go func() {
			defer close(done)
			f()
		}()
		select {
		case <-done:
			return true
		case <-timeout:
			// What needs no waiting needs no time.
			select {
			case <-done:
				return true
			case <-time.After(endGrace):
				return false
			}
		}
	}
	var hung []string
	if !within(workers.Wait) {
		hung = c.running((*registration).running)
	}
	if !within(func() { c.detach(watches) }) {
		hung = append(c.running((*registration).running), c.stillHearing(watches)...)
	}
	return enumerate(hung)
}

// endGrace is what is left for the end of watches after handlers have used up ShutdownTimeout.
const endGrace = time.Second

// miss keeps for the next run the deletions that this one was told of and did not get to. All else is in the cache.
func (c *DynamicController) miss(dropped []ObjectIdentifiers) {
	for _, id := range dropped {
		reg, err := c.registrationOf(id.GVR)
		if err == nil && !c.watchOf(reg).Has(id.NamespacedKey) {
			reg.miss(id.NamespacedKey)
		}
	}
}

// running lists what of runs, over all registrations, those that were stopped included.
func (c *DynamicController) running(of func(*registration) []string) (running []string) {
	c.mu.RLock()
	regs := slices.Collect(maps.Values(c.registrations))
	for _, ending := range c.ending {
		regs = append(regs, ending...)
	}
	c.mu.RUnlock()
	for _, reg := range regs {
		running = append(running, of(reg)...)
	}
	return running
}
