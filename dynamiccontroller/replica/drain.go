package replica

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dynamic-controller/engine/internal/protect"
	"github.com/dynamic-controller/engine/internal/shards"
)

// ShardDrainer is implemented by runnables of [ScopeShard] whose running work can return before a shard
// is moved. A DynamicController implements it. Without it, the contexts of running work are cancelled at once.
//
// A shard is moved for balance only if all its runnables have drained within two RetryPeriods. Otherwise, this replica
// keeps leading the shard. The planner does not move it again for four LeaseDurations. A shutdown does not drain.
//
// Both methods must not call methods of the Replica.
type ShardDrainer interface {
	// DrainShard prevents further work for the shard, and waits until the running work has returned. It returns an error
	// if ctx is cancelled first. Each call is followed by one of ResumeShard, also after a move.
	DrainShard(ctx context.Context, index, count int) error
	// ResumeShard allows work for the shard again. It must not block. It is not called while DrainShard is running.
	ResumeShard(index, count int)
}

// drainPeriods limits the time of a drain, in multiples of RetryPeriod. Other objects of the shard wait meanwhile.
const drainPeriods = 2

// drain prepares the move of a shard that this replica leads.
type drain struct {
	of        shards.Shard
	drainers  []namedRunnable
	cancel    context.CancelFunc
	returned  chan struct{}
	err       error // once returned is closed; nil if nothing is running
	collected bool  // the result is known to the shard
}

var errNotDrained = errors.New("a runnable called runtime.Goexit while it drained")

// startDrain drains those of the runnables that are ShardDrainers. It calls ended when they have drained, when the
// limit is over, or when ctx is cancelled. In the latter cases, the runnables have been resumed.
func startDrain(
	ctx context.Context, of shards.Shard, runnables []namedRunnable, limit time.Duration, ended func(),
) *drain {
	ctx, cancel := context.WithTimeout(ctx, limit)
	d := &drain{of: of, cancel: cancel, returned: make(chan struct{}), err: errNotDrained}
	for _, n := range runnables {
		if _, ok := n.runnable.(ShardDrainer); ok {
			d.drainers = append(d.drainers, n)
		}
	}
	go func() {
		defer ended()
		defer close(d.returned)
		defer cancel()
		defer func() {
			if d.err != nil {
				d.resume()
			}
		}()
		d.err = d.run(ctx)
	}()
	return d
}

func (d *drain) run(ctx context.Context) error {
	for _, n := range d.drainers {
		var err error
		panicked := protect.Call(func() { err = n.runnable.(ShardDrainer).DrainShard(ctx, d.of.Index, d.of.Count) })
		switch {
		case panicked != nil:
			return fmt.Errorf("runnable %q: DrainShard: %w", n.name, panicked)
		case err != nil:
			return fmt.Errorf("runnable %q: %w", n.name, err)
		}
	}
	return nil
}

// resume resumes all runnables, also those that have not been drained.
func (d *drain) resume() {
	for _, n := range d.drainers {
		_ = protect.Call(func() { n.runnable.(ShardDrainer).ResumeShard(d.of.Index, d.of.Count) })
	}
}

// end resumes the runnables if they have been drained. Otherwise, this has happened before. The drain must have
// returned.
func (d *drain) end() {
	if d.err == nil {
		d.resume()
	}
}
