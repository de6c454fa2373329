package replica

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// lock adapts the lease for client-go's elector. The elector assumes that only electors change the lease and that every
// request has a known outcome. The lock adds rules for cases in which these assumptions do not hold:
//
//   - The leader's term ends at the first request that finds another holder, an emptied lease or no lease.
//   - A candidate treats a lease that was emptied without a release as held for another LeaseDuration, because the
//     previous holder may still be leading. For the same reason, a candidate that recreates the lease leads only after
//     it has held the new lease for a LeaseDuration.
//   - If the duration of a lease is shorter than the configured one, or if the lease has no holder, the configured
//     duration applies.
//   - A renewal by this replica counts from the time at which it was sent.
//   - A candidate observes every renewal by another replica. The elector compares records in JSON, which stores whole
//     seconds, and would miss a second renewal within the same second.
//   - Only a lease that names this replica is released.
//
// The methods that send requests are called by only one goroutine at a time.
type lock struct {
	resourcelock.Interface
	clock            clock
	duration         time.Duration
	timeout          time.Duration // limits each request
	log              logr.Logger
	closeConnections func()                   // closes the connections to the API server
	beginTerm        func(sent instant) *term // called when the lease is acquired
	onNewLeader      func(identity string)    // reports a new leader, does not block
	requestErrors    leaseErrors
	pace             *pace // nil if the elector determines when requests are sent
	// yields reports whether this replica leaves a released lease to another one for now; nil if it never does. last is
	// the last holder that was observed, and released is the time since the release was first observed.
	yields func(last string, released time.Duration) bool
	// verify returns an error if this replica must not lead although it has acquired the lease. It is called after the
	// lease was acquired; nil if there is no such condition.
	verify func(ctx context.Context) error

	term          *term         // the elector's term, nil for a candidate
	leaseSeen     bool          // a response has shown that the lease existed
	claiming      bool          // this replica has recreated the lease and cannot lead yet
	claimedAt     time.Time     // when the claim was first confirmed, zero before that
	claimFor      time.Duration // the time from then on after which this replica can lead
	holderUnknown bool          // a write without a response may have made this replica the holder
	read          bool          // the last request was a successful read
	lastHolder    string        // the last holder that was observed
	lastDuration  time.Duration // the duration in the record of lastHolder
	releasedAt    time.Time     // when the lease was first observed to be released, zero if it is held

	mu     sync.Mutex // guards leader
	leader string
}

// resetTerm makes this replica a candidate again. It does not change the fields that describe the lease or a claim.
func (l *lock) resetTerm() { l.term = nil }

// Get reads the lease and returns the record that the elector must use.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if l.term != nil { // a renewal was rejected
		l.pace.sent()
	} else if err := l.pace.wait(ctx); err != nil {
		return nil, nil, err
	}
	if err := l.checkTerm(); err != nil {
		return nil, nil, err
	}
	requestCtx, cancel := context.WithTimeout(ctx, l.timeout) // the elector sets no timeout for a candidate
	defer cancel()
	record, raw, err := l.Interface.Get(requestCtx)
	l.recordRequest(ctx, verbGet, err)
	l.read = err == nil
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil, l.handleMissing(err)
	case err != nil:
		return nil, nil, l.handleFailure(err)
	}
	l.leaseSeen = true
	l.observeHolder(record)
	ours := record.HolderIdentity == l.Identity()
	switch {
	case ours:
		l.confirmClaim() // the response to Create may have been lost
	case l.term != nil:
		l.setLeader(record.HolderIdentity)
		if record.HolderIdentity == "" {
			return nil, nil, l.term.lose("somebody emptied it")
		}
		return nil, nil, l.term.lose("it is held by %s", record.HolderIdentity)
	default:
		l.claiming = false
	}
	if ours && l.term == nil {
		l.setLeader("") // a claim, or the lease of a term that is over
	} else {
		l.setLeader(record.HolderIdentity)
	}
	effective := l.effective(record)
	return effective, fmt.Appendf(raw, "%d %s", record.RenewTime.UnixNano(), effective.HolderIdentity), nil
}

// The holders that are reported to the elector in place of those in the lease.
const (
	unknownHolder = "(emptied)" // of an emptied lease
	claimHolder   = "(claimed)" // of a lease that this replica has recreated, until it can lead
	yieldHolder   = "(yielded)" // of a released lease that another replica is expected to acquire
)

