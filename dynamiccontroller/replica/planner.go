package replica

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

// planner plans which members should lead the shards. It runs on the fleet's leader, in its term.
type planner struct {
	member *fleetMember
	client coordinationclient.LeaseInterface
	wake   chan struct{} // has a buffer of one

	// refused contains the versions of the Leases of members that were not deleted because they have changed. It is used
	// only by Run.
	refused map[string]string
	// removed determines which shards of an earlier layout are not led. It is used only by Run.
	removed freeShards
	// vacant contains the times since which shards have had no standby. It is used only by Run.
	vacant map[int]time.Time

	mu       sync.Mutex // guards stepDown
	stepDown func()     // ends the term of the fleet's leader
}

const plannerName = "shard planner"

func (p *planner) setStepDown(stepDown func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stepDown = stepDown
}

// resign ends the term of the fleet's leader.
func (p *planner) resign() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stepDown()
}

// Run plans until ctx is cancelled, or until all members are configured for another number of shards and the layout has
// been removed. If the replica is shutting down, Run returns when the replica has handed over its shards, so that the
// fleet's Lease is renewed until then.
func (p *planner) Run(ctx context.Context) error {
	defer p.member.lease.cancelChange()
	p.vacant, p.removed = nil, freeShards{planner: p, seen: map[int]seenLease{}}
	p.run(ctx)
	select {
	case <-p.member.ending:
		<-p.member.handedOver
		p.leave(context.WithoutCancel(ctx))
	default:
	}
	return nil
}

func (p *planner) run(ctx context.Context) {
	if err := p.createLeases(ctx); err != nil {
		return // ctx is cancelled
	}
	tick := time.NewTicker(p.member.options.RetryPeriod)
	defer tick.Stop()
	for ctx.Err() == nil {
		snapshot := p.member.view.Snapshot()
		layout := p.member.lease.currentLayout()
		count := layout.shards
		if wanted := wantedShards(snapshot, p.member.options.Identity); wanted != 0 && wanted != count {
			p.member.log.Info("Changing the number of shards", keyShards, wanted)
			if _, err := p.removeLayout(ctx); err == nil {
				p.resign()
			}
			<-ctx.Done()
			return
		}
		p.plan(ctx, snapshot, count)
		p.removeMembers(ctx, snapshot)
		if layout.state == layoutFixed {
			p.releaseShards(ctx, snapshot, count)
		}
		select {
		case <-ctx.Done():
		case <-p.wake:
		case <-tick.C:
		}
	}
}

// wantedShards returns the number of shards that all living members are configured for, or zero. The view must contain
// this member. Otherwise, it is outdated.
func wantedShards(view *fleet.Snapshot, self string) (count int) {
	if _, known := view.Member(self); !view.Synced || !known {
		return 0
	}
	for i, m := range view.Members {
		if i > 0 && m.State.Shards != count {
			return 0
		}
		count = m.State.Shards
	}
	return count
}

// createLeases creates the Leases of all shards if this term has recorded a new layout. Otherwise, a missing Lease may
// have been deleted while the shard was led. Members would wait for a LeaseDuration before they lead the shard.
func (p *planner) createLeases(ctx context.Context) error {
	count, fresh := p.member.lease.takeFresh()
	if !fresh {
		return nil
	}
	for index := 0; index < count; {
		name := fleet.ShardLease(p.member.options.LeaseName, index)
		spec := resourcelock.LeaderElectionRecordToLeaseSpec(ptr.To(releasedRecord(0)))
		_, err := p.client.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Namespace: p.member.options.LeaseNamespace, Labels: fleetLabels(p.member.options),
			},
			Spec: spec,
		}, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) {
			index++
			continue
		}
		p.member.log.V(1).Info("Lease of a shard not created, will retry", keyLease, name, keyError, err.Error())
		if err := p.sleep(ctx); err != nil {
			return err
		}
	}
	return nil
}

