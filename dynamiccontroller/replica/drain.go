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
	// ResumeShard allows work for the shard again. It must not block.
	ResumeShard(index, count int)
}

const (
	// drainPeriods limits the time of a drain, in multiples of RetryPeriod. Other objects of the shard wait meanwhile.
	drainPeriods = 2
	// keepPeriods is the time for which a shard is not moved after it could not be drained, in multiples of LeaseDuration.
	keepPeriods = 4
)

// drain prepares the move of a shard that this replica leads.
type drain struct {
	of        shards.Shard
	drainers  []namedRunnable
	cancel    context.CancelFunc
	cancelled bool // the shard is not to be moved any more
	returned  chan struct{}
	err       error // once returned is closed; nil if nothing is running
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

func (d *drain) hasReturned() bool {
	select {
	case <-d.returned:
		return true
	default:
		return false
	}
}

// canMove reports whether the shard can be moved now. It drains the shard first.
func (s *shard) canMove(ctx context.Context, of shards.Shard, o Options, runnables []namedRunnable, ended func()) bool {
	switch {
	case s.isKept():
		return false
	case s.drain == nil:
		s.drain = startDrain(ctx, of, runnables, drainPeriods*o.RetryPeriod, ended)
		return false
	case !s.drain.hasReturned():
		return false
	case s.drain.err == nil:
		return true
	case s.drain.cancelled:
		s.drain = nil
		return false
	}
	s.leadership.log.Info("Shard not moved, it is kept for some time", keyAfter, (keepPeriods * o.LeaseDuration).String(),
		keyCause, s.drain.err.Error())
	s.drain, s.keptUntil = nil, time.Now().Add(keepPeriods*o.LeaseDuration)
	return false
}

// isKept reports whether the shard must not be moved, because it could not be drained.
func (s *shard) isKept() bool { return time.Now().Before(s.keptUntil) }

// endDrain is called if the shard has been moved, or is not to be moved any more. It must be called until it has set
// drain to nil: a drain that has not returned resumes the runnables itself.
func (s *shard) endDrain() {
	if s.drain == nil {
		return
	}
	s.drain.cancelled = true
	if s.drain.cancel(); !s.drain.hasReturned() {
		return
	}
	if s.drain.err == nil {
		s.drain.resume()
	}
	s.drain = nil
}
