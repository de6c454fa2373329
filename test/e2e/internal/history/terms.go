package history

import (
	"math"
	"slices"
)

// term is a period in which a replica leads.
type term struct {
	process     string
	number      int64
	from, until Time // The longest period in which the replica could have led.
	lost        Time // When the replica detected the loss of the lease.
	returned    Time // When the leader-gated runnables returned.
}

// lease records when one process renewed and gave up the lease.
type lease struct {
	confirmed []Time // When the confirmed renewals were sent.
	ends      []Time // When losses were detected and releases were sent.
}

// last returns the latest of the times at or before t. If all times are later than t, it returns a time before all
// events.
func last(times []Time, t Time) Time {
	found := Time(math.MinInt64 / 2) // Adding a duration must not overflow.
	for _, at := range times {
		if at <= t {
			found = max(found, at)
		}
	}
	return found
}

type span struct{ from, to Time }

func overlaps(spans []span, period span) bool {
	return slices.ContainsFunc(spans, func(s span) bool { return s.from <= period.to && period.from <= s.to })
}

func (s span) has(t Time) bool { return s.from <= t && t <= s.to }

const never = Time(math.MaxInt64)

// collectTerms collects the terms, renewals and releases of all replicas, and the test's actions that affect them.
func (c *checker) collectTerms() {
	renewals := map[attempt]Time{}
	current := map[string]*term{}
	for _, e := range c.events {
		l := c.leaseOf(e.Process)
		t := current[e.Process]
		switch e.Kind {
		case Renew:
			renewals[attempt{e.Process, e.ID}] = e.At
		case Renewed:
			l.confirmed = append(l.confirmed, renewals[attempt{e.Process, e.ID}])
		case Leads:
			current[e.Process] = c.startTerm(e, t)
		case Lost, Release:
			l.ends = append(l.ends, e.At)
			t.end(e)
		case Led:
			t.end(e)
		case Taking:
			c.takes = append(c.takes, span{e.At, e.At.Add(c.rules.AfterTake)})
		case Taken:
			if n := len(c.takes); n > 0 {
				c.takes[n-1].to = e.At.Add(c.rules.AfterTake)
			}
		case Resumed:
			c.resumptions = append(c.resumptions, e)
		}
	}
	c.report.Terms = len(c.terms)
}

// startTerm starts a term of a replica. before is the replica's previous term, or nil. A term that ends before its
// runnables have started has a number, but no event.
func (c *checker) startTerm(e Event, before *term) *term {
	if before != nil && before.returned == never {
		c.violation(e, "term %d started before the runnables of term %d returned", e.Term, before.number)
	}
	if before != nil && e.Term <= before.number {
		c.violation(e, "term %d follows term %d", e.Term, before.number)
	}
	t := &term{process: e.Process, number: e.Term, from: e.At, until: never, lost: never, returned: never}
	c.terms = append(c.terms, t)
	return t
}

// end applies an event that ends a term. The term can be nil.
func (t *term) end(e Event) {
	if t == nil {
		return
	}
	t.until = min(t.until, e.At)
	switch e.Kind {
	case Lost:
		t.lost = e.At
	case Led:
		t.returned = e.At
	}
}

// limitTerms ends each term no later than when the term's last confirmed renewal expires, even if the replica continued
// to lead.
func (c *checker) limitTerms() {
	for _, t := range c.terms {
		confirmed := c.leaseOf(t.process).confirmed
		won := last(confirmed, t.from)
		if won.Add(c.rules.Certain) < t.from && !c.stoppedSince(won, t) {
			c.violation(Event{At: t.from, Process: t.process}, "term %d started without a lease", t.number)
		}
		t.until = min(t.until, last(confirmed, t.until).Add(c.rules.Certain))
	}
}

// stoppedSince reports whether the process was stopped and resumed between acquiring the lease and starting the term.
func (c *checker) stoppedSince(won Time, t *term) bool {
	for _, resumed := range c.resumptions {
		if resumed.Process == t.process && (span{won, t.from}).has(resumed.At) {
			return true
		}
	}
	return false
}

func (c *checker) leaseOf(process string) *lease {
	if c.leases[process] == nil {
		c.leases[process] = &lease{}
	}
	return c.leases[process]
}

// taken reports whether, at time t, the test had just changed the holder of the lease.
func (c *checker) taken(t Time) bool {
	for _, s := range c.takes {
		if s.has(t) {
			return true
		}
	}
	return false
}

// checkTerms checks that terms of different replicas do not overlap.
func (c *checker) checkTerms() {
	for i, a := range c.terms {
		for _, b := range c.terms[i+1:] {
			from, until := max(a.from, b.from), min(a.until, b.until)
			if a.process == b.process || from >= until || c.taken(from) && c.taken(until) {
				continue
			}
			c.violation(Event{At: from, Process: b.process}, "term %d overlaps term %[3]d of %[2]s for %[4]s",
				b.number, a.process, a.number, until.Sub(from))
		}
	}
}

// justResumed reports whether the event's process had just been resumed.
func (c *checker) justResumed(e Event) bool {
	for _, resumed := range c.resumptions {
		if resumed.Process == e.Process && (span{resumed.At, resumed.At.Add(c.rules.Slack)}).has(e.At) {
			return true
		}
	}
	return false
}