// sleep waits for RetryPeriod. It returns an error if ctx is cancelled.
func (p *planner) sleep(ctx context.Context) error {
	select {
	case <-time.After(p.member.options.RetryPeriod):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// plan computes the next plan and publishes it if it has changed.
func (p *planner) plan(ctx context.Context, view *fleet.Snapshot, count int) {
	o := p.member.options
	if _, known := view.Member(o.Identity); !view.Synced || !known {
		return
	}
	if view.Plan == "" && view.Unchanged < o.RetryPeriod { // other members are starting at the same time
		return
	}
	in := plan.Input{
		Shards: count, Previous: p.member.decode(view.Plan), Holders: make([]string, count),
		// The first plan of a fleet is complete, because all members list their types anyway.
		Settled: view.Plan == "" || view.Settled,
	}
	in.Vacant = p.vacantShards(in.Previous)
	for index := range in.Holders {
		in.Holders[index] = view.Holders[index]
	}
	for _, m := range view.Members {
		member := plan.Member{
			ID: m.Identity, Node: m.State.Node, Leaving: m.State.Leaving, Flapping: m.Flapping,
			New: view.Plan != "" && m.Age < fleet.SettlePeriods*o.LeaseDuration,
		}
		if m.State.Layout == count {
			member.Warm, member.Kept = m.State.Warm, m.State.Kept
		}
		in.Members = append(in.Members, member)
	}
	next, err := plan.Next(in).Encode()
	if err != nil {
		p.member.log.Error(err, "Plan not published")
		return
	}
	if next == view.Plan {
		return
	}
	if err := p.publish(ctx, next); err != nil && ctx.Err() == nil {
		p.member.log.V(1).Info("Plan not published, will retry", keyError, err.Error())
	}
}

// vacantShards returns the shards that have had no standby for as long as it takes the fleet to settle.
func (p *planner) vacantShards(assignments plan.Plan) (shards []int) {
	vacant := map[int]time.Time{}
	for i, a := range assignments {
		if a.Standby != "" {
			continue
		}
		since, known := p.vacant[i]
		if !known {
			since = time.Now()
		}
		vacant[i] = since
		if time.Since(since) >= fleet.SettlePeriods*p.member.options.LeaseDuration {
			shards = append(shards, i)
		}
	}
	p.vacant = vacant
	return shards
}

// publish stores the plan in its Lease.
func (p *planner) publish(ctx context.Context, text string) error {
	o := p.member.options
	name := fleet.PlanLease(o.LeaseName)
	lease, err := p.client.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		lease = &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: o.LeaseNamespace, Labels: fleetLabels(o)},
		}
	} else if err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	lease = lease.DeepCopy()
	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}
	lease.Labels = fleetLabels(o)
	lease.Annotations[fleet.PlanAnnotation] = text
	lease.Spec.HolderIdentity, lease.Spec.RenewTime = &o.Identity, ptr.To(metav1.NowMicro())
	if lease.ResourceVersion == "" {
		_, err = p.client.Create(ctx, lease, metav1.CreateOptions{})
	} else {
		_, err = p.client.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write the plan: %w", err)
	}
	return nil
}

// removeMembers deletes the Leases of members that are gone. If the view is outdated, the API server rejects this.
func (p *planner) removeMembers(ctx context.Context, view *fleet.Snapshot) {
	for name, version := range view.Gone {
		if p.refused[name] == version {
			continue // the view has not changed since then
		}
		unchanged := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &version}}
		if err := p.client.Delete(ctx, name, unchanged); err == nil {
			p.member.log.Info("Member is gone", keyMember, name)
		} else if apierrors.IsConflict(err) {
			p.refused[name] = version
		}
	}
}

// announcePeriod is the interval at which the announcement of a change is sent until it has succeeded.
const announcePeriod = 100 * time.Millisecond

// releaseShards releases the Leases of shards of an earlier layout when they have expired. They are not deleted: the
// policy of package serverfence compares them with late writes.
func (p *planner) releaseShards(ctx context.Context, view *fleet.Snapshot, count int) {
	for index, holder := range view.Holders {
		if index >= count && holder != "" {
			p.releaseShard(ctx, index)
		}
	}
}

