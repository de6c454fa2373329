package history

import "math"

// term is one stretch of leading.
type term struct {
	who         string
	number      int64
	from, until Time // at the latest
	lost        Time // as it noticed
	returned    Time // of the leading half
}

// lease is what one process did with the lease.
type lease struct {
	confirmed []Time // when renewals were sent that were confirmed
	ends      []Time // losses that it noticed, and releases that it sent
}

// last is the latest of the times that is not after t, or one before everything.
func last(times []Time, t Time) Time {
	found := Time(math.MinInt64 / 2) // a duration can be added
	for _, at := range times {
		if at <= t {
			found = max(found, at)
		}
	}
	return found
}

type span struct{ from, to Time }

func (s span) has(t Time) bool { return s.from <= t && t <= s.to }

const never = Time(math.MaxInt64)

// collect finds out who led when at the latest, whatever the replicas believed.
func (c *checker) collect() {
	renewals := map[attempt]Time{}
	current := map[string]*term{}
	for _, e := range c.events {
		l := c.leaseOf(e.Who)
		t := current[e.Who]
		switch e.Kind {
		case Renew:
			renewals[attempt{e.Who, e.ID}] = e.At
		case Renewed:
			l.confirmed = append(l.confirmed, renewals[attempt{e.Who, e.ID}])
		case Leads:
			if t != nil && t.returned == never {
				c.violation(e, "leads in term %d before the work of term %d has returned", e.Term, t.number)
			}
			if t == nil && e.Term != 1 || t != nil && e.Term != t.number+1 {
				c.violation(e, "counts term %d as its next", e.Term)
			}
			t = &term{who: e.Who, number: e.Term, from: e.At, until: never, lost: never, returned: never}
			current[e.Who] = t
			c.terms = append(c.terms, t)
		case Lost, Release:
			l.ends = append(l.ends, e.At)
			if t != nil {
				t.until = min(t.until, e.At)
			}
			if t != nil && e.Kind == Lost {
				t.lost = e.At
			}
		case Led:
			if t != nil {
				t.until, t.returned = min(t.until, e.At), e.At
			}
		case Taking:
			c.takes = append(c.takes, span{e.At, e.At.Add(c.rules.AfterTake)})
		case Taken:
			if n := len(c.takes); n > 0 {
				c.takes[n-1].to = e.At.Add(c.rules.AfterTake)
			}
		case Resumed:
			c.thaws = append(c.thaws, e)
		}
	}
	for _, t := range c.terms {
		confirmed := c.leaseOf(t.who).confirmed
		won := last(confirmed, t.from)
		if won.Add(c.rules.Certain) < t.from && !c.stoppedSince(won, t) {
			c.violation(Event{At: t.from, Who: t.who}, "leads in term %d without a lease", t.number)
		}
		t.until = min(t.until, last(confirmed, t.until).Add(c.rules.Certain))
	}
	c.report.Terms = len(c.terms)
}

// stoppedSince tells whether the process was stopped between winning a term and noting that it leads.
func (c *checker) stoppedSince(won Time, t *term) bool {
	for _, thaw := range c.thaws {
		if thaw.Who == t.who && (span{won, t.from}).has(thaw.At) {
			return true
		}
	}
	return false
}

func (c *checker) leaseOf(who string) *lease {
	if c.leases[who] == nil {
		c.leases[who] = &lease{}
	}
	return c.leases[who]
}

// taken tells whether the lease had just been given away by force.
func (c *checker) taken(t Time) bool {
	for _, s := range c.takes {
		if s.has(t) {
			return true
		}
	}
	return false
}

// leadAlone: no two replicas lead at once.
func (c *checker) leadAlone() {
	for i, a := range c.terms {
		for _, b := range c.terms[i+1:] {
			from, until := max(a.from, b.from), min(a.until, b.until)
			if a.who == b.who || from >= until || c.taken(from) && c.taken(until) {
				continue
			}
			c.violation(Event{At: from, Who: b.who}, "leads in term %d while %s does in its term %d, for %s",
				b.number, a.who, a.number, until.Sub(from))
		}
	}
}

// thawed tells whether the process had just been resumed.
func (c *checker) thawed(e Event) bool {
	for _, thaw := range c.thaws {
		if thaw.Who == e.Who && (span{thaw.At, thaw.At.Add(c.rules.Slack)}).has(e.At) {
			return true
		}
	}
	return false
}
