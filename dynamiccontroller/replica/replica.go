package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/election"
	"github.com/dynamic-controller/engine/internal/writes"
)

// Replica runs the per-replica and the leader-gated runnables of one process. It is safe for concurrent use.
type Replica struct {
	cfg        *rest.Config
	options    Options
	leadership *leadership
	gate       gate                            // of the fenced configs
	serve      func(ctx context.Context) error // campaigns and leads until ctx is cancelled
	member     *fleetMember                    // nil without shards
	shutdown   *shutdown

	mu         sync.Mutex // guards the fields below; never held while a runnable runs
	runState   runState
	registered []namedRunnable // per-replica
	group      *runnableGroup  // per-replica, nil before Run
}

type runState int

const (
	notStarted runState = iota
	running
	stopped
)

// New returns a Replica, which acquires the Lease with cfg. It opens no connections and starts no goroutines. The error
// lists all invalid options. New copies cfg. A zero Logger discards the log messages.
func New(log logr.Logger, cfg *rest.Config, opts Options) (*Replica, error) {
	opts.log = log
	return newReplica(cfg, opts, backend{newLease, newFleetClients}, clock{})
}

// backend creates the clients of a replica.
type backend struct {
	// lease returns a client for the lease, and its connections.
	lease func(*rest.Config, Options, *writes.Ledger) (resourcelock.Interface, *connections, error)
	fleet func(*rest.Config, Options) (*fleetClients, error)
}

func newReplica(cfg *rest.Config, opts Options, backend backend, clock clock) (*Replica, error) {
	fail := func(err error) (*Replica, error) { return nil, fmt.Errorf("create replica: %w", err) }
	o, err := opts.withDefaults()
	if cfg == nil {
		err = errors.Join(err, errors.New("cfg must not be nil"))
	}
	if err := errors.Join(err, o.validate()); err != nil {
		return fail(err)
	}
	r := &Replica{cfg: rest.CopyConfig(cfg), options: o, shutdown: &shutdown{timeout: o.ShutdownTimeout}}
	r.leadership = &leadership{
		options: o, log: o.log, fence: &fence{clock: clock, owner: r}, shutdown: r.shutdown, onNewLeader: func(string) {},
		maxBackoff: maxBackoff,
	}
	r.gate, r.serve = r.leadership.fence, r.leadership.run
	if o.OnNewLeader != nil {
		hook := newLeaderHook(o.OnNewLeader)
		r.registered = append(r.registered, namedRunnable{leaderHookName, hook})
		r.leadership.onNewLeader = hook.observe
	}
	if !o.elects() {
		return r, nil
	}
	home, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return fail(fmt.Errorf("find out the URL of the API server: %w", err))
	}
	log := o.log.WithValues(keyLease, o.LeaseNamespace+"/"+o.LeaseName)
	if !o.isSharded() { // the leader of a fleet reconciles in the terms of its shards
		r.leadership.fence.ledger = &writes.Ledger{Server: writes.ServerOf(home)}
	}
	lease, connections, err := backend.lease(cfg, o, r.leadership.fence.ledger)
	if err != nil {
		return fail(err)
	}
	r.leadership.log = log
	r.leadership.fence.lease, r.leadership.fence.holder = o.LeaseNamespace+"/"+o.LeaseName, o.Identity
	if o.isSharded() {
		clients, err := backend.fleet(cfg, o)
		if err != nil {
			return fail(err)
		}
		r.joinFleet(lease, clients, clock, writes.ServerOf(home))
	} else {
		r.leadership.elector = newElector(o, election.Single, lease, clock)
	}
	r.leadership.elector.log, r.leadership.elector.connections = log, connections
	r.leadership.elector.onNewLeader = r.leadership.onNewLeader
	return r, nil
}