func (p *planner) releaseShard(ctx context.Context, index int) {
	name := fleet.ShardLease(p.member.options.LeaseName, index)
	lease, err := p.client.Get(ctx, name, metav1.GetOptions{})
	if err == nil && p.removed.isFree(index, lease) {
		lease = lease.DeepCopy()
		delete(lease.Annotations, lastWritesAnnotation)
		record := releasedRecord(int(ptr.Deref(lease.Spec.LeaseTransitions, 0)))
		lease.Spec = resourcelock.LeaderElectionRecordToLeaseSpec(&record)
		_, err = p.client.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil { // retried with the next plan
		p.member.log.V(1).Info("Lease of a shard not released", keyLease, name, keyError, err.Error())
	}
}

// removeLayout announces a change of the layout, and waits until no shard is led. The next release of the fleet's Lease
// then allows any replica to lead, and to record its own layout. If ctx is cancelled, removeLayout returns the Lease
// that it was waiting for.
func (p *planner) removeLayout(ctx context.Context) (lease string, err error) {
	p.member.lease.announceChange()
	for p.member.lease.currentLayout().state != layoutChanging {
		p.member.leadership.elector.wake()
		select {
		case <-time.After(announcePeriod):
		case <-ctx.Done():
			return p.member.options.LeaseName, context.Cause(ctx)
		}
	}
	free := freeShards{planner: p, seen: map[int]seenLease{}}
	count := p.member.lease.currentLayout().shards
	for index := 0; index < count; {
		if free.check(ctx, index) {
			index++
		} else if err := p.sleep(ctx); err != nil {
			return fleet.ShardLease(p.member.options.LeaseName, index), err
		}
	}
	p.member.lease.allowChange()
	return "", nil
}

// freeShards determines which shards are not led.
type freeShards struct {
	planner *planner
	seen    map[int]seenLease
}

// seenLease is a version of a Lease, and the time at which it was first observed.
type seenLease struct {
	version string
	at      time.Time
}

// check reports whether the Lease of the shard was released or has expired. A missing Lease counts as expired after
// LeaseDuration, because it may have been deleted while the shard was led.
func (f *freeShards) check(ctx context.Context, index int) bool {
	o := f.planner.member.options
	lease, err := f.planner.client.Get(ctx, fleet.ShardLease(o.LeaseName, index), metav1.GetOptions{})
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
	o := f.planner.member.options
	if isReleased(resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)) {
		return true
	}
	duration := max(o.LeaseDuration, time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0))*time.Second)
	if last, ok := f.seen[index]; ok && last.version == lease.ResourceVersion {
		return time.Since(last.at) > duration
	}
	f.seen[index] = seenLease{lease.ResourceVersion, time.Now()}
	return false
}

// leave is called when this member has ended all shards and is about to leave. If it is the fleet's leader and the last
// member, it removes the layout, so that replicas without shards can lead at once. Otherwise, they wait until the
// fleet's Lease expires. It gives up if a shard is still led by somebody, early enough for the shutdown to end in time.
func (p *planner) leave(ctx context.Context) {
	m := p.member
	left, _ := m.shutdown.left()
	ctx, cancel := context.WithTimeout(ctx, left-leaveReserve(m.options.ShutdownTimeout)/2)
	defer cancel()
	if !m.isLeader() || !p.isLast(ctx) {
		return
	}
	ctx, cancel = context.WithTimeout(ctx, m.options.LeaseDuration)
	defer cancel()
	if name, err := p.removeLayout(ctx); err != nil {
		m.options.log.Info("Number of shards not removed, replicas without shards wait until the fleet's lease expires",
			keyLease, m.options.LeaseNamespace+"/"+name, keyError, err.Error())
		m.lease.cancelChange()
	}
}

// awaitTurn is called when this member has handed over its shards and is not the fleet's leader. If all other members
// are leaving, too, nobody may be left to remove the layout. awaitTurn then waits until this member leads the fleet, or
// until another one removes the layout. It returns early enough for the shutdown to end in time.
func (p *planner) awaitTurn(ctx context.Context) {
	m := p.member
	left, _ := m.shutdown.left()
	ctx, cancel := context.WithTimeout(ctx, left-leaveReserve(m.options.ShutdownTimeout))
	defer cancel()
	for ctx.Err() == nil && !m.isLeader() && m.lease.currentLayout().state == layoutFixed && p.othersLeave() {
		m.leadership.elector.wake()
		select {
		case <-time.After(max(announcePeriod, m.options.RetryPeriod/4)):
		case <-ctx.Done():
		}
	}
}

// othersLeave reports whether all other members are gone or leaving.
func (p *planner) othersLeave() bool {
	view := p.member.view.Snapshot()
	_, known := view.Member(p.member.options.Identity) // otherwise, the view is outdated
	if !view.Synced || !known || p.member.heartbeat.stale.Load() {
		return false
	}
	return !slices.ContainsFunc(view.Members, func(other fleet.Member) bool {
		return other.Identity != p.member.options.Identity && !other.State.Leaving
	})
}

// isLast reports whether all other members are gone or leaving. If there are others, it waits for RetryPeriod, because
// all replicas of a Deployment that is scaled to zero leave at about the same time.
func (p *planner) isLast(ctx context.Context) bool {
	m := p.member
	timeout := time.After(m.options.RetryPeriod)
	for {
		if p.othersLeave() {
			return true
		}
		select {
		case <-p.wake:
		case <-timeout:
			return false
		case <-ctx.Done():
			return false
		}
	}
}
