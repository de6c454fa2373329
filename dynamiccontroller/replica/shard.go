package replica

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
	"github.com/dynamic-controller/engine/internal/protect"
	"github.com/dynamic-controller/engine/internal/shards"
)

// shard is one shard of a replica's layout. Its fields are used only by the goroutine of fleetMember.run, apart from
// the leadership.
type shard struct {
	life       *fleet.Shard
	leadership *leadership
	campaign   *campaign // nil if the replica does not campaign for the shard
	warmth     *warmth   // nil if the replica does not keep the shard warm
	drain      *drain    // nil if the shard is not to be moved
	meter      *fleet.Meter
}

// collect reports to life what has ended. It returns the failures of runnables.
func (s *shard) collect(now time.Time) (failures error) {
	if c := s.campaign; c != nil && isClosed(c.done) {
		s.campaign = nil
		s.life.CampaignEnded()
		failures = c.err
	}
	if w := s.warmth; w != nil {
		select {
		case err := <-w.group.failed:
			failures = errors.Join(failures, err)
			w.stop(err)
			s.life.WarmingFailed()
		default:
		}
		if isClosed(w.group.joined) {
			errs, _ := w.group.exitErrors()
			failures = errors.Join(failures, errs)
			s.warmth = nil
			s.life.WarmingEnded()
		}
	}
	if d := s.drain; d != nil && !d.collected && isClosed(d.returned) {
		d.collected = true
		if kept := s.life.DrainEnded(d.err == nil, now); kept > 0 {
			s.leadership.log.Info("Shard not moved, it is kept for some time", keyAfter, kept.String(), keyCause, d.err.Error())
		}
		if d.err != nil { // it has resumed the runnables
			s.drain = nil
		}
	}
	return failures
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// campaign is a period in which a replica campaigns for a shard, and leads it. It can have several terms.
type campaign struct {
	stop func() // ends the campaign; the lease is released once the runnables have returned
	done <-chan struct{}
	err  error // the result, once done is closed
}

// startCampaign campaigns until the campaign is stopped or ctx is cancelled. It calls ended when the campaign is over.
func (s *shard) startCampaign(ctx context.Context, of shards.Shard, ended func()) {
	stepDown, done := make(chan struct{}), make(chan struct{})
	c := &campaign{done: done, stop: sync.OnceFunc(func() { close(stepDown) })}
	s.leadership.stepDown = stepDown
	s.campaign = c
	go func() {
		defer ended()
		defer close(done)
		c.err = s.leadership.run(shards.With(ctx, of))
	}()
}

// isLeading reports whether a term of the shard is current.
func (s *shard) isLeading() bool {
	t := s.leadership.fence.latest()
	return t != nil && t.check() == nil
}

// lose ends the term of the shard, if there is one.
func (s *shard) lose(cause error) {
	if t := s.leadership.fence.latest(); t != nil {
		_ = t.lose("%s", cause)
	}
}

// warmth is a period in which a replica keeps a shard warm.
type warmth struct {
	group     *runnableGroup
	cancel    context.CancelCauseFunc
	stoppedAt time.Time // zero before
}

var errCooledDown = errors.New("this replica no longer keeps the shard warm")

// startWarming starts the runnables of a warm shard. It calls ended when they have returned, after the warmth was
// stopped or after one of them has failed.
func (s *shard) startWarming(ctx context.Context, of shards.Shard, runnables []namedRunnable, ended func()) {
	ctx, cancel := context.WithCancelCause(shards.With(context.WithoutCancel(ctx), of))
	w := &warmth{group: newRunnableGroup(ctx), cancel: cancel}
	s.warmth = w
	for _, n := range runnables {
		w.group.start(n)
	}
	go func() {
		defer ended()
		<-w.group.joined
	}()
}

func (w *warmth) stop(cause error) {
	w.stoppedAt = time.Now()
	w.cancel(cause)
	w.group.stop()
}

// ShardSyncer is implemented by runnables of [ScopeWarmShard] that keep caches up to date. The result of the Watches
// method of a DynamicController implements it.
type ShardSyncer interface {
	// HasSyncedShard reports whether the caches of a shard are complete. It must not block, and must not call methods of
	// the Replica other than Status.
	HasSyncedShard(index, count int) bool
}

// hasSynced reports whether the runnables keep the shard up to date.
func hasSynced(of shards.Shard, runnables []namedRunnable) bool {
	for _, n := range runnables {
		s, ok := n.runnable.(ShardSyncer)
		if !ok {
			continue
		}
		synced := false
		if protect.Call(func() { synced = s.HasSyncedShard(of.Index, of.Count) }) != nil || !synced {
			return false
		}
	}
	return true
}
