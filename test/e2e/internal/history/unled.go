package history

import (
	"slices"
	"strings"
	"time"
)

// disturbances are the faults that affect whole processes.
type disturbances struct {
	started map[string]Time
	ended   map[string]Time   // When the process was killed or has exited.
	stops   map[string][]span // When the process was stopped.
	stalls  map[string][]span // When the connections of the process were stalled or reset.
	down    []span            // When the API server was not running.
	forced  []Event           // Changes of leases by force.
}

func disturbancesOf(events []Event) disturbances {
	d := disturbances{
		started: map[string]Time{}, ended: map[string]Time{}, stops: map[string][]span{}, stalls: map[string][]span{},
	}
	end := func(spans []span, t Time) {
		if n := len(spans); n > 0 && spans[n-1].to == never {
			spans[n-1].to = t
		}
	}
	for _, e := range events {
		switch e.Kind {
		case Started:
			d.started[e.Process] = e.At
		case Killed, Exit:
			if _, ok := d.ended[e.Process]; !ok {
				d.ended[e.Process] = e.At
			}
		case Stopped:
			d.stops[e.Process] = append(d.stops[e.Process], span{e.At, never})
		case Resumed:
			end(d.stops[e.Process], e.At)
		case Stalled:
			d.stalls[e.Process] = append(d.stalls[e.Process], span{e.At, never})
		case Healed:
			end(d.stalls[e.Process], e.At)
		case Down:
			d.down = append(d.down, span{e.At, never})
		case Up:
			end(d.down, e.At)
		case Forced:
			d.forced = append(d.forced, e)
		}
	}
	return d
}

// undisturbed returns the longest time within the period during which the process works without a disturbance.
func (d disturbances) undisturbed(process string, period span) (longest time.Duration) {
	from := max(period.from, d.started[process])
	to := period.to
	if ended, ok := d.ended[process]; ok {
		to = min(to, ended)
	}
	for from < to {
		until, next := to, to
		for _, spans := range [][]span{d.stops[process], d.stalls[process], d.down} {
			for _, s := range spans {
				if s.to > from && max(s.from, from) < until {
					until, next = max(s.from, from), s.to
				}
			}
		}
		longest = max(longest, until.Sub(from))
		from = next
	}
	return longest
}

// checkUnled checks how long the lease had no leader. The time counts while a candidate can read the lease, while the
// plan names a replica that keeps the shard warm, and while any replica works without a disturbance. It begins again if
// the test changes the lease by force.
func (c *checker) checkUnled() {
	if c.rules.Takeover == 0 || len(c.terms) == 0 {
		return
	}
	before := c.terms[0]
	for _, t := range c.terms[1:] {
		gap := span{c.abandoned(before), t.from}
		if t.until > before.until {
			before = t
		}
		gap = c.afterForce(gap)
		if gap.from >= gap.to {
			continue
		}
		waited := c.longestCandidacy(gap)
		if waited > 0 {
			c.report.Unled = append(c.report.Unled, waited)
		}
		if waited > c.rules.Takeover {
			c.violation(Event{At: gap.to, Process: t.process},
				"term %d started after a candidate had waited for %s, at most %s are allowed",
				t.number, waited, c.rules.Takeover)
		}
		if copied := c.warmCopy(gap); copied != "" && gap.to.Sub(gap.from) > c.rules.Takeover {
			c.violation(Event{At: gap.to, Process: t.process},
				"term %d started after %s had kept the shard warm for %s without a leader, at most %s are allowed",
				t.number, copied, gap.to.Sub(gap.from), c.rules.Takeover)
		}
		for process := range c.started {
			if idle := c.undisturbed(process, gap); idle > c.rules.Assigned {
				c.violation(Event{At: gap.to, Process: t.process}, "term %d started after %s had worked for %s without a leader, "+
					"at most %s are allowed", t.number, process, idle, c.rules.Assigned)
			}
		}
	}
}

// afterForce returns the part of a period after which changes of the lease by force have no effect any more.
func (c *checker) afterForce(period span) span {
	for _, e := range c.forced {
		if e.At < period.to {
			period.from = max(period.from, e.At.Add(c.respected(e.Lease)))
		}
	}
	return period
}

// warmCopy returns a process that the plan names for the shard, and that keeps the shard warm, throughout the period
// and for some time before it. Nothing disturbs the process, and the test has not just changed a lease by force. Such a
// process campaigns. warmCopy returns an empty string if there is none.
func (c *checker) warmCopy(period span) string {
	period.from = period.from.Add(-c.rules.ReadInterval)
	since := period.from
	for _, e := range c.forced {
		if e.At < period.to && e.At.Add(2*c.respected(e.Lease)) > since {
			return ""
		}
	}
	identity, warm := map[string]string{}, map[string]bool{}
	plans := []string{""} // In effect during the period.
	for _, e := range c.events {
		switch {
		case e.At > period.to:
		case e.Kind == Started:
			identity[e.Process] = e.Holder
		case e.Kind == Planned && e.At <= since:
			plans = []string{e.Holder}
		case e.Kind == Planned:
			plans = append(plans, e.Holder)
		case e.Kind == Warm && e.At <= since:
			warm[e.Process] = true
		case e.Kind == Cold:
			delete(warm, e.Process)
		}
	}
	for process := range warm {
		isOmitted := slices.ContainsFunc(plans, func(plan string) bool {
			return !slices.Contains(strings.Fields(plan), identity[process])
		})
		if !isOmitted && c.undisturbed(process, period) == period.to.Sub(period.from) {
			return process
		}
	}
	return ""
}

// abandoned returns the time from which another replica must take over from a term. If the runnables have returned, the
// lease was released. Otherwise, the time counts from the last renewal.
func (c *checker) abandoned(t *term) Time {
	if t.until == t.returned {
		return t.returned
	}
	return last(c.leaseOf(t.process).confirmed, t.until)
}

func (c *checker) respected(lease string) time.Duration {
	if d, ok := c.rules.Respected[lease]; ok {
		return d
	}
	return c.rules.Respected[""]
}

// longestCandidacy returns the longest time within a period during which a process reads the lease regularly.
func (c *checker) longestCandidacy(period span) (longest time.Duration) {
	type candidacy struct{ from, last Time }
	candidates := map[string]candidacy{}
	for _, e := range c.events {
		if e.Kind != Read || e.At > period.to {
			continue
		}
		current, ok := candidates[e.Process]
		if !ok || e.At.Sub(current.last) > c.rules.ReadInterval {
			current.from = e.At
		}
		current.last = e.At
		candidates[e.Process] = current
		if e.At > period.from {
			longest = max(longest, e.At.Sub(max(current.from, period.from)))
		}
	}
	return longest
}
