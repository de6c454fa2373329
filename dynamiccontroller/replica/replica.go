package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Replica runs the two halves of one process of several: what every replica does, and what only the leader does. Its methods
// may be called concurrently.
type Replica struct {
	cfg     *rest.Config
	options Options
	leads   *leadership
	end     *shutdown

	mu         sync.Mutex // guards what follows; never held while something runs
	phase      phase
	registered []named // of the per-replica half
	half       *half   // nil before Run
}

type phase int

const (
	notRun phase = iota
	running
	ended
)

// New returns a replica that does nothing until Run. It opens no connection. Its error says all that is wrong with the
// options at once. cfg is copied.
func New(cfg *rest.Config, opts Options) (*Replica, error) {
	return build(cfg, opts, newLease, realClock())
}

// build is New with what tests replace.
func build(cfg *rest.Config, opts Options, lease func(*rest.Config, Options) (resourcelock.Interface, func(), error), clock clock) (*Replica, error) {
	fail := func(err error) (*Replica, error) { return nil, fmt.Errorf("make a replica: %w", err) }
	o, err := opts.withDefaults()
	if cfg == nil {
		err = errors.Join(err, errors.New("cfg must not be nil"))
	}
	if err := errors.Join(err, o.validate()); err != nil {
		return fail(err)
	}
	r := &Replica{cfg: rest.CopyConfig(cfg), options: o}
	r.end = &shutdown{timeout: o.ShutdownTimeout}
	r.leads = &leadership{options: o, log: o.Log, fence: &fence{clock: clock}, end: r.end}
	if o.elects() {
		log := o.Log.WithValues(keyLease, o.LeaseNamespace+"/"+o.LeaseName)
		inner, cut, err := lease(cfg, o)
		if err != nil {
			return fail(err)
		}
		r.leads.log = log
		r.leads.lock = &lock{Interface: inner, clock: clock, duration: o.LeaseDuration, timeout: requestTimeout(o), log: log, cut: cut}
	}
	return r, nil
}

// Register adds a runnable to the leading half: it is started with each term and ends with it. While a term lasts it is
// started at once. Its context carries the term ([Term]) and ends with a cause, which is [ErrLeaseLost] if the lease was
// lost. Names are unique over both halves; an empty or a taken one, a nil runnable, and to register after Run has ended are
// errors.
func (r *Replica) Register(name string, runnable Runnable) error {
	return r.register(name, runnable, r.leads.register)
}

// RegisterWithoutLeaderElection adds a runnable to the half that runs on every replica. It is started once, with Run, or at
// once if that runs, and ends after the leading half did. It should only read: FencedConfig refuses its writes unless this
// replica leads. Names and errors are as for Register. If it has a method HasSynced() bool, Ready waits for that.
func (r *Replica) RegisterWithoutLeaderElection(name string, runnable Runnable) error {
	return r.register(name, runnable, func(n named) {
		r.registered = append(r.registered, n)
		if r.half != nil {
			r.half.start(n)
		}
	})
}

func (r *Replica) register(name string, runnable Runnable, add func(named)) error {
	fail := func(err error) error { return fmt.Errorf("register runnable %q: %w", name, err) }
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case name == "":
		return fail(errors.New("the name is empty"))
	case runnable == nil:
		return fail(errors.New("the runnable is nil"))
	case r.phase == ended:
		return fail(errEnded)
	case r.leads.has(name) || slices.ContainsFunc(r.registered, func(n named) bool { return n.name == name }):
		return fail(errors.New("the name is taken"))
	}
	add(named{name, runnable})
	return nil
}

