package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/election"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/fleet"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
	"github.com/dynamic-controller/engine/internal/shards"
	"github.com/dynamic-controller/engine/internal/writes"
)

// fleetMember runs the shards of a replica. It follows the plan: it keeps shards warm, campaigns for them, and steps
// down from them. The plan is advice. Which replica leads a shard is decided by the shard's Lease alone.
type fleetMember struct {
	options    Options
	log        logr.Logger
	clock      clock
	clients    *fleetClients
	home       string // the API server of the clients; see writes.ServerOf
	lease      *fleetLease
	leadership *leadership // of the fleet's Lease
	keep       *keep
	view       *fleet.View
	self       *memberLease
	shutdown   *shutdown
	planner    *planner
	wake       chan struct{}             // has a buffer of one
	ending     chan struct{}             // closed when Run begins to end
	handedOver chan struct{}             // closed when all shards have been handed over after that
	failed     chan error                // receives the error that ends Run; has a buffer of one
	plan       atomic.Pointer[plan.Plan] // the latest plan, with one assignment for each shard
	published  string                    // the state that was published last; used only by run
	synced     atomic.Pointer[[]int]     // the shards that have synced, as of the last step
	readiness  readiness
	heartbeat  heartbeat
	resigned   time.Time // when this member last resigned as the leader of the fleet

	// mu guards the fields below, including those of the shards. It is held while runnables are started, but never while
	// one runs. Only run changes shards, so run can read them without the lock.
	mu         sync.Mutex
	registered []namedRunnable // started for each shard that the replica leads
	warm       []namedRunnable // started for each shard that the replica keeps warm
	shards     []*shard        // of the current layout
}

func newFleetMember(r *Replica, lease *fleetLease, clients *fleetClients, home string) *fleetMember {
	o := r.options
	m := &fleetMember{
		options: o, log: r.leadership.log, clock: lease.keep.clock, clients: clients, lease: lease, keep: lease.keep,
		leadership: r.leadership, shutdown: r.shutdown, wake: make(chan struct{}, 1), failed: make(chan error, 1),
		ending: make(chan struct{}), handedOver: make(chan struct{}),
		home: home,
		self: &memberLease{
			options: o, client: clients.requests.Leases(o.LeaseNamespace), state: make(chan fleet.State, 1),
		},
	}
	m.planner = &planner{member: m, wake: make(chan struct{}, 1), client: m.self.client, refused: map[string]string{}}
	m.leadership.registered = append(m.leadership.registered, namedRunnable{plannerName, m.planner})
	m.plan.Store(&plan.Plan{})
	m.synced.Store(&[]int{})
	lease.changed = m.notify
	m.view = fleet.NewView(o.LeaseName, o.LeaseDuration, m.notify)
	return m
}

