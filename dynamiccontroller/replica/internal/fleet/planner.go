package fleet

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/election"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/leasename"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

// Planner plans which members should lead the shards. It runs on the fleet's leader, in its term.
type Planner struct {
	config Config
	view   *View
	lease  *Lease
	renew  func()        // makes the fleet's Lease be renewed at once
	wake   chan struct{} // has a buffer of one

	// The fields below are used only by Run.

	// refused contains the versions of the Leases of members that were not deleted because they have changed.
	refused map[string]string
	// removed determines which shards of an earlier layout are not led.
	removed freeShards
	// vacant contains the times since which shards have had no standby.
	vacant map[int]time.Time
}

// NewPlanner returns a planner. The function renew makes the fleet's Lease be renewed at once. It must not block.
func NewPlanner(config Config, view *View, lease *Lease, renew func()) *Planner {
	return &Planner{
		config: config, view: view, lease: lease, renew: renew, wake: make(chan struct{}, 1), refused: map[string]string{},
	}
}

// Notify makes Run look at the fleet again. It does not block.
func (p *Planner) Notify() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run plans until ctx is cancelled. It also returns, and reports it, when all members are configured for another number
// of shards, and no shard is led any more. The member must then end its term as the leader of the fleet.
func (p *Planner) Run(ctx context.Context) (removed bool) {
	p.vacant, p.removed = nil, newFreeShards(p.config)
	if err := p.createLeases(ctx); err != nil {
		return false // ctx is cancelled
	}
	tick := time.NewTicker(p.config.RetryPeriod)
	defer tick.Stop()
	for ctx.Err() == nil {
		snapshot, layout := p.view.Snapshot(), p.lease.Layout()
		if wanted := snapshot.wantedShards(p.config.Identity); wanted != 0 && wanted != layout.Shards {
			p.config.Log.Info("Changing the number of shards", keyShards, wanted)
			_, err := p.RemoveLayout(ctx)
			return err == nil
		}
		p.plan(ctx, snapshot, layout.Shards)
		p.removeMembers(ctx, snapshot)
		if layout.State == LayoutFixed {
			p.releaseShards(ctx, snapshot, layout.Shards)
		}
		select {
		case <-ctx.Done():
		case <-p.wake:
		case <-tick.C:
		}
	}
	return false
}

// createLeases creates the Leases of all shards if this term has recorded a new layout. Otherwise, a missing Lease may
// have been deleted while the shard was led. Members would wait for a LeaseDuration before they lead the shard.
func (p *Planner) createLeases(ctx context.Context) error {
	count, fresh := p.lease.takeFresh()
	if !fresh {
		return nil
	}
	for index := 0; index < count; {
		name := leasename.Shard(p.config.Name, index)
		record := election.Record{}.Released(time.Now()).Lock()
		_, err := p.config.Client.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Namespace: p.config.Namespace, Labels: p.config.leaseLabels(),
			},
			Spec: resourcelock.LeaderElectionRecordToLeaseSpec(&record),
		}, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) {
			index++
			continue
		}
		p.config.Log.V(1).Info("Lease of a shard not created, will retry", keyName, name, keyError, err.Error())
		if err := p.sleep(ctx); err != nil {
			return err
		}
	}
	return nil
}

// sleep waits for RetryPeriod. It returns an error if ctx is cancelled.
func (p *Planner) sleep(ctx context.Context) error {
	select {
	case <-time.After(p.config.RetryPeriod):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// plan computes the next plan and publishes it if it has changed.
func (p *Planner) plan(ctx context.Context, view *Snapshot, count int) {
	if _, known := view.Member(p.config.Identity); !view.Synced || !known {
		return
	}
	if view.Plan == "" && view.Unchanged < p.config.RetryPeriod { // other members are starting at the same time
		return
	}
	in := p.input(view, view.Assignments(p.config.Log), count)
	planned := plan.Next(in)
	next, err := planned.Encode()
	if err != nil {
		p.config.Log.Error(err, "Plan not published")
		return
	}
	if next == view.Plan {
		return
	}
	if err := p.publish(ctx, next); err != nil && ctx.Err() == nil {
		p.config.Log.V(1).Info("Plan not published, will retry", keyError, err.Error())
		return
	}
	p.logUnled(in.Previous, planned)
}

// logUnled logs which shards are not led any more, and which are again.
func (p *Planner) logUnled(before, after plan.Plan) {
	for i, a := range after {
		was := plan.Unled("")
		if i < len(before) {
			was = before[i].Unled
		}
		switch {
		case a.Unled == was:
		case a.Unled != "":
			p.config.Log.Info("Shard is not led", keyShard, i, keyReason, string(a.Unled))
		default:
			p.config.Log.Info("Shard is led again", keyShard, i)
		}
	}
}

// input returns what the next plan depends on.
func (p *Planner) input(view *Snapshot, previous plan.Plan, count int) plan.Input {
	in := plan.Input{
		Shards: count, Previous: previous, Holders: make([]string, count), Vacant: p.vacantShards(previous),
		Loads: make([]plan.Load, count),
		// The first plan of a fleet is complete, because all members list their types anyway.
		Settled: view.Plan == "" || view.Settled,
	}
	for index := range in.Holders {
		in.Holders[index] = view.Holders[index]
		if view.Held[index] {
			in.Held = append(in.Held, index)
		}
	}
	for _, m := range view.Members {
		member := plan.Member{
			ID: m.Identity, Node: m.State.Node, Leaving: m.State.Leaving, Flapping: m.Flapping,
			Capacity: m.State.Capacity,
			New:      view.Plan != "" && m.Age < SettlePeriods*p.config.LeaseDuration,
		}
		if m.State.Layout == count {
			member.Warm, member.Kept = m.State.Warm, m.State.Kept
			for _, load := range m.State.Loads {
				if index := load[0]; index >= 0 && index < count && view.Holders[index] == m.Identity {
					in.Loads[index] = plan.Load{Work: load[1], Objects: load[2]}
				}
			}
		}
		in.Members = append(in.Members, member)
	}
	return in
}

// vacantShards returns the shards that have had no standby for as long as it takes the fleet to settle.
func (p *Planner) vacantShards(assignments plan.Plan) (shards []int) {
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
		if time.Since(since) >= SettlePeriods*p.config.LeaseDuration {
			shards = append(shards, i)
		}
	}
	p.vacant = vacant
	return shards
}

// publish stores the plan in its Lease.
func (p *Planner) publish(ctx context.Context, text string) error {
	c := p.config
	name := leasename.Plan(c.Name)
	lease, err := c.Client.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.Namespace}}
	} else if err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	lease = lease.DeepCopy()
	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}
	lease.Labels = c.leaseLabels()
	lease.Annotations[PlanAnnotation] = text
	lease.Spec.HolderIdentity, lease.Spec.RenewTime = &c.Identity, ptr.To(metav1.NowMicro())
	if lease.ResourceVersion == "" {
		_, err = c.Client.Create(ctx, lease, metav1.CreateOptions{})
	} else {
		_, err = c.Client.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write the plan: %w", err)
	}
	return nil
}

// removeMembers deletes the Leases of members that are gone. If the view is outdated, the API server rejects this.
func (p *Planner) removeMembers(ctx context.Context, view *Snapshot) {
	for name, version := range view.Gone {
		if p.refused[name] == version {
			continue // the view has not changed since then
		}
		unchanged := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &version}}
		if err := p.config.Client.Delete(ctx, name, unchanged); err == nil {
			p.config.Log.Info("Member is gone", keyMember, name)
		} else if apierrors.IsConflict(err) {
			p.refused[name] = version
		}
	}
}
