package replica

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"

	"github.com/dynamic-controller/engine/internal/writes"
)

// progressPeriod is the interval at which the log names the runnables that have not returned.
const progressPeriod = 10 * time.Second

// lead runs the leader-gated runnables for one term. It returns when the term is over and the runnables have returned.
// If Run is ending, lead waits at most ShutdownTimeout for the runnables. Otherwise, it waits until they return,
// because the next term must not begin while they are still running.
func (l *leadership) lead(ctx context.Context, t *term) (leadState, error) {
	r, release := l.startTerm(ctx, t)
	defer release()
	for r.state.phase != phaseDone {
		event, cause := r.wait(ctx)
		if event != eventFailure {
			select {
			case err := <-r.failed: // the failure came first, but select may have chosen another event
				r.handle(eventFailure, err)
			default:
			}
		}
		r.handle(event, cause)
	}
	l.left.set(r.group.leftRunning(), time.Now().Add(l.expiry()+2*l.options.RetryPeriod))
	return r.state, r.err
}

// termRun passes the events of one term to the state machine and performs the actions that the state machine returns. A
// channel that delivers only one event is set to nil after that event.
type termRun struct {
	leadership *leadership
	term       *term
	log        logr.Logger
	group      *runnableGroup
	cancel     context.CancelCauseFunc // cancels the runnables' context
	policy     leadPolicy
	state      leadState
	err        error // returned by Run, or logged if the replica campaigns again

	shutdown   <-chan struct{}
	stepDown   <-chan struct{}
	failed     <-chan error
	lost       <-chan struct{}
	timeout    <-chan time.Time
	progress   <-chan time.Time
	clockCheck *time.Timer
}

// startTerm starts the runnables. The caller must call release when the term is over.
func (l *leadership) startTerm(ctx context.Context, t *term) (r *termRun, release func()) {
	log := l.log.WithValues(keyTerm, t.number)
	if t.check() == nil { // otherwise the term has expired already, and no runnable is started
		log.Info("Started leading")
	}
	work, cancel := t.context(writes.WithLedger(context.WithoutCancel(ctx), t.of.ledger))
	r = &termRun{
		leadership: l, term: t, log: log, group: newRunnableGroup(work), cancel: cancel, policy: l.policy(),
		shutdown: ctx.Done(), stepDown: l.stepDown, lost: t.over, clockCheck: time.NewTimer(l.clockCheckInterval(t)),
	}
	r.failed = r.group.failed
	l.setGroup(r.group)
	return r, func() {
		r.clockCheck.Stop()
		l.clearGroup()
		cancel(nil)
	}
}

// wait returns the next event and its cause. While it waits, it checks the clocks and logs the progress of the
// shutdown.
func (r *termRun) wait(ctx context.Context) (leadEvent, error) {
	for {
		select {
		case <-r.clockCheck.C:
			if r.term.check() == nil {
				r.clockCheck.Reset(r.leadership.clockCheckInterval(r.term))
			}
		case <-r.progress:
			r.log.Info("Waiting for runnables to return", keyRunning, r.group.remaining())
		case err := <-r.failed:
			return eventFailure, err
		case <-r.shutdown:
			r.shutdown = nil
			return eventShutdown, fmt.Errorf("the replica is shutting down: %w", context.Cause(ctx))
		case <-r.stepDown:
			r.stepDown = nil
			return eventStepDown, errors.New("this replica ends its campaign")
		case <-r.lost:
			r.lost = nil
			r.term.cancelAll() // termContext.Err does not cancel writes
			return eventLoss, r.term.loss()
		case <-r.timeout:
			r.timeout = nil
			if names := r.group.remaining(); names != "" { // if names is empty, joined is closed too
				return eventTimeout, r.timeoutError(names)
			}
		case <-r.group.joined:
			if r.lost != nil && r.term.loss() != nil {
				continue // the loss came first, but select has chosen joined
			}
			errs, unjoined := r.group.exitErrors()
			r.err = errors.Join(r.err, errs)
			if unjoined != nil {
				return eventReturnedUnjoined, unjoined
			}
			return eventReturned, nil
		}
	}
}

// timeoutError returns the error for runnables that have not returned in time.
func (r *termRun) timeoutError(names string) error {
	limit := r.leadership.options.ShutdownTimeout
	if r.state.lost || r.leadership.elector == nil {
		return fmt.Errorf("runnables have not returned within %s: %s", limit, names)
	}
	return fmt.Errorf("runnables have not returned within %s, the lease is left to expire: %s", limit, names)
}

// handle logs the event, changes the state and performs the actions.
func (r *termRun) handle(event leadEvent, cause error) {
	switch event {
	case eventShutdown, eventStepDown:
		r.log.Info("Ending the term", keyCause, cause.Error())
	case eventFailure:
		r.log.Error(cause, "Leader-gated runnable failed")
		r.err = errors.Join(r.err, cause)
	case eventLoss:
		r.log.Info("Lease lost", keyCause, cause.Error())
	case eventTimeout:
		r.log.Error(cause, "Runnables did not return in time")
		r.err = errors.Join(r.err, cause)
	case eventReturnedUnjoined:
		if r.term.loss() == nil {
			r.log.Error(cause, "Lease not released, goroutines of a runnable may still be running")
		}
	}
	var actions []leadAction
	r.state, actions = r.state.next(event, r.policy)
	if r.state.ending {
		r.leadership.shutdown.begin()
	}
	for _, action := range actions {
		r.perform(action, event, cause)
	}
}

func (r *termRun) perform(action leadAction, event leadEvent, cause error) {
	switch action {
	case actionStop:
		r.cancel(cause)
		r.group.stop()
		r.leadership.setStopping()
		r.progress = time.Tick(progressPeriod)
	case actionStartTimeout:
		limit := r.leadership.options.ShutdownTimeout
		if remaining, ending := r.leadership.shutdown.remaining(); ending {
			limit = remaining
		}
		r.timeout = time.After(limit)
	case actionLoseTerm:
		r.lost = nil // logged already
		if event == eventTimeout {
			_ = r.term.lose("the runnables did not return in time")
		} else {
			_ = r.term.lose("goroutines of the runnables may still be running")
		}
	case actionReportLoss:
		r.err = errors.Join(r.term.loss(), r.err)
	case actionFinishTerm:
		r.term.finish()
	}
}

// policy determines which events end Run. Without leader election, a failure always ends Run, because no other replica
// could lead afterwards.
func (l *leadership) policy() leadPolicy {
	return leadPolicy{
		exitOnFailure: l.options.OnFailure == ExitOnFailure || l.elector == nil,
		exitOnLoss:    l.options.OnLostLease == ExitOnLoss,
	}
}

// clockCheckInterval returns the time until the clocks must be checked again. Timers do not follow the wall clock, so
// the wall clock is checked every RetryPeriod.
func (l *leadership) clockCheckInterval(t *term) time.Duration {
	if t.validity == 0 {
		return time.Hour
	}
	return max(min(t.remaining(), l.options.RetryPeriod), time.Millisecond)
}