// notify makes run look at the fleet again. It does not block.
func (m *fleetMember) notify() {
	for _, wake := range []chan struct{}{m.wake, m.planner.wake} {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
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
	background.Go(func() { m.view.Run(lasting, m.log.V(1), m.clients.watches.Leases(m.options.LeaseNamespace)) })
	background.Go(func() { m.self.run(lasting) })

	leading, endLeading := context.WithCancelCause(lasting)
	defer endLeading(nil)
	led := make(chan error, 1)
	go func() { led <- m.lead(leading) }()

	sharding, endSharding := context.WithCancelCause(ctx)
	defer endSharding(nil)
	ended, err := m.follow(sharding, led)
	m.shutdown.begin()
	close(m.ending)
	endSharding(errShutdown)
	cause := errors.Join(context.Cause(ctx), err)
	if m.isLeader() {
		endLeading(cause) // the planner returns when the shards have been handed over
	}
	err = errors.Join(err, m.stopCampaigns())
	close(m.handedOver)
	if !ended {
		m.planner.awaitTurn(lasting)
		endLeading(cause)
	}
	err = errors.Join(err, m.stopWarming())
	if !ended {
		err = errors.Join(err, <-led)
	}
	return err
}

// isLeader reports whether this member is the leader of the fleet.
func (m *fleetMember) isLeader() bool {
	t := m.leadership.fence.latest()
	return t != nil && t.check() == nil
}

// lead takes part in the election of the fleet's leader until ctx is cancelled or a policy ends Run.
func (m *fleetMember) lead(ctx context.Context) error {
	for {
		stepDown := make(chan struct{})
		m.planner.setStepDown(sync.OnceFunc(func() { close(stepDown) }))
		m.leadership.stepDown = stepDown
		err := m.leadership.run(ctx)
		if err != nil || !m.leadership.isSteppingDown() || ctx.Err() != nil {
			return err
		}
		m.lease.endChange()
	}
}

// resignIfStale ends the term of the fleet's leader if it observes nothing. If no other member acquires the Lease, this
// one leads again, and does not resign for some time.
func (m *fleetMember) resignIfStale() {
	if !m.heartbeat.stale.Load() || !m.isLeader() || time.Since(m.resigned) < keepFactor*m.options.LeaseDuration {
		return
	}
	m.resigned = time.Now()
	m.log.Info("Stepping down as the leader of the fleet", keyCause, errStale.Error())
	m.planner.resign()
}

// follow follows the plan until ctx is cancelled, or a runnable or the leadership of the fleet ends Run. It reports
// whether the latter has ended.
func (m *fleetMember) follow(ctx context.Context, led <-chan error) (ended bool, err error) {
	tick := time.NewTicker(m.options.RetryPeriod / 2)
	defer tick.Stop()
	for {
		m.step(ctx)
		select {
		case <-ctx.Done():
			return false, nil
		case err := <-led:
			return true, err
		case err := <-m.failed:
			return false, err
		case <-m.wake:
		case <-tick.C:
		}
	}
}

// step follows the plan, and publishes the state of this replica.
func (m *fleetMember) step(ctx context.Context) {
	snapshot := m.view.Snapshot()
	layout := m.lease.currentLayout()
	m.heartbeat.check(m.options, m.view, m.self.renewedAt())
	m.resignIfStale()
	m.perform(ctx, snapshot, layout)
	synced := m.findSynced()
	m.synced.Store(&synced)
	m.readiness.observe(m.options, layout, snapshot, *m.plan.Load(), synced)
	m.publish(fleet.State{
		Shards: m.options.Shards, Node: m.options.NodeName, Layout: len(m.shards), Warm: synced, Kept: m.kept(),
	})
}

// findSynced returns the shards that this replica could lead: it keeps them warm, they have synced, and neither a
// failure nor work of an earlier term prevents it from campaigning. It calls user code, so m.mu is not held.
func (m *fleetMember) findSynced() (indexes []int) {
	m.mu.Lock()
	count, runnables := len(m.shards), m.warm[:len(m.warm):len(m.warm)]
	for i, s := range m.shards {
		if s.warmth != nil && !s.warmth.stopping && s.leadership.canCampaign() {
			indexes = append(indexes, i)
		}
	}
	m.mu.Unlock()
	return slices.DeleteFunc(indexes, func(i int) bool {
		return !hasSynced(shards.Shard{Index: i, Count: count}, runnables)
	})
}

// kept returns the shards that this replica leads and that cannot be moved now.
func (m *fleetMember) kept() (indexes []int) {
	for i, s := range m.shards { // only run changes shards
		if s.isKept() && s.isLeading() {
			indexes = append(indexes, i)
		}
	}
	return indexes
}

// perform compares what the replica does with what the plan says, and starts and ends campaigns and warm shards.
func (m *fleetMember) perform(ctx context.Context, snapshot *fleet.Snapshot, layout layout) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.collectLocked()
	m.followLayoutLocked(layout)
	assignments := m.decode(snapshot.Plan)
	if layout.shards != len(m.shards) { // those of an earlier layout are ending
		layout.state = layoutUnknown
	}
	if len(assignments) != len(m.shards) || layout.state != layoutFixed {
		assignments = make(plan.Plan, len(m.shards))
	}
	m.plan.Store(&assignments)
	for i, s := range m.shards {
		m.stepShardLocked(ctx, s, m.orderLocked(s, assignments[i], snapshot, layout))
	}
}

// decode returns a plan. A plan that is missing or invalid has no assignments.
func (m *fleetMember) decode(text string) plan.Plan {
	if text == "" {
		return nil
	}
	assignments, err := plan.Decode(text)
	if err != nil {
		m.log.V(1).Info("Plan ignored", keyError, err.Error())
	}
	return assignments
}

// publish publishes the state if it has changed.
func (m *fleetMember) publish(state fleet.State) {
	if text := state.Encode(); text != m.published {
		m.published = text
		m.self.publish(state)
	}
}

func (m *fleetMember) shard(s *shard) shards.Shard {
	return shards.Shard{Index: s.index, Count: len(m.shards)}
}

// order is what a replica should do for a shard.
type order struct {
	warm, campaign bool
	move           bool  // the campaign should end because another replica is to lead
	expected       bool  // the shard's Lease was released, and this replica should acquire it
	lost           error // why the replica must stop leading at once, or nil
}