// observeHolder records the holder in a response, or in a record that was written.
func (l *lock) observeHolder(record *resourcelock.LeaderElectionRecord) {
	switch {
	case record.HolderIdentity != "":
		l.lastHolder, l.releasedAt = record.HolderIdentity, time.Time{}
		l.lastDuration = time.Duration(record.LeaseDurationSeconds) * time.Second
	case l.releasedAt.IsZero():
		l.releasedAt = time.Now()
	}
}

// effective returns the record with the holder and the duration that a candidate must respect. The elector remains a
// candidate during a claim, so that client-go's metrics do not report this replica as the leader.
func (l *lock) effective(record *resourcelock.LeaderElectionRecord) *resourcelock.LeaderElectionRecord {
	effective, configured := *record, int(l.duration/time.Second)
	switch {
	case isReleased(record):
		if l.yields != nil && l.yields(l.lastHolder, time.Since(l.releasedAt)) {
			effective.HolderIdentity, effective.LeaseDurationSeconds = yieldHolder, configured
		}
	case record.HolderIdentity == "": // the previous leader had the configured duration
		effective.HolderIdentity, effective.LeaseDurationSeconds = unknownHolder, configured
	case l.claiming:
		effective.HolderIdentity, effective.LeaseDurationSeconds = claimHolder, configured
	default:
		effective.LeaseDurationSeconds = max(effective.LeaseDurationSeconds, configured)
	}
	return &effective
}

// isReleased reports whether the holder released the lease in the way that client-go and the method release do.
// Otherwise, somebody may have emptied the lease while its holder was leading. A lease that is held never has a
// duration of one second (see minLeaseDuration) and never has two equal times (see write).
func isReleased(r *resourcelock.LeaderElectionRecord) bool {
	return r.HolderIdentity == "" && r.LeaseDurationSeconds == 1 && r.RenewTime.Equal(&r.AcquireTime)
}

// handleMissing ends the term of a leader whose lease is missing. For a candidate, it returns err, and the elector
// creates the lease if err is a NotFound error.
func (l *lock) handleMissing(err error) error {
	if l.term != nil {
		l.setLeader("")
		return l.term.lose("somebody deleted it")
	}
	if l.leaseSeen {
		l.setLeader("")
	}
	return err
}

// Create creates the lease with this replica as the holder. If the lease existed before, the new lease is only a claim,
// because the previous holder may still be leading. The previous holder cannot have renewed the lease since the
// deletion, so it stops leading within LeaseDuration. Until then, Create and Get make the elector wait. The claim is
// not renewed: another replica that acquires the lease meanwhile has waited for LeaseDuration too. A process that has
// never seen the lease leads immediately, so that the first start is not delayed by a LeaseDuration.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if err := l.checkTerm(); err != nil {
		return err
	}
	l.claiming, l.claimedAt = l.leaseSeen, time.Time{}
	l.claimFor = max(l.duration, min(l.lastDuration, keepFactor*l.duration)) // a fleet records a longer duration
	return l.write(ctx, verbCreate, record, l.Interface.Create)
}

// Update acquires or renews the lease.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if err := l.checkTerm(); err != nil {
		return err
	}
	return l.write(ctx, verbUpdate, record, l.Interface.Update)
}

// checkTerm returns an error if the term of the elector is over. The elector then stops renewing the lease.
func (l *lock) checkTerm() error {
	if l.term == nil {
		return nil
	}
	return l.term.check()
}

func (l *lock) write(ctx context.Context, verb string, record resourcelock.LeaderElectionRecord,
	send func(context.Context, resourcelock.LeaderElectionRecord) error) error {
	if l.pace != nil && l.term != nil && !l.read {
		if err := errors.Join(l.pace.wait(ctx), l.term.check()); err != nil {
			return err
		}
		record.RenewTime = metav1.NewTime(time.Now())
	}
	l.read = false
	requestCtx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	if record.RenewTime.Equal(&record.AcquireTime) { // only a release has equal times; see isReleased
		record.AcquireTime = metav1.NewTime(record.AcquireTime.Add(-time.Millisecond))
	}
	sent := l.clock.now()
	err := send(requestCtx, record)
	l.recordRequest(ctx, verb, err)
	switch {
	case err == nil:
	case apierrors.IsNotFound(err) && l.term != nil:
		return l.handleMissing(err)
	default:
		l.holderUnknown = l.holderUnknown || l.term == nil && !isRejected(err)
		return l.handleFailure(err)
	}
	l.leaseSeen, l.holderUnknown = true, false
	if l.term == nil {
		if l.confirmClaim(); l.claiming {
			return errClaimed
		}
		if err := l.giveBack(ctx, record); err != nil {
			return err
		}
		l.term = l.beginTerm(sent)
	}
	l.observeHolder(&record)
	l.setLeader(l.Identity())
	return l.term.renew(sent)
}

