package election

import (
	"fmt"
	"time"
)

// Config configures a Machine. All fields are required.
type Config struct {
	Identity string
	Role     Role
	// The durations are those of the options of package replica.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// MaxClaim limits the time for which a recreated Lease is held before this replica leads, if the previous holder has
	// recorded a longer duration than LeaseDuration.
	MaxClaim time.Duration
	// Random returns a number from 0 to 1, for the jitter between attempts.
	Random func() float64
}

// State is the state of a Machine.
type State int

const (
	Candidate  State = iota // reads the Lease until it can acquire it
	Claiming                // has recreated the Lease, or tried to, and cannot lead yet
	Confirming              // has acquired the Lease, and asks whether it may lead
	Returning               // may not lead, and gives the Lease back
	Leading
	Releasing
	Over // sends no requests
)

func (s State) String() string {
	return [...]string{"candidate", "claiming", "confirming", "returning", "leading", "releasing", "over"}[s]
}

// Machine is the state of one replica in the election with one Lease. It is not safe for concurrent use.
type Machine struct {
	config   Config
	state    State
	pending  []Operation // to be returned before others
	expected string      // see Expect

	// What is known about the Lease.
	existed    bool          // a response has shown that the Lease existed
	mayHold    bool          // the Lease may name this replica, although no term is current; Leave releases it then
	inFlight   bool          // a write with an unknown outcome may still acquire the Lease
	last       Record        // the record that was read or written last
	holder     string        // the last holder that was observed
	holderFor  time.Duration // the duration in the record of holder
	releasedAt time.Time     // when the Lease was first observed to be released, zero if it is held
	leader     string        // as reported last

	// What a candidate knows. It is forgotten when a campaign begins.
	found     found
	unchanged time.Time // when last was first observed

	claims    bool          // this replica has recreated the Lease, or tried to, and cannot lead yet
	claimedAt time.Time     // when the claim was first confirmed, zero before that
	claimFor  time.Duration // the time from then on after which this replica can lead

	// Requests.
	attempt time.Time // when the last attempt began, which can consist of several requests
	due     time.Time // when the next request is due
	step    step      // the next request of a leader, or of a replica that releases the Lease
	failing time.Time // when the first of the attempts began that have failed since the last renewal, zero if none
	renewed Instant   // when the last confirmed write of the term was sent
}

// found is the result of a candidate's last read. It is reset when the candidate acts on it.
type found int

const (
	nothing found = iota // no read has been answered since the last decision
	noLease
	aLease
)

// step is a request of an attempt to renew the Lease (write, and then read and rewrite if it fails), or to release it
// (read, and then write).
type step int

const (
	write step = iota
	read
	rewrite
)

// New returns a Machine whose campaign begins.
func New(c Config) *Machine { return &Machine{config: c, existed: roles[c.Role].existed} }

// State returns the state.
func (m *Machine) State() State { return m.state }

// Campaign begins a campaign. The Machine is new, or its state is Over. What is known about the Lease is kept, but a
// holder must be observed for its full duration again.
func (m *Machine) Campaign() {
	next := New(m.config)
	next.existed, next.mayHold, next.inFlight, next.leader = m.existed, m.mayHold, m.inFlight, m.leader
	next.holder, next.holderFor, next.releasedAt = m.holder, m.holderFor, m.releasedAt
	next.attempt, next.expected = m.attempt, m.expected
	if m.claims {
		next.state, next.claims, next.claimedAt, next.claimFor = Claiming, true, m.claimedAt, m.claimFor
	}
	if roles[m.config.Role].jitter == 0 {
		next.due = m.attempt.Add(m.config.RetryPeriod)
	}
	*m = *next
}

// wakePeriod is the shortest time between two attempts that Wake causes.
const wakePeriod = 100 * time.Millisecond

// Wake makes the next attempt due, at the earliest a tenth of a second after the last one has begun.
func (m *Machine) Wake(now Instant) {
	m.due = earlier(m.due, later(now.Mono, m.attempt.Add(wakePeriod)))
}

