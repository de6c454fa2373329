package election

import "time"

// Answer records the answer to a request that Next has returned.
func (m *Machine) Answer(op Operation, a Answer, now Instant) {
	switch {
	case m.state == Over: // the term has ended meanwhile
	case op.Kind == Confirm:
		m.answerConfirm(a, now)
	case op.Kind == Read && a.Outcome == Succeeded:
		m.existed = true
		m.observe(a.Record)
		m.answerRead(a.Record, now)
	case op.Kind == Read && a.Outcome == Missing:
		m.answerMissing(now)
	case a.Outcome == Succeeded:
		m.existed, m.mayHold, m.inFlight = true, false, false
		m.last = op.Record
		m.answerWrite(op, a, now)
	default:
		m.answerFailure(op, a, now)
	}
}

// observe records the holder that a response contained.
func (m *Machine) observe(r Record) {
	if r.Holder != "" {
		m.holder, m.holderFor, m.releasedAt = r.Holder, r.Duration, time.Time{}
	}
}

// answerRead continues after the Lease was read.
func (m *Machine) answerRead(r Record, now Instant) {
	changed := !m.last.equal(r) || m.unchanged.IsZero()
	before := m.last
	m.last = r
	ours := r.Holder == m.config.Identity
	switch m.state {
	case Releasing:
		if m.step = write; !ours {
			m.notHeld(now, before.equal(r))
		}
		return
	case Leading:
		m.step = rewrite
		if ours {
			return
		}
		m.report(r.Holder)
		if r.Holder == "" {
			m.lose("somebody emptied it")
		} else {
			m.lose("it is held by " + r.Holder)
		}
		return
	}
	if changed {
		m.unchanged = now.Mono
	}
	if r.Holder == "" && m.releasedAt.IsZero() {
		m.releasedAt = now.Mono
	}
	m.found = aLease
	if !ours {
		m.endClaim()
		m.report(r.Holder)
		return
	}
	m.report("") // a claim, or the Lease of a term that is over
	if m.state == Claiming {
		m.confirmClaim(now)
	}
}

// notHeld is called if the Lease that is to be released does not name this replica. If the Lease has not changed since
// a write was sent whose outcome is unknown, that write may take effect now. The Lease is then read once more.
func (m *Machine) notHeld(now Instant, unchanged bool) {
	if m.inFlight && unchanged {
		m.inFlight, m.step, m.due = false, read, now.Mono.Add(m.config.RetryPeriod/2)
		return
	}
	m.state, m.mayHold, m.inFlight = Over, false, false
}

// answerMissing continues after a read that has found no Lease.
func (m *Machine) answerMissing(now Instant) {
	switch m.state {
	case Releasing:
		m.notHeld(now, true)
	case Leading:
		m.report("")
		m.lose("somebody deleted it")
	default:
		m.found = noLease
		if m.existed {
			m.report("")
		}
	}
}

// answerWrite continues after a write that has succeeded.
func (m *Machine) answerWrite(op Operation, a Answer, now Instant) {
	switch m.state {
	case Leading:
		m.failing, m.renewed = time.Time{}, a.Sent
		m.pending = append(m.pending, Operation{Kind: Renew, Sent: a.Sent})
		m.retry(now)
	case Releasing:
		m.state = Over
		m.report("")
	case Returning:
		m.state, m.due = Candidate, m.nextAttempt(now)
	case Claiming:
		m.confirmClaim(now)
		m.due = m.nextAttempt(now)
	default:
		m.acquire(a)
	}
}

// acquire is called when this replica has acquired the Lease.
func (m *Machine) acquire(a Answer) {
	m.renewed = a.Sent
	if m.state = Confirming; !roles[m.config.Role].confirms {
		m.begin()
	}
}

func (m *Machine) begin() {
	m.state, m.step, m.failing = Leading, write, time.Time{}
	m.due = m.renewed.Mono.Add(m.config.RetryPeriod)
	m.observe(m.last)
	m.pending = append(m.pending, Operation{Kind: Begin, Sent: m.renewed})
	m.report(m.config.Identity)
}

func (m *Machine) answerConfirm(a Answer, now Instant) {
	switch {
	case a.Outcome != Succeeded:
		m.state = Returning
	case now.Since(m.renewed) >= Validity(m.config.LeaseDuration): // the answer has taken too long
		m.state, m.mayHold, m.due = Candidate, true, m.nextAttempt(now)
	default:
		m.begin()
	}
}

// answerFailure continues after a request that has failed.
func (m *Machine) answerFailure(op Operation, a Answer, now Instant) {
	switch m.state {
	case Leading:
		switch {
		case a.Outcome == Missing:
			m.report("")
			m.lose("somebody deleted it")
		case m.step == write:
			m.step = read
		default:
			m.retry(now)
		}
	case Releasing:
		m.step, m.due = read, now.Mono.Add(m.config.RetryPeriod/2)
		if a.Outcome == Denied {
			m.state = Over
		}
	case Returning:
		m.state, m.mayHold, m.due = Candidate, true, m.nextAttempt(now)
	default:
		if op.Kind != Read && a.Outcome == Unknown {
			m.mayHold, m.inFlight = true, true
		}
		m.due = m.nextAttempt(now)
	}
}
