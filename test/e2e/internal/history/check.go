package history

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Rules are limits that follow from the options of the replicas.
type Rules struct {
	// Certain is how long a replica may lead after it sends a renewal that is then confirmed. After that time, the
	// replica's fence must be closed.
	Certain time.Duration
	// AfterTake is the maximum time that two replicas can lead at once after the test has changed the holder of the lease.
	// It is the sum of RetryPeriod and the duration of one request.
	AfterTake time.Duration
	// Slack is the tolerated delay between the decision to call a handler and the logged start of the call. It applies
	// after the lease is lost and after a stopped process is resumed. It does not apply to writes.
	Slack time.Duration
	// Takeover is the maximum time that a lease has no leader while a candidate can read it, after the last renewal or the
	// release by the previous leader. Zero disables the check.
	Takeover time.Duration
	// ReadInterval is the maximum time between two reads of the lease by a candidate that works.
	ReadInterval time.Duration
	// Assigned is the maximum time that a lease has no leader while a replica works that nothing disturbs. The replica
	// need not be a candidate at first.
	Assigned time.Duration
	// Respected is how long replicas wait before they lead after the test has changed a lease by force. The zero key
	// stands for all leases without a key of their own.
	Respected map[string]time.Duration
	// ServerDelay is the maximum time that the API server admits late writes after a change of the lease. If it is zero,
	// the API server admits all late writes.
	ServerDelay time.Duration
	// Fleet is the lease that all other leases depend on, or empty if there is no such lease.
	Fleet string
}

// Report is the result of Check.
type Report struct {
	Violations []string

	Terms       int // Terms of all replicas.
	Handlers    int // Handler calls.
	Writes      int // Writes that passed the fence.
	Rejected    int // Writes that were rejected by the fence.
	Interrupted int // Writes that passed the fence and failed.
	Tolerated   int // Handler calls while another replica led, within Rules.AfterTake of a lease change.
	Resumed     int // Handler calls while another replica led, within Rules.Slack of a resumption.
	Suspended   int // Handler calls during a call for the same object in a process that was stopped.
	Overlapping int // Those of Tolerated and Resumed that began during a call for the same object in another process.
	// Late contains the number of writes that took effect when their writer no longer held the lease, by reason.
	Late map[string]int
	// Handovers are the durations between a leader's last write and the next leader's first handler call.
	Handovers []time.Duration
	// Unled are the durations without a leader, while a candidate could read the lease and the test did not change it.
	Unled []time.Duration
}

func (r Report) String() string {
	late := 0
	var reasons []string
	for _, reason := range slices.Sorted(maps.Keys(r.Late)) {
		late += r.Late[reason]
		reasons = append(reasons, fmt.Sprintf("%d %s", r.Late[reason], reason))
	}
	explained := ""
	if late > 0 {
		explained = " (" + strings.Join(reasons, ", ") + ")"
	}
	return fmt.Sprintf("%d terms, %d handler calls, %d writes, %d rejected, %d interrupted, %d late%s, "+
		"%d tolerated after a lease change, %d after a resumption (%d of them overlap), %d during a suspended call; "+
		"handovers: %s; unled: %s",
		r.Terms, r.Handlers, r.Writes, r.Rejected, r.Interrupted, late, explained, r.Tolerated, r.Resumed, r.Overlapping,
		r.Suspended, summary(r.Handovers), summary(r.Unled))
}

// summary returns the number, the median and the maximum of durations.
func summary(durations []time.Duration) string {
	if len(durations) == 0 {
		return "none"
	}
	sorted := slices.Sorted(slices.Values(durations))
	return fmt.Sprintf("%d, median %s, at most %s", len(sorted), sorted[len(sorted)/2].Round(time.Millisecond),
		sorted[len(sorted)-1].Round(time.Millisecond))
}

