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
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/leasename"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
	"github.com/dynamic-controller/engine/internal/shards"
	"github.com/dynamic-controller/engine/internal/writes"
)

// shardSet contains the shards of a member. What is done for a shard is decided by a [fleet.Shard]. The set performs
// its commands, and reports to it what has ended.
type shardSet struct {
	options   Options
	log       logr.Logger
	clock     clock
	clients   *fleetClients
	owner     *Replica
	home      string // the API server of the clients; see writes.ServerOf
	lease     *fleet.Lease
	exclusion *fleet.Exclusion
	view      *fleet.View
	shutdown  *shutdown
	notify    func()                    // called when something has ended
	failed    chan error                // receives the error that ends Run; has a buffer of one
	plan      atomic.Pointer[plan.Plan] // the latest plan, with one assignment for each shard
	synced    atomic.Pointer[[]int]     // the shards that have synced, as of the last call to state

	// mu guards the fields below, including those of the shards. It is held while runnables are started, but never while
	// one runs. Only fleetMember.run changes shards, so it can read them without the lock.
	mu         sync.Mutex
	registered []namedRunnable // started for each shard that the replica leads
	warm       []namedRunnable // started for each shard that the replica keeps warm
	shards     []*shard        // of the current layout
}

// findSynced returns the shards that this replica could lead: it keeps them warm, they have synced, and neither a
// failure nor work of an earlier term prevents it from campaigning. It calls user code, so set.mu is not held.
func (set *shardSet) findSynced() (indexes []int) {
	set.mu.Lock()
	count, runnables := len(set.shards), set.warm[:len(set.warm):len(set.warm)]
	for i, s := range set.shards {
		if s.life.CanLead() && s.leadership.canCampaign() {
			indexes = append(indexes, i)
		}
	}
	set.mu.Unlock()
	return slices.DeleteFunc(indexes, func(i int) bool {
		return !hasSynced(shards.Shard{Index: i, Count: count}, runnables)
	})
}

// state returns the state of the shards that this replica publishes.
func (set *shardSet) state(now time.Time) fleet.State {
	synced := set.findSynced()
	set.synced.Store(&synced)
	return fleet.State{
		Shards: set.options.Shards, Node: set.options.NodeName, Capacity: set.options.Capacity, Layout: len(set.shards),
		Warm: synced, Kept: set.kept(now), Loads: set.loads(now),
	}
}

// loads returns the known loads of shards that this replica leads. It calls user code, so set.mu is not held.
func (set *shardSet) loads(now time.Time) (loads [][3]int) {
	set.mu.Lock()
	runnables := set.registered[:len(set.registered):len(set.registered)]
	set.mu.Unlock()
	for i, s := range set.shards { // only run changes shards
		if !s.isLeading() {
			continue
		}
		if s.meter.IsDue(now, set.options.LeaseDuration) {
			usage, known := usageOf(shards.Shard{Index: i, Count: len(set.shards)}, runnables)
			s.meter.Measure(now, usage, known)
		}
		if load := s.meter.Load(); load != (plan.Load{}) {
			loads = append(loads, [3]int{i, load.Work, load.Objects})
		}
	}
	return loads
}

// kept returns the shards that this replica leads and that cannot be moved now.
func (set *shardSet) kept(now time.Time) (indexes []int) {
	for i, s := range set.shards { // only run changes shards
		if s.life.IsKept(now) && s.isLeading() {
			indexes = append(indexes, i)
		}
	}
	return indexes
}

// perform performs what each shard decides.
func (set *shardSet) perform(ctx context.Context, snapshot *fleet.Snapshot, layout fleet.Layout) {
	set.mu.Lock()
	defer set.mu.Unlock()
	now := time.Now()
	for _, s := range set.shards {
		set.fail(s.collect(now))
	}
	set.followLayoutLocked(layout)
	if layout.IsRecorded() && layout.Shards != len(set.shards) { // those of an earlier layout are ending
		layout.State = fleet.LayoutUnknown
	}
	assignments := snapshot.Assignments(set.log)
	if len(assignments) != len(set.shards) || layout.State != fleet.LayoutFixed {
		assignments = make(plan.Plan, len(set.shards))
	}
	set.plan.Store(&assignments)
	for i, s := range set.shards {
		facts := fleet.Facts{
			Now: now, Self: set.options.Identity, Layout: layout, ExclusionLost: set.exclusion.Check(),
			Assignment: assignments[i], Fleet: snapshot, Leading: s.isLeading(),
		}
		for _, command := range s.life.Step(facts) {
			set.doLocked(ctx, s, command, facts)
		}
	}
}

