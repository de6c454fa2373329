package replica

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

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
