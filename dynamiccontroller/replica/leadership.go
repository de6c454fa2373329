package replica

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
)

// leadership campaigns for one lease and runs the leader-gated runnables while it holds the lease. A Replica has one
// leadership, or one for each of its leases.
type leadership struct {
	options  Options
	log      logr.Logger
	fence    *fence
	elector  *elector // nil without leader election
	shutdown *shutdown
	// onNewLeader reports a new leader. It does not block.
	onNewLeader func(identity string)
	maxBackoff  time.Duration // limits the pause after a failed term
	// stepDown ends the current campaign and its term when it is closed. If it is nil, they end only with ctx. It is
	// replaced between calls to run.
	stepDown <-chan struct{}
	// backingOff reports that the last term failed, and that this replica does not campaign until a pause is over.
	backingOff atomic.Bool
	// replaceable reports that work that is left running does not matter for the liveness of the process, because it only
	// prevents this replica from leading.
	replaceable bool
	left        leftovers

	mu         sync.Mutex // guards the fields below; held while runnables are started, but never while one runs
	registered []namedRunnable
	group      *runnableGroup // the runnables of the current term, nil between terms
	stoppedAt  time.Time      // when the current term's runnables were stopped, zero if they have not been stopped
}

// register adds a runnable, and starts it immediately if there is a current term.
func (l *leadership) register(n namedRunnable) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.registered = append(l.registered, n)
	if l.group != nil {
		l.group.start(n)
	}
}

// run repeatedly campaigns and leads, until ctx is cancelled or a policy ends Run.
func (l *leadership) run(ctx context.Context) error {
	if ctx.Err() != nil {
		return nil
	}
	if l.elector == nil {
		t := l.fence.open(l.fence.clock.now(), l.options)
		l.onNewLeader(l.options.Identity)
		_, err := l.lead(ctx, t)
		return err
	}
	backoff := l.newBackoff()
	for {
		if err := l.awaitLeft(ctx); err != nil || ctx.Err() != nil || l.isSteppingDown() {
			return err
		}
		state, err := l.serveTerm(ctx)
		if ctx.Err() != nil || state.ending || err != nil && state == (leadState{}) {
			return err
		}
		if l.isSteppingDown() {
			if err != nil {
				l.log.Info("Term ended", keyCause, err.Error())
			}
			return nil
		}
		pause := wait.Jitter(l.options.RetryPeriod, jitter)
		if state.failed {
			pause = l.pauseAfterFailure(&backoff)
			l.backingOff.Store(true)
		}
		if err != nil {
			l.log.Info("Term ended, will campaign again", keyAfter, pause.String(), keyCause, err.Error())
		}
		select {
		case <-time.After(pause):
		case <-l.stepDown:
		case <-ctx.Done():
		}
		l.backingOff.Store(false)
		if ctx.Err() != nil || l.isSteppingDown() { // select can choose the timer even if ctx is cancelled
			return nil
		}
	}
}

// serveTerm campaigns until it acquires the lease, and leads until the term is over. It returns when the elector and
// the leader-gated runnables have ended. If Run is ending, serveTerm does not wait for runnables that do not return in
// time. If there was no term, it returns the zero state.
func (l *leadership) serveTerm(ctx context.Context) (state leadState, err error) {
	// The lease is renewed until the runnables have returned, also after ctx was cancelled.
	electing, stop := context.WithCancel(context.WithoutCancel(ctx))
	began, stopped := make(chan *term, 1), make(chan struct{})
	go func() {
		defer close(stopped)
		l.elector.campaign(electing, func(sent instant) *term {
			t := l.fence.open(sent, l.options)
			began <- t // does not block, because a campaign has at most one term
			return t
		})
	}()
	join := func() {
		stop()
		<-stopped
	}
	defer join()

	select {
	case t := <-began:
		state, err = l.lead(ctx, t)
		join()
	case <-l.stepDown:
		join()
		l.abandon(began)
	case <-ctx.Done():
		l.shutdown.begin()
		join()
		l.abandon(began)
	}
	l.leave(ctx)
	return state, err
}

// abandon ends a term that has begun when the campaign was to end.
func (l *leadership) abandon(began <-chan *term) {
	select {
	case t := <-began:
		t.finish()
	default:
	}
}

