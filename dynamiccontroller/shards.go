package dynamiccontroller

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/shards"
)

// WithShard returns a context with which [DynamicController.Run] and [DynamicController.RunWatches] serve one shard:
// one of count parts of the types. Without it, they serve all types. The shard of a type depends on its group and
// resource only, and is the same in every process and every release. The count must be between 1 and 256, and the index
// between 0 and count-1; otherwise, Run and RunWatches return an error that wraps [ErrInvalidOptions].
//
// Package replica sets the shard of the contexts that it passes to its runnables. WithShard is for programs that elect
// leaders in another way. All shards that a controller serves at the same time must have the same count, and so must
// those that it watches.
func WithShard(ctx context.Context, index, count int) context.Context {
	return shards.With(ctx, shards.Shard{Index: index, Count: count})
}

// BucketOf returns the bucket of a type: one of 256 parts of the types, as the value of a label. It depends on the
// type's group and resource only, and is the same in every process and every release. If the number of shards is a
// power of two, all types in a bucket are in the same shard. For its use, see [WithBucketLabel].
func BucketOf(gr schema.GroupResource) string { return shards.Bucket(gr) }

// DrainShard prevents further handler calls for the types of a shard, and waits until the running ones have returned.
// Their contexts are not cancelled. Package replica calls it before it moves the shard to another replica. If ctx is
// cancelled or the run ends first, DrainShard returns an error that wraps [ErrStillRunning] and lists the handlers that
// are still running. No further handlers are called for the shard until [DynamicController.ResumeShard] is called, or
// until the next run. If ResumeShard is called first, DrainShard returns [ErrShardResumed].
//
// DrainShard returns nil if no run serves the shard. A run without shards serves the shard with index 0 of 1.
func (c *DynamicController) DrainShard(ctx context.Context, index, count int) error {
	d, regs := c.registry.drain(shards.Shard{Index: index, Count: count})
	if d == nil {
		return nil
	}
	select {
	case <-d.idle:
	case <-d.resumed:
	case <-d.ended:
	case <-ctx.Done():
	}
	switch { // select can choose any of those that are closed
	case typewatch.IsClosed(d.resumed):
		return fmt.Errorf("drain shard %d of %d: %w", index, count, ErrShardResumed)
	case typewatch.IsClosed(d.idle):
		return nil
	}
	var running []string
	for _, reg := range regs {
		running = append(running, reg.runningHandlers()...)
	}
	return fmt.Errorf("drain shard %d of %d: %w: %s", index, count, ErrStillRunning, enumerate(running))
}

// ResumeShard ends the effect of [DynamicController.DrainShard]. Calls to DrainShard for the shard that have not
// returned fail with [ErrShardResumed], because handlers can be called again.
func (c *DynamicController) ResumeShard(index, count int) {
	c.registry.resume(shards.Shard{Index: index, Count: count})
}

// ShardLoad returns what the run of a shard costs: the number of objects in its caches, and since the run began, the
// time that calls to handlers have taken, and the number of changes of objects of its types. Package replica calls it,
// so that shards are balanced by their cost.
//
// The caches are those of the shard's types, and of the types that they own or watch with [WithBucketLabel]. Other
// watches of owned and watched types are the same for all shards of a process, and do not count.
//
// ShardLoad returns false if no run serves the shard, or while the run reconciles the objects that exist when it
// begins, for at most five minutes. A run without shards serves the shard with index 0 of 1.
func (c *DynamicController) ShardLoad(index, count int) (
	objects int, busy time.Duration, changes int64, ok bool,
) {
	r, regs := c.registry.runOf(shards.Shard{Index: index, Count: count})
	if r == nil {
		return 0, 0, 0, false
	}
	counted := map[typewatch.Selection]struct{}{}
	for _, reg := range regs {
		objects += reg.feed.Primary().View().Store().Len()
		busy += reg.busy()
		for key, sub := range reg.feed.Secondaries() {
			if _, known := counted[key.Selection]; !known && key.BucketLabel != "" {
				counted[key.Selection] = struct{}{}
				objects += sub.View().Store().Len()
			}
		}
	}
	changes, ok = r.meter.observe(regs)
	return objects, busy, changes, ok
}