func (m *fleetMember) orderLocked(s *shard, a plan.Assignment, view *fleet.Snapshot, layout layout) order {
	self := m.options.Identity
	copied := a.Leader == self || a.Standby == self
	o := order{warm: copied || a.Warming == self, campaign: copied}
	if layout.state == layoutFixed && s.adopts(m.options, a, view, layout.shards) {
		o = order{warm: true, campaign: true}
	}
	switch {
	case layout.state == layoutNone:
		return order{lost: m.keep.check()}
	case layout.state != layoutFixed:
		return order{}
	case m.keep.check() != nil:
		o.campaign = false
		o.lost = m.keep.check()
	case s.isLeading():
		o.move = a.From == self && isReady(view, a.Leader, s.index, layout.shards)
		o.campaign, o.warm = !o.move, true
	}
	holder, known := view.Holders[s.index]
	o.expected = a.Leader == self && known && holder == ""
	return o
}

// isReady reports whether the member is alive and keeps the shard warm.
func isReady(view *fleet.Snapshot, identity string, index, count int) bool {
	member, ok := view.Member(identity)
	return ok && !member.State.Leaving && member.State.Layout == count && slices.Contains(member.State.Warm, index)
}

// stepShardLocked performs an order.
func (m *fleetMember) stepShardLocked(ctx context.Context, s *shard, o order) {
	if o.lost != nil {
		s.lose(o.lost)
	}
	switch warm := o.warm || s.campaign != nil; { // until the runnables of the term have returned
	case s.warmth == nil && warm:
		s.startWarming(ctx, m.shard(s), m.warm, m.notify)
	case s.warmth != nil && !warm && !s.warmth.stopping:
		s.warmth.stop(errCooledDown)
	}
	if s.campaign == nil || !o.move && !s.campaign.stopping {
		s.endDrain()
	}
	switch warm := s.warmth != nil && !s.warmth.stopping; {
	case s.campaign == nil && o.campaign && warm && s.drain == nil:
		s.startCampaign(ctx, m.shard(s), m.notify)
	case s.campaign == nil || o.campaign || s.campaign.stopping:
	case o.move && !s.canMove(ctx, m.shard(s), m.options, m.registered, m.notify): // keep leading
	default:
		s.campaign.stopping = true
		s.campaign.stop()
	}
	if o.expected && s.campaign != nil && !s.isLeading() {
		s.leadership.elector.wake()
	}
}

// collectLocked records the ends of campaigns and of warm shards, and reports failures.
func (m *fleetMember) collectLocked() {
	for _, s := range m.shards {
		if c := s.campaign; c != nil {
			select {
			case <-c.done:
				s.campaign = nil
				m.fail(c.err)
			default:
			}
		}
		if w := s.warmth; w != nil {
			select {
			case err := <-w.group.failed:
				m.fail(err)
				w.stop(err)
			case <-w.group.joined:
				errs, _ := w.group.exitErrors()
				m.fail(errs)
				s.warmth = nil
			default:
			}
		}
	}
}

// fail ends Run with the error unless it is nil.
func (m *fleetMember) fail(err error) {
	if err == nil {
		return
	}
	select {
	case m.failed <- err:
	default:
	}
}

// followLayoutLocked replaces the shards when another layout is recorded and nothing of the old one is running.
func (m *fleetMember) followLayoutLocked(layout layout) {
	if layout.state != layoutFixed || layout.shards == len(m.shards) {
		return
	}
	if slices.ContainsFunc(m.shards, func(s *shard) bool { return s.campaign != nil || s.warmth != nil }) {
		for _, s := range m.shards { // a term exists only if somebody has replaced the layout by force
			s.lose(fmt.Errorf("the fleet's lease %s", layout))
		}
		return
	}
	m.log.Info("Number of shards observed", keyShards, layout.shards)
	var left []leftWork // by shards of the former layout, whose types can be in any shard now
	var until time.Time
	for _, s := range m.shards {
		work, end := s.leadership.left.get()
		left = append(left, work...)
		if end.After(until) {
			until = end
		}
	}
	m.shards = make([]*shard, layout.shards)
	for i := range m.shards {
		m.shards[i] = m.newShard(i, layout.shards)
		m.shards[i].leadership.left.set(left, until)
	}
}

func (m *fleetMember) newShard(index, count int) *shard {
	o := m.options
	o.LeaseName = fleet.ShardLease(m.options.LeaseName, index)
	log := m.options.log.WithValues(keyLease, o.LeaseNamespace+"/"+o.LeaseName, keyShard, index)
	s := &shard{index: index}
	ledger := &writes.Ledger{Server: m.home}
	s.leadership = &leadership{
		options: o, log: log, fence: &fence{
			clock: m.clock, keep: m.keep, member: m, ledger: ledger,
			lease: o.LeaseNamespace + "/" + o.LeaseName, holder: o.Identity,
		},
		shutdown:   &shutdown{timeout: o.ShutdownTimeout, within: m.shutdown},
		registered: slices.Clone(m.registered), onNewLeader: func(string) {},
		maxBackoff: maxBackoff, isShard: true,
	}
	leases := noteIn(m.clients.requests, o, log, ledger)
	e := newElector(o, election.Shard, leaseOf(leases, m.options, o.LeaseName), m.clock)
	e.log, e.connections = log.V(1), m.clients.connections
	e.confirm, e.expected = m.layoutCheck(count).verify, func() string { return m.expected(index) }
	s.leadership.elector = e
	return s
}

