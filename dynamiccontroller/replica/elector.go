package replica

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/election"
)

// elector performs the operations of an [election.Machine]: it sends the requests for one lease, and begins, renews and
// ends the terms. Its methods are called by only one goroutine at a time, apart from wake and holder.
type elector struct {
	lease       resourcelock.Interface
	machine     *election.Machine
	clock       clock
	timeout     time.Duration // limits each request
	log         logr.Logger
	connections *connections             // to the API server
	begin       func(sent instant) *term // called when a term begins; set for each campaign
	onNewLeader func(identity string)    // reports a new leader, does not block
	// confirm returns an error if this replica must not lead although it has acquired the lease. It is called if the role
	// requires it. expected returns the replica that is expected to acquire the lease when it is released, or an empty
	// string. It is nil if no particular one is.
	confirm  func(ctx context.Context) error
	expected func() string

	term   *term // of the campaign, nil before it begins
	errors leaseErrors
	woken  chan struct{} // has a buffer of one

	mu     sync.Mutex // guards leader
	leader string
}

func newElector(o Options, role election.Role, lease resourcelock.Interface, clock clock) *elector {
	return &elector{
		lease: lease, clock: clock, timeout: requestTimeout(o), log: o.log,
		onNewLeader: func(string) {}, woken: make(chan struct{}, 1),
		machine: election.New(election.Config{
			Identity: lease.Identity(), Role: role, LeaseDuration: o.LeaseDuration, RenewDeadline: o.RenewDeadline,
			RetryPeriod: o.RetryPeriod, MaxClaim: election.FleetFactor * o.LeaseDuration, Random: rand.Float64,
		}),
	}
}

// wake makes the next request due. It does not block.
func (e *elector) wake() {
	select {
	case e.woken <- struct{}{}:
	default:
	}
}

// campaign campaigns, and renews the lease during the term, until the term is over or ctx is cancelled.
func (e *elector) campaign(ctx context.Context, begin func(sent instant) *term) {
	e.term, e.begin = nil, begin
	e.machine.Campaign()
	_, _ = e.perform(ctx) // logged already
}

// leave ends the campaign, and releases the lease if this replica holds it or may hold it. If the term was lost, the
// lease is left to expire. leave retries until ctx is cancelled, unless the API server denies the request. It returns
// the verb and the error of the last request.
func (e *elector) leave(ctx context.Context) (verb string, err error) {
	if e.term != nil && e.term.loss() != nil {
		e.machine.Lost()
	}
	e.machine.Leave(e.clock.now())
	verb, err = e.perform(ctx)
	if err == nil && e.machine.State() != election.Over {
		err = context.Cause(ctx)
	}
	return verb, err
}

// perform performs operations until the machine stops, the term is over or ctx is cancelled. It returns the verb and
// the error of the last request.
func (e *elector) perform(ctx context.Context) (verb string, err error) {
	for ctx.Err() == nil || e.machine.Pending() {
		if e.expected != nil {
			e.machine.Expect(e.expected())
		}
		op := e.machine.Next(e.clock.now())
		if op.Kind == election.Stop {
			return verb, err
		}
		switch op.Kind {
		case election.Wait:
			e.wait(ctx, op.Until)
		case election.Read, election.Create, election.Update:
			if e.isTermOver() {
				return verb, err
			}
			verb, err = e.request(ctx, op)
		case election.Confirm:
			e.machine.Answer(op, e.confirmation(ctx), e.clock.now())
		case election.Claimed:
			e.log.Info("Recreated a deleted lease, will lead once the previous leader can no longer be leading",
				keyAfter, time.Until(op.Until).Round(time.Millisecond).String())
		case election.Begin:
			e.term = e.begin(op.Sent)
		case election.Renew:
			_ = e.term.renew(op.Sent) // the next request finds out if the term is over
		case election.Lose:
			_ = e.term.lose("%s", op.Reason) // no effect if the term is over
		case election.Report:
			e.report(op.Leader)
		}
	}
	return verb, err
}

// isTermOver reports whether the lease must not be renewed any more.
func (e *elector) isTermOver() bool {
	return e.machine.State() == election.Leading && e.term.check() != nil
}

func (e *elector) wait(ctx context.Context, until time.Time) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-e.woken:
		e.machine.Wake(e.clock.now())
	case <-ctx.Done():
	}
}

// request sends a request, and passes the answer to the machine.
func (e *elector) request(ctx context.Context, op election.Operation) (verb string, err error) {
	requestCtx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	if !op.Deadline.IsZero() {
		var cancelAtDeadline context.CancelFunc
		requestCtx, cancelAtDeadline = context.WithDeadline(requestCtx, op.Deadline)
		defer cancelAtDeadline()
	}
	answer := election.Answer{Sent: e.clock.now()}
	switch op.Kind {
	case election.Read:
		var record *resourcelock.LeaderElectionRecord
		verb = verbGet
		if record, _, err = e.lease.Get(requestCtx); err == nil {
			answer.Record = election.FromLock(*record)
		}
	case election.Create:
		verb, err = verbCreate, e.lease.Create(requestCtx, op.Record.Lock())
	default:
		verb, err = verbUpdate, e.lease.Update(requestCtx, op.Record.Lock())
	}
	e.recordRequest(ctx, verb, err)
	e.closeHung(answer.Sent.Mono, err)
	if e.machine.State() == election.Releasing && err == nil && op.Kind == election.Read &&
		answer.Record.Holder != e.lease.Identity() {
		e.log.Info("Lease not released because this replica does not hold it", keyLeader, answer.Record.Holder)
	}
	answer.Outcome = outcomeOf(err)
	e.machine.Answer(op, answer, e.clock.now())
	return verb, err
}

// recordRequest records the outcome of a request, unless the request was cancelled.
func (e *elector) recordRequest(ctx context.Context, verb string, err error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	failure := e.errors.record(e.log, verb, err)
	if e.term != nil {
		e.term.recordRequest(failure)
	}
}

// confirmation reports whether this replica may lead.
func (e *elector) confirmation(ctx context.Context) election.Answer {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	sent := time.Now()
	if err := e.confirm(ctx); err != nil {
		e.closeHung(sent, err)
		e.log.V(1).Info("Lease acquired, but this replica must not lead", keyCause, err.Error())
		return election.Answer{Outcome: election.Refused}
	}
	return election.Answer{}
}

// closeHung closes the connections if a request has timed out. If the deadline of a renewal has cancelled the request
// soon after it was sent, this does not count.
func (e *elector) closeHung(sent time.Time, err error) {
	if isTimeout(err) && time.Since(sent) >= e.timeout/2 {
		e.connections.closeHung(sent)
	}
}

// report records the identity of the leader. An empty identity means that no replica leads.
func (e *elector) report(leader string) {
	e.mu.Lock()
	e.leader = leader
	e.mu.Unlock()
	if leader == "" {
		e.log.Info("No replica leads")
		return
	}
	e.log.Info("New leader observed", keyLeader, leader)
	e.onNewLeader(leader)
}

// holder returns the identity of the leader as of the last request. It is empty if no replica leads.
func (e *elector) holder() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.leader
}

func outcomeOf(err error) election.Outcome {
	switch {
	case err == nil:
		return election.Succeeded
	case apierrors.IsNotFound(err):
		return election.Missing
	case apierrors.IsForbidden(err):
		return election.Denied
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsUnauthorized(err),
		apierrors.IsInvalid(err), apierrors.IsTooManyRequests(err):
		return election.Refused
	default:
		return election.Unknown
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}
