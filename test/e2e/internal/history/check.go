package history

import (
	"fmt"
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
}

// Report is the result of Check.
type Report struct {
	Violations []string

	Terms       int // Terms of all replicas.
	Handlers    int // Handler calls.
	Writes      int // Writes that passed the fence.
	Rejected    int // Writes that were rejected by the fence.
	Interrupted int // Writes that passed the fence and failed.
	Late        int // Writes that took effect when their writer no longer held the lease.
	Tolerated   int // Handler calls while another replica led, within Rules.AfterTake of a lease change.
	Resumed     int // Handler calls while another replica led, within Rules.Slack of a resumption.
	// Handovers are the durations between a leader's last write and the next leader's first handler call.
	Handovers []time.Duration
}

func (r Report) String() string {
	times := make([]string, len(r.Handovers))
	for i, d := range r.Handovers {
		times[i] = d.Round(time.Millisecond).String()
	}
	return fmt.Sprintf("%d terms, %d handler calls, %d writes, %d rejected, %d interrupted, %d late, "+
		"%d tolerated after a lease change, %d after a resumption; handovers: %s",
		r.Terms, r.Handlers, r.Writes, r.Rejected, r.Interrupted, r.Late, r.Tolerated, r.Resumed, strings.Join(times, " "))
}

// Check returns the violations and statistics of a log. The events must be ordered by time.
func Check(events []Event, rules Rules) Report {
	c := &checker{
		rules: rules, events: events,
		leases: map[string]*lease{}, running: map[string]map[string]Event{}, writes: map[attempt]Event{},
	}
	c.collectTerms()
	c.limitTerms()
	c.checkTerms()
	c.checkHandlers()
	c.checkWatches()
	c.checkWrites()
	c.checkLastChanges()
	c.countLateWrites()
	c.timeHandovers()
	return c.report
}

type checker struct {
	rules  Rules
	events []Event
	report Report

	terms       []*term
	leases      map[string]*lease // By process.
	takes       []span
	resumptions []Event
	writes      map[attempt]Event
	running     map[string]map[string]Event // Running handlers, by process and object.
}

func (c *checker) violation(e Event, format string, args ...any) {
	c.report.Violations = append(c.report.Violations, fmt.Sprintf("%s: %s: ", at(e.At), e.Process)+fmt.Sprintf(format,
		args...))
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