// Register adds a runnable. The scope determines when it runs. If such a period has already begun, the runnable starts
// immediately.
//
// Register returns an error if the name is empty or already used by any runnable, if the runnable is nil, if the scope
// is unknown, or if Run has returned.
func (r *Replica) Register(name string, runnable Runnable, scope Scope) error {
	fail := func(err error) error { return fmt.Errorf("register runnable %q: %w", name, err) }
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case name == "":
		return fail(errors.New("the name is empty"))
	case runnable == nil:
		return fail(errors.New("the runnable is nil"))
	case r.runState == stopped:
		return fail(errStopped)
	case r.hasLocked(name):
		return fail(errors.New("the name is already used"))
	}
	n := namedRunnable{name, runnable}
	switch scope.within(r.options) {
	case ScopeReplica:
		r.registered = append(r.registered, n)
		if r.group != nil {
			r.group.start(n)
		}
	case ScopeLeader:
		r.leadership.register(n)
	case ScopeShard:
		r.member.shards.register(n)
	case ScopeWarmShard:
		r.member.shards.registerWarm(n)
	default:
		return fail(fmt.Errorf("unknown scope %d", int(scope)))
	}
	return nil
}

// hasLocked reports whether a runnable with the name is registered.
func (r *Replica) hasLocked(name string) bool {
	return contains(r.registered, name) || r.leadership.has(name) || r.member != nil && r.member.shards.has(name)
}

// RegisterWithoutLeaderElection is Register with [ScopeReplica].
func (r *Replica) RegisterWithoutLeaderElection(name string, runnable Runnable) error {
	return r.Register(name, runnable, ScopeReplica)
}

// Run starts the per-replica runnables, campaigns for the lease, and runs the leader-gated runnables while this replica
// holds the lease. It blocks until ctx is cancelled. It returns nil if everything ended cleanly.
//
// When ctx is cancelled, Run performs these steps:
//
//  1. It cancels the context of the leader-gated runnables and waits for them. Meanwhile, the lease is renewed and the
//     fence stays open.
//  2. It closes the fence and releases the lease.
//  3. It cancels the context of the per-replica runnables and waits for them.
//
// With shards, step 1 also ends the runnables of all shards, and releases the Lease of each shard once its runnables
// have returned. Then the runnables of warm shards are stopped.
//
// The steps share Options.ShutdownTimeout. Steps 2 and 3 can take one second each even if step 1 has used it up. The
// returned error lists the runnables that have not returned in time or have returned an error. If a leader-gated
// runnable is among them, the fence closes and the lease is left to expire.
//
// If a runnable fails or the lease is lost, and this ends Run according to the options, Run performs the same steps and
// returns before ctx is cancelled. If ctx is already cancelled, Run does not request the lease. A Replica runs only
// once; a second call to Run returns an error.
func (r *Replica) Run(ctx context.Context) error {
	if err := r.run(ctx); err != nil {
		return fmt.Errorf("run replica: %w", err)
	}
	return nil
}

func (r *Replica) run(ctx context.Context) error {
	perReplica, cancelPerReplica := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancelPerReplica(nil)
	group, err := r.start(perReplica)
	if err != nil {
		return err
	}
	failure, result := r.lead(ctx, group)

	r.stop()
	r.shutdown.begin()
	cancelPerReplica(errShutdown)
	group.stop()
	remaining, _ := r.shutdown.remaining()
	select {
	case <-group.joined:
	case <-time.After(remaining):
		result = errors.Join(result, fmt.Errorf("per-replica runnables have not returned in time: %s", group.remaining()))
	}
	select {
	case err := <-group.failed: // a runnable failed after lead had returned
		failure = errors.Join(failure, r.reportFailure(err))
	default:
	}
	unclean, _ := group.exitErrors()
	return errors.Join(failure, result, unclean)
}

var errShutdown = errors.New("the replica is shutting down")

// start starts the per-replica runnables.
func (r *Replica) start(ctx context.Context) (*runnableGroup, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch r.runState {
	case running:
		return nil, errRunning
	case stopped:
		return nil, errStopped
	}
	r.runState = running
	r.group = newRunnableGroup(ctx)
	for _, n := range r.registered {
		r.group.start(n)
	}
	return r.group, nil
}

// lead campaigns and leads until ctx is cancelled or a per-replica runnable fails. It returns the runnable's failure
// and the error from the campaign and the terms.
func (r *Replica) lead(ctx context.Context, perReplica *runnableGroup) (failure, result error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if r.leadership.elector != nil {
		defer r.leadership.elector.connections.close()
	}
	returned := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case err := <-perReplica.failed:
			failure = r.reportFailure(err)
			r.shutdown.begin()
			cancel(err)
		case <-returned:
		}
	})
	if r.leadership.elector != nil && ctx.Err() == nil {
		r.leadership.log.Info("Campaigning for the lease", keyIdentity, r.options.Identity)
	}
	result = r.serve(ctx)
	close(returned)
	watching.Wait()
	return failure, result
}

