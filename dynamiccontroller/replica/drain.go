package replica

import (
	"context"
	"time"

	"github.com/dynamic-controller/engine/internal/shards"
)

// ShardDrainer is implemented by runnables of [Replica.RegisterForShards] whose running work can return before a shard
// is moved. A DynamicController implements it. Without it, the contexts of running work are cancelled at once.
//
// A shard is moved for balance only if all its runnables have drained within two RetryPeriods. Otherwise, this replica
// keeps leading the shard. The planner does not move it again for four LeaseDurations. A shutdown does not drain.
type ShardDrainer interface {
	// DrainShard prevents further work for the shard, and waits until the running work has returned. It returns an error
	// if ctx is cancelled first. It must not call methods of the Replica.
	DrainShard(ctx context.Context, index, count int) error
	// ResumeShard allows work again after DrainShard has returned. It must not block.
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
	cancel   context.CancelFunc
	resume   func()
	returned chan struct{}
	err      error // once returned is closed; nil if nothing is running
}

// startDrain drains runnables. It calls ended when they have drained, or when limit is over. In the latter case, the
// runnables have been resumed.
func startDrain(of shards.Shard, runnables []namedRunnable, limit time.Duration, ended func()) *drain {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	d := &drain{cancel: cancel, returned: make(chan struct{})}
	d.resume = func() {
		for _, n := range runnables {
			if drainer, ok := n.runnable.(ShardDrainer); ok {
				drainer.ResumeShard(of.Index, of.Count)
			}
		}
	}
	go func() {
		defer ended()
		defer close(d.returned)
		defer cancel()
		for _, n := range runnables {
			drainer, ok := n.runnable.(ShardDrainer)
			if !ok {
				continue
			}
			if d.err = drainer.DrainShard(ctx, of.Index, of.Count); d.err != nil {
				d.resume()
				return
			}
		}
	}()
	return d
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
func (s *shard) canMove(of shards.Shard, o Options, runnables []namedRunnable, ended func()) bool {
	switch {
	case s.isKept():
		return false
	case s.drain == nil:
		s.drain = startDrain(of, runnables, drainPeriods*o.RetryPeriod, ended)
		return false
	case !s.drain.hasReturned():
		return false
	case s.drain.err == nil:
		return true
	}
	s.leadership.log.Info("Shard not moved, it is kept for some time", keyAfter, (keepPeriods * o.LeaseDuration).String(),
		keyCause, s.drain.err.Error())
	s.drain, s.keptUntil = nil, time.Now().Add(keepPeriods*o.LeaseDuration)
	return false
}

// isKept reports whether the shard must not be moved, because it could not be drained.
func (s *shard) isKept() bool { return time.Now().Before(s.keptUntil) }

// endDrain is called if the shard is not to be moved any more.
func (s *shard) endDrain() {
	if s.drain == nil {
		return
	}
	if s.drain.cancel(); !s.drain.hasReturned() {
		return // it resumes the runnables itself
	}
	if s.drain.err == nil {
		s.drain.resume()
	}
	s.drain = nil
}
