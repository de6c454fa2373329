package dynamiccontroller

import (
	"context"
	"fmt"

	"github.com/dynamic-controller/engine/internal/shards"
)

// DrainShard prevents further handler calls for the types of a shard, and waits until the running ones have returned.
// Their contexts are not cancelled. Package replica calls it before it moves the shard to another replica. If ctx is
// cancelled first, DrainShard returns an error that lists the handlers that are still running. In any case, no further
// handlers are called for the shard until [DynamicController.ResumeShard] is called, or until the next run.
//
// DrainShard returns nil if no run serves the shard. A run without shards serves the shard with index 0 of 1.
func (c *DynamicController) DrainShard(ctx context.Context, index, count int) error {
	r := c.registry.runOf(shards.Shard{Index: index, Count: count})
	if r == nil {
		return nil
	}
	c.registry.drain(r, true)
	idle := r.drain()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-idle: // select can choose any of the two
		return nil
	default:
	}
	var running []string
	for _, reg := range c.registry.servedBy(r) {
		running = append(running, reg.runningHandlers()...)
	}
	return fmt.Errorf("drain shard %d of %d: %w: %s", index, count, ErrStillRunning, enumerate(running))
}

// ResumeShard ends the effect of [DynamicController.DrainShard].
func (c *DynamicController) ResumeShard(index, count int) {
	if r := c.registry.runOf(shards.Shard{Index: index, Count: count}); r != nil {
		r.resume()
		c.registry.drain(r, false)
	}
}

// drain prevents further calls. The returned channel is closed when no call is running.
func (r *run) drain() (idle <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.draining = true
	if r.idle == nil {
		r.idle = make(chan struct{})
		r.reportIdleLocked()
	}
	return r.idle
}

func (r *run) resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.draining, r.idle = false, nil
}

// reportIdleLocked is called when a call has ended.
func (r *run) reportIdleLocked() {
	if r.idle == nil || len(r.calls) > 0 {
		return
	}
	select {
	case <-r.idle:
	default:
		close(r.idle)
	}
}
