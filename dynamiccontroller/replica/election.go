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

// serveTerm campaigns until it acquires the lease, and leads until the term is over. It returns when the elector and
// the leader-gated runnables have ended. If Run is ending, serveTerm does not wait for runnables that do not return in
// time. If there was no term, it returns the zero state.
func (l *leadership) serveTerm(ctx context.Context) (leadState, error) {
	began := make(chan *term, 1)
	l.lock.resetTerm()
	l.lock.beginTerm = func(sent instant) *term {
		t := l.fence.open(sent, l.options)
		began <- t // does not block, because a lock begins at most one term
		return t
	}
	retryPeriod, renewDeadline := l.options.RetryPeriod, l.options.RenewDeadline
	if l.lock.pace != nil { // the lock waits for RetryPeriod before it sends a renewal
		retryPeriod, renewDeadline = electorPeriod, renewDeadline+retryPeriod
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          l.lock,
		LeaseDuration: l.options.LeaseDuration,
		RenewDeadline: renewDeadline,
		RetryPeriod:   retryPeriod,
		Name:          l.options.LeaseName,
		// The lock begins the term, and lead ends it. The elector's callbacks are not used, because it calls them in
		// goroutines that cannot be joined.
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return leadState{}, fmt.Errorf("create a leader elector: %w", err)
	}
	// The elector continues after ctx is cancelled, because the lease is renewed until the runnables have returned.
	electing, stopElector := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), debugOnly(l.log)))
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		elector.Run(electing)
		if t := l.lock.term; t != nil {
			_ = t.lose("it could not be renewed") // no effect if the term is over
		}
	}()
	joinElector := func() {
		stopElector()
		<-stopped
	}
	defer joinElector()

	var t *term
	select {
	case t = <-began:
	case <-l.stepDown:
		joinElector()
		l.abandonCampaign(ctx, began)
		return leadState{}, nil
	case <-ctx.Done():
		l.shutdown.begin()
		joinElector()
		l.abandonCampaign(ctx, began)
		return leadState{}, nil
	}
	state, err := l.lead(ctx, t)
	joinElector()
	if t.loss() == nil {
		l.release(ctx)
	}
	return state, err
}

// abandonCampaign releases the lease if the elector acquired it, or may have acquired it, before the elector was
// stopped. It does not release a claim, because other replicas must not lead before the claim's duration has passed.
func (l *leadership) abandonCampaign(ctx context.Context, began <-chan *term) {
	select {
	case <-began:
		l.release(ctx)
	default:
		if l.lock.holderUnknown && !l.lock.claiming {
			l.release(ctx)
		}
	}
}

// release releases the lease. The release is limited to RenewDeadline, or to the timeouts of its two requests if they
// are longer. If Run is ending, it is also limited to what remains of ShutdownTimeout. If the release fails, other
// replicas must wait until the lease expires.
func (l *leadership) release(ctx context.Context) {
	limit := max(l.options.RenewDeadline, 2*requestTimeout(l.options))
	if remaining, ending := l.shutdown.remaining(); ending {
		limit = min(limit, remaining)
	}
	releaseCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	defer context.AfterFunc(ctx, func() { // Run can begin to shut down during the release
		l.shutdown.begin()
		remaining, _ := l.shutdown.remaining()
		time.AfterFunc(remaining, cancel)
	})()
	verb, err := l.lock.release(releaseCtx, l.options.RetryPeriod/2)
	switch {
	case err == nil:
		l.log.V(1).Info("Lease released")
	case apierrors.IsForbidden(err):
		l.log.Error(err, "Lease not released because of a missing permission, other replicas wait until it expires",
			keyVerb, verb, keyResource, leaseResource)
	default:
		l.log.Info("Lease not released, other replicas wait until it expires", keyVerb, verb, keyError, err.Error())
	}
}

// debugOnly returns a logger that raises the verbosity level of the elector's messages and logs its errors as debug
// messages. The elector logs every failed attempt as an error, but this package already logs what matters to an
// operator.
func debugOnly(log logr.Logger) logr.Logger {
	if log.GetSink() == nil {
		return log
	}
	log = log.WithName("elector")
	return log.WithSink(debugSink{log.GetSink()})
}

type debugSink struct{ logr.LogSink }

func (s debugSink) Enabled(level int) bool { return s.LogSink.Enabled(level + 1) }

func (s debugSink) Info(level int, message string, keysAndValues ...any) {
	s.LogSink.Info(level+1, message, keysAndValues...)
}

func (s debugSink) Error(err error, message string, keysAndValues ...any) {
	if s.Enabled(0) {
		s.LogSink.Info(1, message, append([]any{keyError, err}, keysAndValues...)...)
	}
}

func (s debugSink) WithValues(keysAndValues ...any) logr.LogSink {
	return debugSink{s.LogSink.WithValues(keysAndValues...)}
}

func (s debugSink) WithName(name string) logr.LogSink { return debugSink{s.LogSink.WithName(name)} }
