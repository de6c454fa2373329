package replica

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
)

// fleetLeader takes part in the election of the fleet's leader, and plans while this member is the leader.
type fleetLeader struct {
	config     fleet.Config
	log        logr.Logger // without values
	leadership *leadership // of the fleet's Lease
	lease      *fleet.Lease
	view       *fleet.View
	planner    *fleet.Planner
	heartbeat  *fleet.Heartbeat
	shutdown   *shutdown
	wake       <-chan struct{}        // receives a value when the view changes, after ending is closed
	ending     chan struct{}          // closed when Run begins to end
	handedOver chan struct{}          // closed when all shards have been handed over after that
	resign     atomic.Pointer[func()] // ends the term
}

const plannerName = "shard planner"

// isLeader reports whether this member is the leader of the fleet.
func (l *fleetLeader) isLeader() bool {
	t := l.leadership.fence.latest()
	return t != nil && t.check() == nil
}

// lead takes part in the election of the fleet's leader until ctx is cancelled or a policy ends Run.
func (l *fleetLeader) lead(ctx context.Context) error {
	for {
		stepDown := make(chan struct{})
		resign := sync.OnceFunc(func() { close(stepDown) })
		l.resign.Store(&resign)
		l.leadership.stepDown = stepDown
		err := l.leadership.run(ctx)
		if err != nil || !l.leadership.isSteppingDown() || ctx.Err() != nil {
			return err
		}
		l.lease.EndTerm()
	}
}

// plan is the leader-gated runnable that plans. If the replica is shutting down, it returns when the replica has
// handed over its shards, so that the fleet's Lease is renewed until then.
func (l *fleetLeader) plan(ctx context.Context) error {
	defer l.lease.CancelChange()
	if l.planner.Run(ctx) {
		(*l.resign.Load())()
		<-ctx.Done()
	}
	select {
	case <-l.ending:
		<-l.handedOver
		l.removeLayoutIfLast(context.WithoutCancel(ctx))
	default:
	}
	return nil
}

// resignIfStale ends the term of the fleet's leader if it observes nothing.
func (l *fleetLeader) resignIfStale(now time.Time) {
	if l.isLeader() && l.heartbeat.ShouldResign(l.config, now) {
		l.config.Log.Info("Stepping down as the leader of the fleet", keyCause, fleet.ErrStale.Error())
		(*l.resign.Load())()
	}
}

// leaveReserve returns the time before the end of a shutdown at which all shards have ended. In this time, the leader
// of the fleet can leave.
func leaveReserve(timeout time.Duration) time.Duration { return min(timeout/10, time.Second) }

// removeLayoutIfLast is called when this member has ended all shards and is about to leave. If it is the fleet's leader
// and the last member, it removes the layout, so that replicas without shards can lead at once. Otherwise, they wait
// until the fleet's Lease expires. It gives up if a shard is still led by somebody, early enough for the shutdown to
// end in time.
func (l *fleetLeader) removeLayoutIfLast(ctx context.Context) {
	left, _ := l.shutdown.left()
	ctx, cancel := context.WithTimeout(ctx, left-leaveReserve(l.shutdown.timeout)/2)
	defer cancel()
	if !l.isLeader() || !l.isLast(ctx) {
		return
	}
	ctx, cancel = context.WithTimeout(ctx, l.config.LeaseDuration)
	defer cancel()
	if name, err := l.planner.RemoveLayout(ctx); err != nil {
		l.log.Info("Number of shards not removed, replicas without shards wait until the fleet's lease expires",
			keyLease, l.config.Namespace+"/"+name, keyError, err.Error())
		l.lease.CancelChange()
	}
}

// awaitTurn is called when this member has handed over its shards and is not the fleet's leader. If all other members
// are leaving, too, nobody may be left to remove the layout. awaitTurn then waits until this member leads the fleet, or
// until another one removes the layout. It returns early enough for the shutdown to end in time.
func (l *fleetLeader) awaitTurn(ctx context.Context) {
	left, _ := l.shutdown.left()
	ctx, cancel := context.WithTimeout(ctx, left-leaveReserve(l.shutdown.timeout))
	defer cancel()
	for ctx.Err() == nil && !l.isLeader() && l.lease.Layout().State == fleet.LayoutFixed && l.othersLeave() {
		l.leadership.elector.wake()
		select {
		case <-time.After(max(fleet.AnnouncePeriod, l.config.RetryPeriod/4)):
		case <-ctx.Done():
		}
	}
}

// othersLeave reports whether all other members are gone or leaving.
func (l *fleetLeader) othersLeave() bool {
	return !l.heartbeat.IsStale() && l.view.Snapshot().OthersLeave(l.config.Identity)
}

// isLast reports whether all other members are gone or leaving. If there are others, it waits for RetryPeriod, because
// all replicas of a Deployment that is scaled to zero leave at about the same time.
func (l *fleetLeader) isLast(ctx context.Context) bool {
	timeout := time.After(l.config.RetryPeriod)
	for {
		if l.othersLeave() {
			return true
		}
		select {
		case <-l.wake: // no longer used by follow
		case <-timeout:
			return false
		case <-ctx.Done():
			return false
		}
	}
}
