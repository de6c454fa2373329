package replica

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/election"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

// fleetMember is a replica of a fleet. It observes the fleet, follows the plan, and publishes its own state. The plan
// is advice. Which replica leads a shard is decided by the shard's Lease alone.
type fleetMember struct {
	config     fleet.Config
	log        logr.Logger
	clients    *fleetClients
	lease      *fleet.Lease
	view       *fleet.View
	membership *fleet.Membership
	heartbeat  fleet.Heartbeat
	readiness  fleet.Readiness
	leader     *fleetLeader
	shards     *shardSet
	shutdown   *shutdown
	wake       chan struct{} // has a buffer of one
}

// joinFleet makes the replica a member of a fleet. The given lease is the one of the fleet.
func (r *Replica) joinFleet(lease resourcelock.Interface, clients *fleetClients, clock clock, home string) {
	r.member = newFleetMember(r, lease, clients, clock, home)
	r.gate, r.serve = r.member, r.member.run
	r.leadership.maxBackoff = min(maxBackoff, r.options.LeaseDuration) // the shards depend on the fleet's Lease
	r.leadership.elector = newElector(r.options, election.Fleet, r.member.lease, clock)
	r.leadership.elector.expected = r.member.heartbeat.Expected
}

// newFleetMember returns the member of a replica. The given lease is the one of the fleet.
func newFleetMember(
	r *Replica, lease resourcelock.Interface, clients *fleetClients, clock clock, home string,
) *fleetMember {
	o := r.options
	m := &fleetMember{
		config: fleet.Config{
			Name: o.LeaseName, Namespace: o.LeaseNamespace, Identity: o.Identity, Labels: o.Labels, Shards: o.Shards,
			LeaseDuration: o.LeaseDuration, RetryPeriod: o.RetryPeriod, RequestTimeout: requestTimeout(o),
			Client: clients.requests.Leases(o.LeaseNamespace), Log: r.leadership.log,
		},
		log: r.leadership.log, clients: clients, shutdown: r.shutdown, wake: make(chan struct{}, 1),
	}
	exclusion := fleet.NewExclusion(clock.now)
	m.lease = fleet.NewLease(lease, m.config, exclusion, m.notify)
	m.view = fleet.NewView(o.LeaseName, o.LeaseDuration, m.notify)
	var errs leaseErrors
	m.membership = fleet.NewMembership(m.config, func(verb string, err error) { _ = errs.record(o.log, verb, err) })
	m.leader = &fleetLeader{
		config: m.config, log: o.log, leadership: r.leadership, lease: m.lease, view: m.view, heartbeat: &m.heartbeat,
		planner:  fleet.NewPlanner(m.config, m.view, m.lease, func() { r.leadership.elector.wake() }),
		shutdown: r.shutdown, wake: m.wake, ending: make(chan struct{}), handedOver: make(chan struct{}),
	}
	r.leadership.registered = append(r.leadership.registered, namedRunnable{plannerName, RunFunc(m.leader.plan)})
	m.shards = &shardSet{
		options: o, log: m.log, clock: clock, clients: clients, owner: r, home: home, lease: m.lease, exclusion: exclusion,
		view: m.view, shutdown: r.shutdown, notify: m.notify, failed: make(chan error, 1),
	}
	m.shards.plan.Store(&plan.Plan{})
	m.shards.synced.Store(&[]int{})
	return m
}

// notify makes run look at the fleet again. It does not block.
func (m *fleetMember) notify() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
	m.leader.planner.Notify()
}

// run takes part in the fleet until ctx is cancelled or a policy ends Run. Then it hands over its shards, leaves the
// election of the fleet's leader, and returns when everything that it started has ended.
func (m *fleetMember) run(ctx context.Context) error {
	if ctx.Err() != nil {
		return nil
	}
	defer m.clients.connections.close()
	var background sync.WaitGroup
	defer background.Wait()
	lasting, cancel := context.WithCancelCause(context.WithoutCancel(ctx)) // until the shards have been handed over
	defer cancel(nil)
	background.Go(func() { m.view.Run(lasting, m.log.V(1), m.clients.watches.Leases(m.config.Namespace)) })
	background.Go(func() { m.membership.Run(lasting) })

	leading, endLeading := context.WithCancelCause(lasting)
	defer endLeading(nil)
	led := make(chan error, 1)
	go func() { led <- m.leader.lead(leading) }()

	sharding, endSharding := context.WithCancelCause(ctx)
	defer endSharding(nil)
	ended, err := m.follow(sharding, led)
	m.shutdown.begin()
	close(m.leader.ending)
	endSharding(errShutdown)
	cause := errors.Join(context.Cause(ctx), err)
	if m.leader.isLeader() {
		endLeading(cause) // the planner returns when the shards have been handed over
	}
	m.membership.Publish(fleet.State{Shards: m.config.Shards, Leaving: true})
	err = errors.Join(err, m.shards.stopCampaigns())
	close(m.leader.handedOver)
	if !ended {
		m.leader.awaitTurn(lasting)
		endLeading(cause)
	}
	err = errors.Join(err, m.shards.stopWarming())
	if !ended {
		err = errors.Join(err, <-led)
	}
	return err
}

// follow follows the plan until ctx is cancelled, or a runnable or the leadership of the fleet ends Run. It reports
// whether the latter has ended.
func (m *fleetMember) follow(ctx context.Context, led <-chan error) (ended bool, err error) {
	tick := time.NewTicker(m.config.RetryPeriod / 2)
	defer tick.Stop()
	for {
		m.step(ctx)
		select {
		case <-ctx.Done():
			return false, nil
		case err := <-led:
			return true, err
		case err := <-m.shards.failed:
			return false, err
		case <-m.wake:
		case <-tick.C:
		}
	}
}

// step follows the plan, and publishes the state of this replica.
func (m *fleetMember) step(ctx context.Context) {
	snapshot, layout, now := m.view.Snapshot(), m.lease.Layout(), time.Now()
	if m.heartbeat.Check(m.config, now, m.membership.RenewedAt(), m.view.Observed(m.config.Identity)) {
		m.view.Relist()
	}
	m.leader.resignIfStale(now)
	m.shards.perform(ctx, snapshot, layout)
	state := m.shards.state(now)
	m.readiness.Observe(m.config, now, layout, snapshot, *m.shards.plan.Load(), state.Warm)
	m.membership.Publish(state)
}

// termOf returns the term that ctx carries, if it is a current term of this replica.
func (m *fleetMember) termOf(ctx context.Context) (*term, error) {
	carried, ok := ctx.Value(termKey{}).(*term)
	if !ok || carried.of.owner != m.shards.owner {
		return nil, notLeading(errors.New("the context of the request carries no term of this replica"))
	}
	return carried.of.termOf(ctx)
}