// Expect sets the identity of the replica that should acquire a released Lease. If it is empty, any replica can.
func (m *Machine) Expect(identity string) { m.expected = identity }

// Lost ends the campaign after the caller has ended the term as lost. The Lease is left to expire.
func (m *Machine) Lost() { m.state, m.pending = Over, nil }

// Leave ends the campaign. The Lease is released if this replica holds it, or may hold it. A claim is left to expire:
// if it were released, another replica could lead while the previous holder still does. Leave must be called only when
// the runnables of the term have returned.
func (m *Machine) Leave(now Instant) {
	m.pending = nil
	switch m.state {
	case Over, Releasing:
	case Claiming:
		m.state = Over
	case Candidate:
		if m.state = Over; m.mayHold {
			m.startRelease(now)
		}
	case Confirming, Returning, Leading:
		m.startRelease(now)
	}
}

// startRelease begins to release the Lease. Until that has succeeded, this replica may hold it.
func (m *Machine) startRelease(now Instant) {
	m.state, m.step, m.due, m.mayHold = Releasing, read, now.Mono, true
}

// Pending reports whether Next returns something that has happened already, and that takes no time.
func (m *Machine) Pending() bool { return len(m.pending) > 0 }

// Next returns what is to be done at the given time. If it is a request or Confirm, it must be answered.
func (m *Machine) Next(now Instant) Operation {
	if len(m.pending) == 0 && m.state == Leading {
		m.expire(now)
	}
	if len(m.pending) > 0 {
		op := m.pending[0]
		m.pending = m.pending[1:]
		return op
	}
	switch m.state {
	case Candidate, Claiming:
		if op, ok := m.decide(now); ok {
			return op
		}
	case Confirming:
		return Operation{Kind: Confirm}
	case Returning:
		return Operation{Kind: Update, Record: m.last.Released(now.Mono)}
	case Over:
		return Operation{Kind: Stop}
	}
	if now.Mono.Before(m.due) {
		return m.wait()
	}
	switch {
	case m.state == Candidate || m.state == Claiming:
		m.attempt = now.Mono
		return Operation{Kind: Read}
	case m.state == Leading:
		return m.renew(now)
	case m.step == read:
		m.attempt = now.Mono
		return Operation{Kind: Read}
	default:
		return Operation{Kind: Update, Record: m.last.Released(now.Mono)}
	}
}

func (m *Machine) wait() Operation {
	until := m.due
	if deadline := m.deadline(); m.state == Leading && !deadline.IsZero() {
		until = earlier(until, deadline)
	}
	return Operation{Kind: Wait, Until: until}
}

// expire ends the term if it has not been renewed in time.
func (m *Machine) expire(now Instant) {
	deadline := m.deadline()
	if age := now.Since(m.renewed); age >= Validity(m.config.LeaseDuration) {
		m.lose(fmt.Sprintf("the last confirmed renewal was sent %s ago", age.Round(time.Millisecond)))
	} else if !deadline.IsZero() && !now.Mono.Before(deadline) {
		m.lose("it could not be renewed")
	}
}

// deadline returns when a leader stops trying to renew the Lease, or zero if the last attempt has not failed.
func (m *Machine) deadline() time.Time {
	if m.failing.IsZero() {
		return time.Time{}
	}
	return m.failing.Add(m.config.RenewDeadline)
}

// decide returns what a candidate does about what it has found. It returns false if it waits until the next attempt.
func (m *Machine) decide(now Instant) (Operation, bool) {
	found, r := m.found, m.last
	m.found = nothing
	ours := r.Holder == m.config.Identity
	if m.state == Claiming && m.isClaimOver(now) {
		m.endClaim()
	}
	switch {
	case found == nothing:
		return Operation{}, false
	case found == noLease:
		return m.create(now), true
	case ours && m.state == Claiming: // wait
	case r.IsReleased() && m.yields(now): // wait
	case ours, r.IsReleased(), m.attempt.Sub(m.unchanged) >= r.blocks(m.config.LeaseDuration, m.former()):
		return Operation{Kind: Update, Record: m.held(r, now)}, true
	}
	m.due = m.nextAttempt(now)
	return Operation{}, false
}

