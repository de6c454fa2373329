package replica

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"
)

// serveTerm campaigns until it wins, and leads until that term is over. It returns when the elector and, but for
// endedHung, all runnables have ended. If ctx ends before it has won, the error is nil.
func (l *leadership) serveTerm(ctx context.Context) (ending, error) {
	won := make(chan *term, 1)
	l.lock.candidate()
	l.lock.won = func(sent instant) *term {
		t := l.fence.open(sent, l.options)
		won <- t // there is room: a lock wins once
		return t
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          l.lock,
		LeaseDuration: l.options.LeaseDuration,
		RenewDeadline: l.options.RenewDeadline,
		RetryPeriod:   l.options.RetryPeriod,
		Name:          l.options.LeaseName,
		// The term begins when the lock has seen the lease to be ours, and ends by our own account: the elector's
		// callbacks are called by goroutines that nobody joins.
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return notLed, fmt.Errorf("elect a leader: %w", err)
	}
	// The elector outlives ctx: the lease is renewed while runnables return.
	electing, stopElecting := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), quiet(l.log)))
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		elector.Run(electing)
		if t := l.lock.term; t != nil {
			_ = t.lose("it could not be renewed") // unless it was over before
		}
	}()
	defer func() {
		stopElecting()
		<-stopped
	}()

	var t *term
	select {
	case t = <-won:
	case <-stopped: // it held a claim, and could not renew it
		select {
		case t = <-won:
		default:
			return notLed, nil
		}
	case <-ctx.Done():
		l.end.begin()
		stopElecting()
		<-stopped
		select {
		case <-won: // at the last moment, and nothing has run
			l.release(ctx)
		default:
			if l.lock.unsure && !l.lock.claims { // a claim is nobody's to take before it has lasted
				l.release(ctx)
			}
		}
		return notLed, nil
	}
	how, err := l.lead(ctx, t)
	stopElecting()
	<-stopped
	if t.loss() == nil {
		l.release(ctx)
	}
	return how, err
}

// release releases the lease. If Run is ending, it takes no longer than the rest of ShutdownTimeout. If it fails, other
// replicas have to wait until the lease expires.
func (l *leadership) release(ctx context.Context) {
	limit := l.options.RenewDeadline
	if left, ending := l.end.left(); ending {
		limit = min(limit, left)
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	defer context.AfterFunc(ctx, func() { // it may end only now
		l.end.begin()
		left, _ := l.end.left()
		time.AfterFunc(left, cancel)
	})()
	verb, err := l.lock.release(within, l.options.RetryPeriod/2)
	switch {
	case err == nil:
		l.log.V(1).Info("Lease released")
	case apierrors.IsForbidden(err):
		l.log.Error(err, "Lease not released because of a missing permission, other replicas wait until it expires", keyVerb, verb, keyResource, leaseResource)
	default:
		l.log.Info("Lease not released, other replicas wait until it expires", keyVerb, verb, keyError, err.Error())
	}
}

// quiet makes everything that the elector logs a developer's: what an operator wants to know is logged by us, and it calls
// each try that fails an error.
func quiet(log logr.Logger) logr.Logger {
	if log.GetSink() == nil {
		return log
	}
	log = log.WithName("elector")
	return log.WithSink(quietSink{log.GetSink()})
}

type quietSink struct{ logr.LogSink }

func (s quietSink) Enabled(level int) bool { return s.LogSink.Enabled(level + 1) }

func (s quietSink) Info(level int, message string, keysAndValues ...any) {
	s.LogSink.Info(level+1, message, keysAndValues...)
}

func (s quietSink) Error(err error, message string, keysAndValues ...any) {
	if s.Enabled(0) {
		s.LogSink.Info(1, message, append([]any{keyError, err}, keysAndValues...)...)
	}
}

func (s quietSink) WithValues(keysAndValues ...any) logr.LogSink {
	return quietSink{s.LogSink.WithValues(keysAndValues...)}
}

func (s quietSink) WithName(name string) logr.LogSink { return quietSink{s.LogSink.WithName(name)} }