// add adds the counts and the violations of another report.
func (r *Report) add(other Report) {
	r.Violations = append(r.Violations, other.Violations...)
	r.Terms += other.Terms
	r.Handlers += other.Handlers
	r.Writes += other.Writes
	r.Rejected += other.Rejected
	r.Interrupted += other.Interrupted
	r.Tolerated += other.Tolerated
	r.Resumed += other.Resumed
	r.Suspended += other.Suspended
	r.Overlapping += other.Overlapping
	for reason, n := range other.Late {
		r.late(reason, n)
	}
	r.Handovers = append(r.Handovers, other.Handovers...)
	r.Unled = append(r.Unled, other.Unled...)
}

func (r *Report) late(reason string, n int) {
	if r.Late == nil {
		r.Late = map[string]int{}
	}
	r.Late[reason] += n
}

// Check returns the violations and statistics of a log. The events must be ordered by time. Each lease has its own
// leaders, so Check checks the events of each lease separately, each time together with the events that concern whole
// processes.
func Check(events []Event, rules Rules) Report {
	var report Report
	for _, part := range byLease(events, rules.Fleet) {
		c := &checker{
			rules: rules, name: part.lease, events: part.events, disturbances: disturbancesOf(part.events),
			leases: map[string]*lease{}, running: map[string]map[string]Event{}, writes: map[attempt]Event{},
		}
		c.collectTerms()
		c.limitTerms()
		c.checkTerms()
		c.checkHandlers()
		c.checkWatches()
		c.checkWrites()
		c.explainLateWrites()
		c.checkConcurrentCalls()
		c.checkUnled()
		c.timeHandovers()
		report.add(c.report)
	}
	c := &checker{rules: rules, events: events}
	c.checkLeases()
	c.checkLastChanges()
	report.add(c.report)
	return report
}

// part is the part of a log that concerns one lease.
type part struct {
	lease  string
	events []Event
}

// byLease returns the part of each lease. A log in which no event names a lease is one part. Changes by force to the
// fleet's lease are contained in all parts.
func byLease(events []Event, fleet string) (parts []part) {
	names := map[string]bool{}
	for _, e := range events {
		if e.Lease != "" {
			names[e.Lease] = true
		}
	}
	if len(names) == 0 {
		return []part{{events: events}}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		p := part{lease: name}
		for _, e := range events {
			if e.Lease == name || e.Lease == "" && !e.Kind.needsLease() || e.Kind == Forced && e.Lease == fleet {
				p.events = append(p.events, e)
			}
		}
		parts = append(parts, p)
	}
	return parts
}

type checker struct {
	rules  Rules
	name   string // Of the lease.
	events []Event
	report Report
	disturbances

	terms       []*term
	leases      map[string]*lease // By process.
	takes       []span
	resumptions []Event
	writes      map[attempt]Event
	running     map[string]map[string]Event // Running handlers, by process and object.
}

func (c *checker) violation(e Event, format string, args ...any) {
	where := e.Process
	if c.name != "" {
		where += ": " + c.name
	}
	c.report.Violations = append(c.report.Violations,
		fmt.Sprintf("%s: %s: ", at(e.At), where)+fmt.Sprintf(format, args...))
}

// at formats a time in seconds.
func at(t Time) string {
	if t < 0 {
		return "no time"
	}
	return fmt.Sprintf("%.6f", time.Duration(t).Seconds())
}

// timeHandovers measures the handovers between successive leaders.
func (c *checker) timeHandovers() {
	for i, t := range c.terms {
		if i == 0 {
			continue
		}
		before, wrote := c.terms[i-1], Time(0)
		for _, e := range c.events {
			if e.Kind == Sent && e.Process == before.process && e.Term == before.number && e.At < t.from {
				wrote = e.At
			}
			if e.Kind == Begin && e.Process == t.process && e.Term == t.number && e.At >= t.from {
				if wrote > 0 {
					c.report.Handovers = append(c.report.Handovers, e.At.Sub(wrote))
				}
				break
			}
		}
	}
}