func (m *Machine) held(r Record, now Instant) Record {
	return r.held(m.config.Identity, m.config.LeaseDuration, now.Mono)
}

// create creates the Lease. If the Lease has existed before, the new Lease is only a claim, because the previous holder
// may still be leading. It cannot have renewed the Lease since the deletion, so it stops leading within the duration of
// its record. The claim is not renewed: another replica that acquires the Lease meanwhile has waited for the duration
// in it, too. A process that has never seen the Lease leads at once, so that the first start is not delayed by a
// LeaseDuration.
func (m *Machine) create(now Instant) Operation {
	if m.existed {
		m.state, m.claims, m.claimedAt = Claiming, true, time.Time{}
		m.claimFor = max(m.config.LeaseDuration, m.former())
	}
	first := m.held(Record{}, now)
	first.Transitions = 0
	first.Duration = max(first.Duration, m.claimFor)
	return Operation{Kind: Create, Record: first}
}

// former returns the duration of the last holder that was observed, up to a limit.
func (m *Machine) former() time.Duration { return min(m.holderFor, m.config.MaxClaim) }

func (m *Machine) isClaimOver(now Instant) bool {
	return !m.claimedAt.IsZero() && now.Mono.Sub(m.claimedAt) >= m.claimFor
}

// endClaim is called when another replica has the Lease, or when this one can lead.
func (m *Machine) endClaim() { m.state, m.claims, m.claimedAt = Candidate, false, time.Time{} }

// confirmClaim is called when the Lease names this replica, which has recreated it.
func (m *Machine) confirmClaim(now Instant) {
	if m.claimedAt.IsZero() {
		m.claimedAt = now.Mono
		m.pending = append(m.pending, Operation{Kind: Claimed, Until: now.Mono.Add(m.claimFor)})
	}
}

// yields reports whether a candidate leaves a released Lease to the expected leader.
func (m *Machine) yields(now Instant) bool {
	limit := time.Duration(roles[m.config.Role].yields) * m.config.RetryPeriod
	return m.expected != "" && m.expected != m.config.Identity && m.expected != m.holder &&
		now.Mono.Sub(m.releasedAt) < limit
}

// nextAttempt returns when a candidate reads the Lease again.
func (m *Machine) nextAttempt(now Instant) time.Time {
	if jitter := roles[m.config.Role].jitter; jitter > 0 {
		return now.Mono.Add(time.Duration(float64(m.config.RetryPeriod) * (1 + jitter*m.config.Random())))
	}
	return m.attempt.Add(m.config.RetryPeriod)
}

// renew returns the next request of a leader. An attempt consists of an update and, if it fails, of a read and another
// update, because somebody may have changed the Lease without taking it.
func (m *Machine) renew(now Instant) Operation {
	if m.step == write {
		m.attempt = now.Mono
	}
	if m.failing.IsZero() {
		m.failing = m.attempt
	}
	op := Operation{Kind: Read, Deadline: m.deadline()}
	if m.step != read {
		op.Kind, op.Record = Update, m.held(m.last, now)
	}
	return op
}

// retry makes the next attempt of a leader due.
func (m *Machine) retry(now Instant) {
	m.step, m.due = write, later(now.Mono, m.attempt.Add(m.config.RetryPeriod))
}

func (m *Machine) lose(reason string) {
	m.state = Over
	m.pending = append(m.pending, Operation{Kind: Lose, Reason: reason})
}

// report reports a leader unless it was reported before.
func (m *Machine) report(leader string) {
	if m.leader != leader {
		m.leader = leader
		m.pending = append(m.pending, Operation{Kind: Report, Leader: leader})
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