func (r *Replica) reportFailure(err error) error {
	r.options.log.Error(err, "Per-replica runnable failed")
	return err
}

// stop prevents further registrations.
func (r *Replica) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runState = stopped
}

// FencedConfig returns a fenced copy of the config passed to New. It is equivalent to calling Fence with that config.
func (r *Replica) FencedConfig() *rest.Config { return r.Fence(r.cfg) }

// Fence returns a copy of cfg for the clients that leader-gated runnables use to write. A write is sent only while
// this replica is certain that it leads. Otherwise it fails with [ErrNotLeading]. Reads are always sent. The config can
// differ from the one passed to New in any way: it can have other credentials or limits, or select another cluster. All
// fenced configs of a replica depend on the same lease. Fence can be called at any time.
//
// Every request with a method other than GET, HEAD and OPTIONS counts as a write, and so does every request to upgrade
// the connection. Whether the request changes anything does not matter: a POST that changes nothing, such as an access
// review or a dry run, is refused too, and a GET that has side effects, such as one through the proxy of a Service, Pod
// or Node, is sent.
//
// The replica is certain that it leads for nine tenths of LeaseDuration after it sent the last confirmed renewal,
// according to both the monotonic clock and the wall clock. Every write checks both. Other replicas wait for a full
// LeaseDuration after they observed that renewal. The difference allows for clocks that run at different rates, and for
// the time between checking the clocks and sending the write.
//
// If no renewal is confirmed within that time, the lease is lost. The contexts of the term are cancelled with
// [ErrLeaseLost], writes in flight are cancelled, and the fence stays closed until the next term. A request whose
// context carries an earlier term is refused even during the next term. During a clean shutdown the fence stays open
// until the leader-gated runnables have returned.
//
// client-go's executors for upgraded streams (remotecommand, portforward) use the connection directly. If the fence is
// closed, such a stream is refused when it begins. A stream that is already open is not closed when the fence closes.
// It ends when its own context is cancelled.
//
// Clients created from the returned config are not rate limited unless cfg sets a limit. If cfg sets neither QPS nor a
// RateLimiter, QPS is -1, because client-go's default of 5 requests per second would apply to all leader-gated
// runnables together.
//
// With shards, a write belongs to the term that its context carries: that of the shard, or that of the fleet's leader
// for runnables of [ScopeLeader]. A write whose context carries no term of this replica is refused. Clients that
// write without the context of a handler, such as event recorders, need a config that is not fenced.
func (r *Replica) Fence(cfg *rest.Config) *rest.Config { return r.fenceConfig(cfg, nil) }

// FenceOnServer is like Fence. In addition, each write carries the Lease and the identity of this replica in a form
// that the API server authenticates, so that an admission policy (see package serverfence) can reject it when another
// replica leads. The username is that of the user that cfg authenticates as, which the writes impersonate to carry
// these fields. If cfg impersonates another user, the writes impersonate that user. cfg must be for the cluster with
// the Lease.
//
// If the API server rejects a write because of the Lease, the error is [ErrNotLeading] if the term is over or is
// younger than nine tenths of LeaseDuration. An API server observes a new leader with a delay of some milliseconds, so
// in a new term, the write is first resent for up to 0.6 seconds; mutating webhooks are then called again. Later in a
// term, the error is the API server's, because then the policy is wrong or the Lease was edited. A stream that begins
// with a WebSocket returns the API server's error, too. A rejected write had no effect, except that a DeleteCollection
// can have deleted some of the objects.
//
// Without leader election, the writes carry no extra fields. The username must not be empty unless cfg impersonates a
// user.
func (r *Replica) FenceOnServer(cfg *rest.Config, username string) *rest.Config {
	return r.fenceConfig(cfg, &serverFence{username: username})
}

func (r *Replica) fenceConfig(cfg *rest.Config, server *serverFence) *rest.Config {
	return fencedConfig(r.gate, cfg, server, r.cfg.Host)
}