// leave releases the lease, if this replica holds it or may hold it. This is limited to RenewDeadline, or to the
// timeouts of its two requests if they are longer. If Run is ending, it is also limited to what remains of
// ShutdownTimeout. If the release fails, other replicas must wait until the lease expires.
func (l *leadership) leave(ctx context.Context) {
	limit := max(l.options.RenewDeadline, 2*requestTimeout(l.options))
	if remaining, ending := l.shutdown.remaining(); ending {
		limit = min(limit, remaining)
	}
	leaveCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	defer context.AfterFunc(ctx, func() { // Run can begin to shut down during the release
		l.shutdown.begin()
		remaining, _ := l.shutdown.remaining()
		time.AfterFunc(remaining, cancel)
	})()
	verb, err := l.elector.leave(leaveCtx)
	switch {
	case verb == "": // there was nothing to release
	case err == nil, apierrors.IsNotFound(err):
		l.log.V(1).Info("Lease released")
	case apierrors.IsForbidden(err):
		l.log.Error(err, "Lease not released because of a missing permission, other replicas wait until it expires",
			keyVerb, verb, keyResource, leaseResource)
	default:
		l.log.Info("Lease not released, other replicas wait until it expires", keyVerb, verb, keyError, err.Error())
	}
}

// awaitLeft waits until the work that the last term has left running has returned. This replica would otherwise acquire
// a lease that still names it, and release it at the end of the next term, while the work continues. If it is not known
// when the work returns, awaitLeft waits until another replica could have acquired the lease. It stops waiting when
// this replica steps down. If ctx is cancelled, it returns an error that names what is running.
func (l *leadership) awaitLeft(ctx context.Context) error {
	if names := l.left.known(); names != "" {
		l.log.Info("Not campaigning until the work of the last term has returned", keyRunning, names)
		defer l.log.Info("The work of the last term is no longer waited for")
	}
	return l.left.wait(ctx, l.stepDown)
}

// canCampaign reports whether nothing of the last term prevents this replica from campaigning.
func (l *leadership) canCampaign() bool {
	left, _ := l.left.get()
	return len(left) == 0 && !l.backingOff.Load()
}

func (l *leadership) isSteppingDown() bool {
	select {
	case <-l.stepDown:
		return true
	default:
		return false
	}
}

const (
	jitter     = 0.2
	maxBackoff = time.Minute
)

func (l *leadership) newBackoff() wait.Backoff {
	return wait.Backoff{Duration: 2 * l.options.RetryPeriod, Factor: 2, Jitter: jitter, Steps: 1000, Cap: l.maxBackoff}
}

// pauseAfterFailure returns the time until the next campaign after the latest term failed.
func (l *leadership) pauseAfterFailure(backoff *wait.Backoff) time.Duration {
	t := l.fence.latest()
	if time.Since(t.began) > l.maxBackoff {
		*backoff = l.newBackoff()
	}
	pause := backoff.Step()
	if t.loss() != nil {
		// If this replica reacquired the lease before another one could, stepping down would have no effect.
		pause += l.expiry()
	}
	return pause
}

// expiry returns the time from the loss of a lease until another replica acquires it, without 1.4 x RetryPeriod: the
// pauses that follow are longer. The lease names this replica until it expires. Another replica can acquire it only
// then, and does so at most 4.4 x RetryPeriod later.
func (l *leadership) expiry() time.Duration { return l.options.LeaseDuration + 3*l.options.RetryPeriod }

// setGroup starts the registered runnables in the group. Runnables that are registered later join it.
func (l *leadership) setGroup(g *runnableGroup) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.group, l.stoppedAt = g, time.Time{}
	for _, n := range l.registered {
		g.start(n)
	}
}

func (l *leadership) setStopping() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stoppedAt = time.Now()
}

func (l *leadership) clearGroup() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.group = nil
}

// hung returns the names of runnables that were stopped more than the given time ago and have not returned. This
// includes work that they have left running, unless the leadership is replaceable.
func (l *leadership) hung(limit time.Duration) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.stoppedAt.IsZero() || time.Since(l.stoppedAt) <= limit:
		return ""
	case l.group != nil:
		return l.group.remaining()
	case l.replaceable:
		return ""
	default:
		return l.left.known()
	}
}

func (l *leadership) has(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return contains(l.registered, name)
}

func contains(runnables []namedRunnable, name string) bool {
	return slices.ContainsFunc(runnables, func(n namedRunnable) bool { return n.name == name })
}
