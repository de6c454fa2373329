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
// returned.
//
// Run returns an error at once if it runs already, and ends with one if it relied on RunWatches and that ended.
func (c *DynamicController) Run(ctx context.Context) error {
	fail := func(err error) error { return fmt.Errorf("run the dynamic controller: %w", err) }
	if c.configErr != nil {
		return fail(c.configErr)
	}
	watches, own, regs, err := c.beginReconciling(ctx)
	if err != nil {
		return fail(err)
	}
	c.log.Info("reconciling", keyWorkers, c.config.Workers)
	run, cancel := context.WithCancel(ctx)
	base, cancelBase := context.WithCancelCause(context.WithoutCancel(ctx))
	var workers sync.WaitGroup
	for range c.config.Workers {
		c.startWorker(run, base, &workers)
	}
	workers.Go(func() { c.resync(run) })
	for _, reg := range regs {
		c.attach(reg)
	}
	if own {
		defer c.hearTypeEvents()()
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
	if left := c.endReconciling(&workers, watches, own); left != "" {
		result = errors.Join(result, fmt.Errorf("these have not returned %s after their contexts ended: %s", c.config.ShutdownTimeout, left))
	}
	if result != nil {
		return fail(result)
	}
	return nil
}

// startWorker keeps a worker going: one whose handler ends its goroutine is replaced.
func (c *DynamicController) startWorker(run, base context.Context, workers *sync.WaitGroup) {
	workers.Go(func() {
		returned := false
		defer func() {
			if !returned {
				c.startWorker(run, base, workers)
			}
		}()
		c.work(run, base)
		returned = true
	})
}

// RunWatches keeps the caches of all served types warm until ctx ends, and reconciles nothing: it is the half of the
// controller for every replica, beside which Run may begin and end any number of times. On a standby nothing is queued.
//
// It returns an error at once if watches run already, in another RunWatches or in a Run that began before it.
func (c *DynamicController) RunWatches(ctx context.Context) error {
	fail := func(err error) error { return fmt.Errorf("run the watches: %w", err) }
	if c.configErr != nil {
		return fail(c.configErr)
	}
	c.mu.Lock()
	if c.watching != nil {
		c.mu.Unlock()
		return fail(errWatching)
	}
	watches := c.beginWatchingLocked(ctx)
	c.mu.Unlock()
	defer c.hearTypeEvents()()
	<-ctx.Done()
	c.endWatching(watches)
	return nil
}

// beginReconciling opens the queue, and starts the watches if nobody else has.
// It returns the registrations that are to be attached: those that come later see to it themselves.
func (c *DynamicController) beginReconciling(ctx context.Context) (watches *watchTerm, own bool, regs []*registration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reconciling {
		return nil, false, nil, errRunning
	}
	c.reconciling = true
	c.storage.Restart()
	regs = slices.Collect(maps.Values(c.registrations))
	for _, reg := range regs {
		reg.group.Hold()
	}
	if c.watching == nil {
		// The watches outlive ctx: handlers that finish still read the cache.
		return c.beginWatchingLocked(context.WithoutCancel(ctx)), true, regs, nil
	}
	return c.watching, false, regs, nil
}

// endReconciling waits for the workers, and then ends the watches if they are the run's own. What holds that up for
// longer than ShutdownTimeout is named; it is waited for in the background, and until a watch that hangs has ended there
// is no other run.
func (c *DynamicController) endReconciling(workers *sync.WaitGroup, watches *watchTerm, own bool) (left string) {
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
	if !within(func() { c.detach(watches, own) }) {
		hung = c.running((*registration).stillRunning)
	}
	return enumerate(hung)
}

// endGrace is what is left for the end of watches after handlers have used up ShutdownTimeout.
const endGrace = time.Second

// detach makes the queue hear of nothing any more.
func (c *DynamicController) detach(watches *watchTerm, own bool) {
	if own {
		c.endWatching(watches)
	}
	for _, reg := range c.registered() {
		c.watchOf(reg).Detach()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reconciling = false
}

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
