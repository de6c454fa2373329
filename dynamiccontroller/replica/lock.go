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

// lock is what client-go's elector sees of the lease. The elector trusts the lease to be changed by electors only; the
// lock makes up for what others do to it, and for what a lost answer leaves unknown:
//
//   - For the leader, another holder, an emptied lease and a missing one end the term at the first sight.
//   - For a candidate, a lease that was emptied without a release is held for another LeaseDuration, and one that it had to
//     create anew is not led by until then: whoever held it may not have noticed. A lease whose duration was edited down
//     counts with the configured one.
//   - A renewal counts from when it was sent. One that a candidate sees counts though it came within the same second as the
//     one before: the elector compares records in JSON, which has whole seconds, and would otherwise count from the first.
//   - A release is made only of a lease that names us.
//   - An emptied lease counts with the configured duration, whatever it says; a named holder may ask for a longer one.
//
// Its methods that make requests are called by one goroutine at a time.
type lock struct {
	resourcelock.Interface
	clock    clock
	duration time.Duration
	timeout  time.Duration // of a request
	log      logr.Logger
	cut      func()                   // closes the lease's connections
	won      func(sent instant) *term // begins a term
	term     *term                    // the term that the elector holds, nil for a candidate
	seen     bool                     // whether there ever was a lease
	claims   bool                     // we have created a lease that had been another's, and may not lead yet
	claimed  time.Time                // since when it is known to be ours, zero if it is not
	unsure   bool                     // a write may have made us the holder without our knowing
	trouble  trouble

	mu     sync.Mutex // guards leader
	leader string
}

// candidate makes the lock that of a candidate again. What it has seen of the lease it keeps.
func (l *lock) candidate() { l.term = nil }

// Get reads the lease, and says what of it the elector should believe.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if err := l.termOver(); err != nil {
		return nil, nil, err
	}
	within, cancel := context.WithTimeout(ctx, l.timeout) // the elector sets none for a candidate
	defer cancel()
	record, raw, err := l.Interface.Get(within)
	l.note(ctx, verbGet, err)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil, l.gone(err)
	case err != nil:
		return nil, nil, l.failed(err)
	}
	l.seen = true
	claimed := l.claims
	if record.HolderIdentity == l.Identity() {
		l.confirmClaim() // the answer to Create may have been lost
	} else {
		l.claims = false
	}
	if l.term != nil && record.HolderIdentity != l.Identity() {
		l.hear(record.HolderIdentity)
		if record.HolderIdentity == "" {
			return nil, nil, l.term.lose("someone emptied it")
		}
		return nil, nil, l.term.lose("it is held by %s", record.HolderIdentity)
	}
	shown, configured := *record, int(l.duration/time.Second)
	switch {
	case released(record):
	case record.HolderIdentity == "": // who led had our duration, as all have
		shown.HolderIdentity, shown.LeaseDurationSeconds = nobody, configured
	default:
		shown.LeaseDurationSeconds = max(shown.LeaseDurationSeconds, configured)
	}
	if claimed && record.HolderIdentity == l.Identity() {
		l.hear("") // it leads when it has won
	} else {
		l.hear(record.HolderIdentity)
	}
	return &shown, fmt.Appendf(raw, "%d", record.RenewTime.UnixNano()), nil
}

// nobody is whom the elector is shown as the holder of an emptied lease.
const nobody = "(emptied)"

// released tells a lease that its holder gave back, as client-go does it and we do, from one that someone emptied while
// its holder leads, whoever edited its duration too: no lease that is held lasts a second (see shortestLease), nor has it
// two times that are equal (see write).
func released(r *resourcelock.LeaderElectionRecord) bool {
	return r.HolderIdentity == "" && r.LeaseDurationSeconds == 1 && r.RenewTime.Equal(&r.AcquireTime)
}

// gone says what a missing lease means: an error that is NotFound makes the elector create one.
func (l *lock) gone(err error) error {
	if l.term != nil {
		l.hear("")
		return l.term.lose("someone deleted it")
	}
	if l.seen {
		l.hear("")
	}
	return err
}