// doLocked performs a command.
func (set *shardSet) doLocked(ctx context.Context, s *shard, command fleet.Command, facts fleet.Facts) {
	of := shards.Shard{Index: s.life.Index(), Count: len(set.shards)}
	switch command {
	case fleet.LoseTerm:
		s.lose(facts.ExclusionLost)
	case fleet.StartWarming:
		s.startWarming(ctx, of, set.warm, set.notify)
	case fleet.StopWarming:
		s.warmth.stop(errCooledDown)
	case fleet.StartCampaign:
		s.meter = fleet.NewMeter(facts.Assignment.Load)
		s.startCampaign(ctx, of, set.notify)
	case fleet.StopCampaign:
		s.campaign.stop()
	case fleet.StartDrain:
		s.drain = startDrain(ctx, of, set.registered, drainPeriods*set.options.RetryPeriod, set.notify)
	case fleet.CancelDrain:
		s.drain.cancel()
	case fleet.Resume:
		s.drain.resume()
		s.drain = nil
	case fleet.RequestLease:
		s.leadership.elector.wake()
	}
}

// fail ends Run with the error unless it is nil.
func (set *shardSet) fail(err error) {
	if err == nil {
		return
	}
	select {
	case set.failed <- err:
	default:
	}
}

// followLayoutLocked replaces the shards when another layout is recorded and nothing of the old one is running.
func (set *shardSet) followLayoutLocked(layout fleet.Layout) {
	if layout.State != fleet.LayoutFixed || layout.Shards == len(set.shards) {
		return
	}
	if slices.ContainsFunc(set.shards, func(s *shard) bool { return !s.life.IsIdle() }) {
		for _, s := range set.shards { // a term exists only if somebody has replaced the layout by force
			s.lose(fmt.Errorf("the fleet's lease %s", layout))
		}
		return
	}
	set.log.Info("Number of shards observed", keyShards, layout.Shards)
	set.view.ForgetCrashes()
	var left []leftWork // by shards of the former layout, whose types can be in any shard now
	var until time.Time
	for _, s := range set.shards {
		work, end := s.leadership.left.get()
		left = append(left, work...)
		if end.After(until) {
			until = end
		}
	}
	set.shards = make([]*shard, layout.Shards)
	for i := range set.shards {
		set.shards[i] = set.newShard(i, layout.Shards)
		set.shards[i].leadership.left.set(left, until)
	}
}

// expected returns the planned leader of a shard if it is ready to lead, and an empty string otherwise.
func (set *shardSet) expected(index int) string {
	assignments := *set.plan.Load() // set.mu is not taken, because run can hold it while it waits for this goroutine
	if index >= len(assignments) || !set.view.Snapshot().IsReady(assignments[index].Leader, index, len(assignments)) {
		return ""
	}
	return assignments[index].Leader
}

// register adds a runnable for the shards that this replica leads.
func (set *shardSet) register(n namedRunnable) {
	set.mu.Lock()
	defer set.mu.Unlock()
	set.registered = append(set.registered, n)
	for _, s := range set.shards {
		s.leadership.register(n)
	}
}

// registerWarm adds a runnable for the shards that this replica keeps warm.
func (set *shardSet) registerWarm(n namedRunnable) {
	set.mu.Lock()
	defer set.mu.Unlock()
	set.warm = append(set.warm, n)
	for _, s := range set.shards {
		if s.warmth != nil {
			s.warmth.group.start(n)
		}
	}
}

// has reports whether a runnable with the name is registered.
func (set *shardSet) has(name string) bool {
	set.mu.Lock()
	defer set.mu.Unlock()
	return contains(set.registered, name) || contains(set.warm, name)
}

// stopCampaigns waits until the runnables of all shards have returned, and their Leases were released. The context of
// the campaigns must be cancelled. It does not wait longer than the shutdown allows.
func (set *shardSet) stopCampaigns() error {
	var result error
	for _, s := range set.shards {
		if c := s.campaign; c != nil {
			<-c.done // limited by the leadership
			result = errors.Join(result, c.err)
		}
	}
	return result
}

