package fleet

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/election"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/leasename"
	"github.com/dynamic-controller/engine/internal/writes"
)

// wantedShards returns the number of shards that all living members are configured for, or zero. The view must contain
// this member. Otherwise, it is outdated.
func (s *Snapshot) wantedShards(self string) (count int) {
	if _, known := s.Member(self); !s.Synced || !known {
		return 0
	}
	for i, m := range s.Members {
		if i > 0 && m.State.Shards != count {
			return 0
		}
		count = m.State.Shards
	}
	return count
}

// AnnouncePeriod is the interval at which the announcement of a change is sent until it has succeeded.
const AnnouncePeriod = 100 * time.Millisecond

// RemoveLayout announces a change of the layout, and waits until no shard is led. The next release of the fleet's Lease
// then allows any replica to lead, and to record its own layout. If ctx is cancelled, RemoveLayout returns the Lease
// that it was waiting for. This member must lead the fleet.
func (p *Planner) RemoveLayout(ctx context.Context) (lease string, err error) {
	p.lease.do((*layoutMachine).announce)
	for p.lease.Layout().State != LayoutChanging {
		p.renew()
		select {
		case <-time.After(AnnouncePeriod):
		case <-ctx.Done():
			return p.config.Name, context.Cause(ctx)
		}
	}
	free := newFreeShards(p.config)
	count := p.lease.Layout().Shards
	for index := 0; index < count; {
		if free.check(ctx, index) {
			index++
		} else if err := p.sleep(ctx); err != nil {
			return leasename.Shard(p.config.Name, index), err
		}
	}
	p.lease.do((*layoutMachine).allow)
	return "", nil
}

// releaseShards releases the Leases of shards of an earlier layout when they have expired. They are not deleted: the
// policy of package serverfence compares them with late writes.
func (p *Planner) releaseShards(ctx context.Context, view *Snapshot, count int) {
	for index, holder := range view.Holders {
		if index >= count && holder != "" {
			p.releaseShard(ctx, index)
		}
	}
}

func (p *Planner) releaseShard(ctx context.Context, index int) {
	name := leasename.Shard(p.config.Name, index)
	lease, err := p.config.Client.Get(ctx, name, metav1.GetOptions{})
	if err == nil && p.removed.isFree(index, lease) {
		lease = lease.DeepCopy()
		delete(lease.Annotations, writes.NoteAnnotation)
		held := election.Record{Transitions: int(ptr.Deref(lease.Spec.LeaseTransitions, 0))}
		record := held.Released(time.Now()).Lock()
		lease.Spec = resourcelock.LeaderElectionRecordToLeaseSpec(&record)
		_, err = p.config.Client.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil { // retried with the next plan
		p.config.Log.V(1).Info("Lease of a shard not released", keyName, name, keyError, err.Error())
	}
}

// freeShards determines which shards are not led.
type freeShards struct {
	config Config
	seen   map[int]seenLease
}

// seenLease is a version of a Lease, and the time at which it was first observed.
type seenLease struct {
	version string
	at      time.Time
}

func newFreeShards(config Config) freeShards { return freeShards{config, map[int]seenLease{}} }

// check reports whether the Lease of the shard was released or has expired. A missing Lease counts as expired after
// LeaseDuration, because it may have been deleted while the shard was led.
func (f *freeShards) check(ctx context.Context, index int) bool {
	lease, err := f.config.Client.Get(ctx, leasename.Shard(f.config.Name, index), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		lease = &coordinationv1.Lease{}
	case err != nil:
		return false
	}
	return f.isFree(index, lease)
}

// isFree is check for a Lease that was read.
func (f *freeShards) isFree(index int, lease *coordinationv1.Lease) bool {
	record := election.FromLock(*resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec))
	if record.IsReleased() {
		return true
	}
	if last, ok := f.seen[index]; ok && last.version == lease.ResourceVersion {
		return time.Since(last.at) > max(f.config.LeaseDuration, record.Duration)
	}
	f.seen[index] = seenLease{lease.ResourceVersion, time.Now()}
	return false
}

// OthersLeave reports whether all members but one are gone or leaving.
func (s *Snapshot) OthersLeave(self string) bool {
	_, known := s.Member(self) // otherwise, the view is outdated
	for _, other := range s.Members {
		if other.Identity != self && !other.State.Leaving {
			return false
		}
	}
	return s.Synced && known
}