// Create makes a lease in our name. If there was one before, that is a claim and no more: its holder may not have noticed
// that it is gone. It has sent no renewal since, so that after LeaseDuration it has noticed; until then we renew and do not
// lead. A process that has never seen a lease does not wait, or a first start would take as long.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if err := l.termOver(); err != nil {
		return err
	}
	l.claims, l.claimed = l.seen, time.Time{}
	return l.write(ctx, verbCreate, record, l.Interface.Create)
}

// Update takes the lease, or renews it.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if err := l.termOver(); err != nil {
		return err
	}
	return l.write(ctx, verbUpdate, record, l.Interface.Update)
}

// termOver keeps an elector that has not been told yet from renewing a lease that nobody needs any more.
func (l *lock) termOver() error {
	if l.term == nil {
		return nil
	}
	return l.term.check()
}

func (l *lock) write(ctx context.Context, verb string, record resourcelock.LeaderElectionRecord,
	send func(context.Context, resourcelock.LeaderElectionRecord) error) error {
	within, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	if record.RenewTime.Equal(&record.AcquireTime) { // only a release looks like that: see released
		record.AcquireTime = metav1.NewTime(record.AcquireTime.Add(-time.Millisecond))
	}
	sent := l.clock.now()
	err := send(within, record)
	l.note(ctx, verb, err)
	switch {
	case err == nil:
	case apierrors.IsNotFound(err) && l.term != nil:
		return l.gone(err)
	default:
		l.unsure = l.unsure || l.term == nil && !answered(err)
		return l.failed(err)
	}
	l.seen, l.unsure = true, false
	if l.term == nil {
		if l.confirmClaim(); l.claims {
			return nil
		}
		l.term = l.won(sent)
	}
	l.hear(l.Identity())
	return l.term.renew(sent)
}

// confirmClaim notes that the lease is ours, and ends the claim when it has lasted long enough.
func (l *lock) confirmClaim() {
	switch {
	case !l.claims:
	case l.claimed.IsZero():
		l.claimed = time.Now()
		l.log.Info("the lease had been deleted; this replica leads when who held it has noticed", keyAfter, l.duration.String())
	case time.Since(l.claimed) >= l.duration:
		l.claims = false
	}
}

// note keeps what came of a request that nobody has called off.
func (l *lock) note(ctx context.Context, verb string, err error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	failed := l.trouble.note(l.log, verb, err)
	if l.term != nil {
		l.term.hear(failed)
	}
}

// answered tells a refusal by the API server from an answer that never came.
func answered(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || apierrors.IsForbidden(err) ||
		apierrors.IsUnauthorized(err) || apierrors.IsInvalid(err) || apierrors.IsTooManyRequests(err)
}

// failed cuts the lease's connections when one of them does not answer: an HTTP/2 connection that hangs is noticed by the
// transport only after 45 seconds, and would be used for every retry until then.
func (l *lock) failed(err error) error {
	var slow net.Error
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &slow) && slow.Timeout() {
		l.cut()
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
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	record, _, err := l.Interface.Get(ctx)
	if apierrors.IsNotFound(err) {
		return verbGet, nil
	}
	if err != nil {
		return verbGet, l.failed(err)
	}
	if record.HolderIdentity != l.Identity() {
		l.log.Info("the lease is not released: it is not ours", keyLeader, record.HolderIdentity)
		l.unsure = false
		return verbGet, nil
	}
	now := metav1.NewTime(time.Now())
	err = l.Interface.Update(ctx, resourcelock.LeaderElectionRecord{
		LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
	})
	if err != nil {
		return verbUpdate, l.failed(err)
	}
	l.unsure = false
	l.hear("")
	return verbUpdate, nil
}

// hear notes who leads.
func (l *lock) hear(leader string) {
	l.mu.Lock()
	changed := l.leader != leader
	l.leader = leader
	l.mu.Unlock()
	switch {
	case !changed:
	case leader == "":
		l.log.Info("nobody leads")
	default:
		l.log.Info("there is a new leader", keyLeader, leader)
	}
}

func (l *lock) holder() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leader
}