// stopWarming stops the runnables of warm shards, and waits until they have returned. It does not wait longer than the
// shutdown allows.
func (set *shardSet) stopWarming() error {
	var result error
	set.mu.Lock()
	for _, s := range set.shards {
		if s.warmth != nil && s.warmth.stoppedAt.IsZero() {
			s.warmth.stop(errShutdown)
		}
	}
	set.mu.Unlock()
	remaining, _ := set.shutdown.remaining()
	deadline := time.After(remaining)
	for _, s := range set.shards {
		if s.drain != nil { // its context is cancelled
			select {
			case <-s.drain.returned:
				s.drain.end()
			case <-deadline:
				return errors.Join(result, fmt.Errorf("the drain of shard %d has not returned in time", s.life.Index()))
			}
		}
	}
	for _, s := range set.shards {
		if s.warmth == nil {
			continue
		}
		select {
		case <-s.warmth.group.joined:
			errs, _ := s.warmth.group.exitErrors()
			result = errors.Join(result, errs)
		case <-deadline:
			return errors.Join(result, fmt.Errorf("runnables of warm shard %d have not returned in time: %s",
				s.life.Index(), s.warmth.group.remaining()))
		}
	}
	select {
	case err := <-set.failed:
		result = errors.Join(result, err)
	default:
	}
	return result
}

// status describes the shards.
func (set *shardSet) status() []ShardStatus {
	view, warm, planned := set.view.Snapshot(), *set.synced.Load(), *set.plan.Load()
	set.mu.Lock()
	defer set.mu.Unlock()
	all := make([]ShardStatus, len(set.shards))
	for i, s := range set.shards {
		all[i].Leader, all[i].Warm = view.Holders[i], slices.Contains(warm, i)
		if i < len(planned) {
			all[i].Unled = string(planned[i].Unled)
		}
		if t := s.leadership.fence.latest(); t != nil {
			all[i].Leading, all[i].Term = t.check() == nil, t.number
		}
	}
	return all
}

// hung returns the names of runnables of warm shards that were stopped more than the given time ago.
func (set *shardSet) hung(limit time.Duration) string {
	set.mu.Lock()
	defer set.mu.Unlock()
	for _, s := range set.shards {
		if w := s.warmth; w != nil && !w.stoppedAt.IsZero() && time.Since(w.stoppedAt) > limit {
			return w.group.remaining()
		}
	}
	return ""
}

// leaderships returns the leaderships of all shards.
func (set *shardSet) leaderships() (all []*leadership) {
	set.mu.Lock()
	defer set.mu.Unlock()
	for _, s := range set.shards {
		all = append(all, s.leadership)
	}
	return all
}

// newShard returns a shard of a layout.
func (set *shardSet) newShard(index, count int) *shard {
	o := set.options
	o.LeaseName = leasename.Shard(set.options.LeaseName, index)
	log := set.options.log.WithValues(keyLease, o.LeaseNamespace+"/"+o.LeaseName, keyShard, index)
	ledger := &writes.Ledger{Server: set.home}
	l := &leadership{
		options: o, log: log,
		fence: &fence{
			clock: set.clock, condition: set.exclusion.Check, owner: set.owner, ledger: ledger,
			lease: o.LeaseNamespace + "/" + o.LeaseName, holder: o.Identity,
		},
		shutdown:   &shutdown{timeout: o.ShutdownTimeout, within: set.shutdown, reserve: leaveReserve(o.ShutdownTimeout)},
		registered: slices.Clone(set.registered), onNewLeader: func(string) {},
		maxBackoff: maxBackoff, replaceable: true,
	}
	leases := noteIn(set.clients.requests, o, log, ledger)
	e := newElector(o, election.Shard, leaseOf(leases, set.options, o.LeaseName), set.clock)
	e.log, e.connections = log.V(1), set.clients.connections
	e.confirm = func(ctx context.Context) error { return set.lease.Confirm(ctx, count) }
	e.expected = func() string { return set.expected(index) }
	l.elector = e
	return &shard{life: fleet.NewShard(index, o.LeaseDuration), leadership: l}
}