// giveBack releases a lease that was just acquired if this replica must not lead. It returns the reason, or nil.
func (l *lock) giveBack(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if l.verify == nil {
		return nil
	}
	verifyCtx, cancelVerify := context.WithTimeout(ctx, l.timeout)
	defer cancelVerify()
	err := l.verify(verifyCtx)
	if err == nil {
		return nil
	}
	releaseCtx, cancelRelease := context.WithTimeout(ctx, l.timeout)
	defer cancelRelease()
	if releaseErr := l.Interface.Update(releaseCtx, releasedRecord(record.LeaderTransitions)); releaseErr != nil {
		l.holderUnknown = true
		return fmt.Errorf("%w; the lease is not released: %w", err, releaseErr)
	}
	return err
}

// errClaimed is returned to the elector when this replica holds the lease but cannot lead yet.
var errClaimed = errors.New("the lease was recreated, the previous leader may still be leading")

// confirmClaim is called when the lease names this replica. It ends a claim once the lease has named this replica for
// long enough.
func (l *lock) confirmClaim() {
	switch {
	case !l.claiming:
	case l.claimedAt.IsZero():
		l.claimedAt = time.Now()
		l.log.Info("Recreated a deleted lease, will lead once the previous leader can no longer be leading",
			keyAfter, l.claimFor.String())
	case time.Since(l.claimedAt) >= l.claimFor:
		l.claiming = false
	}
}

// recordRequest records the outcome of a request, unless the request was cancelled.
func (l *lock) recordRequest(ctx context.Context, verb string, err error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	failure := l.requestErrors.record(l.log, verb, err)
	if l.term != nil {
		l.term.recordRequest(failure)
	}
}

// isRejected reports whether the API server rejected the request. If it did not, the request may have taken effect.
func isRejected(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) ||
		apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsInvalid(err) ||
		apierrors.IsTooManyRequests(err)
}

// handleFailure closes the connections to the API server after a timeout, and returns err. The transport needs 45
// seconds to detect that an HTTP/2 connection hangs, and would use that connection for every retry until then.
func (l *lock) handleFailure(err error) error {
	var timeout net.Error
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		l.closeConnections()
	}
	return err
}

// release releases the lease if it still names this replica. It retries until ctx is cancelled, unless the API server
// denies the request. It returns the verb of the last request.
func (l *lock) release(ctx context.Context, pause time.Duration) (verb string, err error) {
	for {
		verb, err = l.tryRelease(ctx)
		if err == nil || ctx.Err() != nil || apierrors.IsForbidden(err) {
			return verb, err
		}
		select {
		case <-ctx.Done():
			return verb, err
		case <-time.After(pause):
		}
	}
}

// tryRelease reads the lease again, because another replica may have acquired it since it was last read. The API server
// rejects the update if the lease changes in between.
func (l *lock) tryRelease(ctx context.Context) (verb string, err error) {
	getCtx, cancelGet := context.WithTimeout(ctx, l.timeout)
	defer cancelGet()
	record, _, err := l.Interface.Get(getCtx)
	if apierrors.IsNotFound(err) {
		return verbGet, nil
	}
	if err != nil {
		return verbGet, l.handleFailure(err)
	}
	if record.HolderIdentity != l.Identity() {
		l.log.Info("Lease not released because this replica does not hold it", keyLeader, record.HolderIdentity)
		l.holderUnknown = false
		return verbGet, nil
	}
	now := metav1.NewTime(time.Now())
	updateCtx, cancelUpdate := context.WithTimeout(ctx, l.timeout)
	defer cancelUpdate()
	err = l.Interface.Update(updateCtx, resourcelock.LeaderElectionRecord{
		LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
	})
	if err != nil {
		return verbUpdate, l.handleFailure(err)
	}
	l.holderUnknown = false
	l.setLeader("")
	return verbUpdate, nil
}

// setLeader records the identity of the leader. An empty identity means that no replica leads.
func (l *lock) setLeader(leader string) {
	l.mu.Lock()
	changed := l.leader != leader
	l.leader = leader
	l.mu.Unlock()
	switch {
	case !changed:
	case leader == "":
		l.log.Info("No replica leads")
	default:
		l.log.Info("New leader observed", keyLeader, leader)
		l.onNewLeader(leader)
	}
}

// holder returns the identity of the leader as of the last request. It is empty if no replica leads.
func (l *lock) holder() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leader
}