// Run runs both halves until ctx ends: the per-replica half at once, the leading one whenever this replica holds the lease.
//
// When ctx ends, the context of the leading half's runnables ends first; they are waited for, for at most
// Options.ShutdownTimeout, while the lease is renewed and the fence is open; then the lease is released, and the
// per-replica half ends, both in what is left of that time, and in a second each if nothing is. The error names runnables
// that did not return in time, or that returned an error. If one of the leading half did, the fence closes and the lease
// is left to expire. If ctx has ended already, no lease is asked for.
//
// Run returns before ctx ends, after the same steps, when a runnable fails or the lease is lost, if the options say so.
// The error is nil if ctx ended and everything with it as it should. A Replica runs once: a second Run is an error.
func (r *Replica) Run(ctx context.Context) error {
	fail := func(err error) error { return fmt.Errorf("run the replica: %w", err) }
	everywhere, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	h, err := r.begin(everywhere)
	if err != nil {
		return fail(err)
	}
	leading, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	finished := make(chan struct{})
	var failure error
	var watching sync.WaitGroup
	fails := func(err error) {
		r.options.Log.Error(err, "the per-replica half fails")
		failure = err
	}
	watching.Go(func() {
		select {
		case err := <-h.failed:
			fails(err)
			r.end.begin()
			stop(err)
		case <-finished:
		}
	})
	if r.leads.lock != nil && ctx.Err() == nil {
		r.leads.log.Info("campaigning", keyIdentity, r.options.Identity)
	}
	result := r.leads.run(leading)
	close(finished)
	watching.Wait()

	r.finish()
	r.end.begin()
	end(errReplicaEnds)
	h.end()
	left, _ := r.end.left()
	select {
	case <-h.joined:
	case <-time.After(left):
		result = errors.Join(result, fmt.Errorf("these have not returned after the leading half ended: %s", h.left()))
	}
	select {
	case err := <-h.failed: // while nobody watched any more
		fails(err)
	default:
	}
	unclean, _ := h.complaints()
	result = errors.Join(result, unclean)
	if err := errors.Join(failure, result); err != nil {
		return fail(err)
	}
	return nil
}

var errReplicaEnds = errors.New("the replica ends")

// begin starts the per-replica half.
func (r *Replica) begin(ctx context.Context) (*half, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch r.phase {
	case running:
		return nil, errRunning
	case ended:
		return nil, errEnded
	}
	r.phase = running
	r.half = newHalf(ctx)
	for _, n := range r.registered {
		r.half.start(n)
	}
	return r.half, nil
}

func (r *Replica) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase = ended
}

// FencedConfig returns a config for clients with which the leading half writes. Through it no write (any method but GET, HEAD
// and OPTIONS, and any request to upgrade the connection) is sent unless this replica leads and can be sure of it; it
// fails with [ErrNotLeading]. Reads always pass.
//
// It goes by the method and not by what the server makes of it. A request that changes nothing but is a POST is refused
// too: an access review, a dry run. A GET passes though it may have an effect, as one through the proxy of a service, a Pod
// or a node may.
//
// A replica is sure for LeaseDuration less a tenth since it sent the last renewal that was confirmed, on the monotonic
// clock and on the wall clock: each write looks at both. Other replicas wait for a whole LeaseDuration after they saw that
// renewal; the tenth is for clocks that do not run alike, and for what lies between the look and the wire.
//
// When that time is over the term is lost: its contexts end with [ErrLeaseLost], writes in flight are cancelled, and the
// fence stays closed until another term. A request whose context carries an earlier term is refused even then. In a clean
// end the fence stays open until the leading half's runnables have returned.
//
// A stream that client-go's own executors have upgraded (remotecommand, portforward) is refused when it begins and not cut
// when the fence closes, as they keep the connection to themselves; it ends with the context that it was given.
func (r *Replica) FencedConfig() *rest.Config { return r.leads.fence.config(r.cfg) }

// Status is where a replica stands.
type Status struct {
	Leading  bool   // whether a write would pass the fence now
	Term     int64  // the present or the last term; 0 before the first
	Leader   string // the identity in the lease when last looked at; empty if there is none, or only this replica's claim
	Identity string // this replica's
}

// Status tells where the replica stands, from what it knows and without any request.
func (r *Replica) Status() Status {
	s := Status{Identity: r.options.Identity}
	if t := r.leads.fence.latest(); t != nil {
		s.Leading, s.Term = t.check() == nil, t.number
	}
	switch {
	case r.leads.lock != nil:
		s.Leader = r.leads.lock.holder()
	case s.Leading:
		s.Leader = s.Identity
	}
	return s
}