// expected returns the planned leader of a shard if it is ready to lead, and an empty string otherwise.
func (m *fleetMember) expected(index int) string {
	assignments := *m.plan.Load() // m.mu is not taken, because run can hold it while it waits for this goroutine
	if index >= len(assignments) || !isReady(m.view.Snapshot(), assignments[index].Leader, index, len(assignments)) {
		return ""
	}
	return assignments[index].Leader
}

// stopCampaigns waits until the runnables of all shards have returned, and their Leases were released. The context of
// the campaigns must be cancelled. It does not wait longer than the shutdown allows.
func (m *fleetMember) stopCampaigns() error {
	m.publish(fleet.State{Shards: m.options.Shards, Leaving: true})
	var result error
	for _, s := range m.shards {
		if c := s.campaign; c != nil {
			<-c.done // limited by the leadership
			result = errors.Join(result, c.err)
		}
	}
	return result
}

// stopWarming stops the runnables of warm shards, and waits until they have returned. It does not wait longer than the
// shutdown allows.
func (m *fleetMember) stopWarming() error {
	var result error
	for _, s := range m.shards {
		if s.warmth != nil && !s.warmth.stopping {
			s.warmth.stop(errShutdown)
		}
	}
	remaining, _ := m.shutdown.remaining()
	deadline := time.After(remaining)
	for _, s := range m.shards {
		if s.drain != nil { // its context is cancelled
			select {
			case <-s.drain.returned:
				s.endDrain()
			case <-deadline:
				return errors.Join(result, fmt.Errorf("the drain of shard %d has not returned in time", s.index))
			}
		}
	}
	for _, s := range m.shards {
		if s.warmth == nil {
			continue
		}
		select {
		case <-s.warmth.group.joined:
			errs, _ := s.warmth.group.exitErrors()
			result = errors.Join(result, errs)
		case <-deadline:
			return errors.Join(result, fmt.Errorf("runnables of warm shard %d have not returned in time: %s",
				s.index, s.warmth.group.remaining()))
		}
	}
	select {
	case err := <-m.failed:
		result = errors.Join(result, err)
	default:
	}
	return result
}

// register adds a runnable for the shards that this replica leads.
func (m *fleetMember) register(n namedRunnable) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.registered = append(m.registered, n)
	for _, s := range m.shards {
		s.leadership.register(n)
	}
}

// registerWarm adds a runnable for the shards that this replica keeps warm.
func (m *fleetMember) registerWarm(n namedRunnable) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.warm = append(m.warm, n)
	for _, s := range m.shards {
		if s.warmth != nil {
			s.warmth.group.start(n)
		}
	}
}

// has reports whether a runnable with the name is registered. A nil member has none.
func (m *fleetMember) has(name string) bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return contains(m.registered, name) || contains(m.warm, name)
}

// termOf returns the term that ctx carries, if it is a current term of this replica.
func (m *fleetMember) termOf(ctx context.Context) (*term, error) {
	carried, ok := ctx.Value(termKey{}).(*term)
	if !ok || carried.of != m.leadership.fence && carried.of.member != m {
		return nil, notLeading(errors.New("the context of the request carries no term of this replica"))
	}
	return carried.of.termOf(ctx)
}

// status describes the shards.
func (m *fleetMember) status() []ShardStatus {
	view, warm := m.view.Snapshot(), *m.synced.Load()
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]ShardStatus, len(m.shards))
	for i, s := range m.shards {
		all[i].Leader, all[i].Warm = view.Holders[i], slices.Contains(warm, i)
		if t := s.leadership.fence.latest(); t != nil {
			all[i].Leading, all[i].Term = t.check() == nil, t.number
		}
	}
	return all
}

// hung returns the names of runnables of warm shards that were stopped more than the given time ago.
func (m *fleetMember) hung(limit time.Duration) string {
	if m == nil {
		return ""
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.shards {
		if w := s.warmth; w != nil && w.stopping && time.Since(w.stoppedAt) > limit {
			return w.group.remaining()
		}
	}
	return ""
}

// leaderships returns the leaderships of all shards.
func (m *fleetMember) leaderships() (all []*leadership) {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.shards {
		all = append(all, s.leadership)
	}
	return all
}
