package history

import (
	"fmt"
	"strings"
	"time"
)

// Rules are what a replica's options imply, for Check to hold the log against.
type Rules struct {
	// Certain is for how long after a renewal was sent, if it is confirmed, a replica leads at the most: its fence closes
	// then.
	Certain time.Duration
	// AfterTake is for how long a replica may lead beside the one that was given its lease by force: RetryPeriod and one
	// request.
	AfterTake time.Duration
	// Slack is how much later than it was decided on a handler may be seen to begin: after a loss, and in a process that
	// was stopped in between. Its writes are not excused.
	Slack time.Duration
}

// Report is what a log tells.
type Report struct {
	Violations []string

	Terms    int // of leading, of all replicas
	Handlers int // calls
	Writes   int // that passed the fence
	Refused  int // by the fence
	Cut      int // passed the fence, and did not see their end
	Late     int // writes that took effect after someone else had got the lease, or it was given back
	Excused  int // handlers that began beside another leader within Rules.AfterTake
	Thawed   int // and within Rules.Slack of being resumed
	// Handovers are the times between the last write of one leader and the first handler of the next.
	Handovers []time.Duration
}

func (r Report) String() string {
	times := make([]string, len(r.Handovers))
	for i, d := range r.Handovers {
		times[i] = d.Round(time.Millisecond).String()
	}
	return fmt.Sprintf("%d terms, %d handlers, %d writes, %d refused, %d cut short, %d late arrivals, %d handlers excused after a force-take, %d after a stop; handovers: %s",
		r.Terms, r.Handlers, r.Writes, r.Refused, r.Cut, r.Late, r.Excused, r.Thawed, strings.Join(times, " "))
}

// Check looks for what must not be in a log, which is in the order of time.
func Check(events []Event, rules Rules) Report {
	c := &checker{rules: rules, events: events, leases: map[string]*lease{}, open: map[string]map[string]Event{}, begun: map[attempt]Event{}}
	c.collect()
	c.leadAlone()
	c.handleAlone()
	c.startOnce()
	c.writeInside()
	c.reconcileLast()
	c.countLate()
	c.timeHandovers()
	return c.report
}

type checker struct {
	rules  Rules
	events []Event
	report Report

	terms  []*term
	leases map[string]*lease // by process
	takes  []span
	thaws  []Event
	begun  map[attempt]Event           // writes
	open   map[string]map[string]Event // handlers that run, by process and object
}

func (c *checker) violation(e Event, format string, args ...any) {
	c.report.Violations = append(c.report.Violations, fmt.Sprintf("%s: %s: ", at(e.At), e.Who)+fmt.Sprintf(format, args...))
}

// at is for people: seconds.
func at(t Time) string {
	if t < 0 {
		return "no time"
	}
	return fmt.Sprintf("%.6f", time.Duration(t).Seconds())
}

// timeHandovers takes the times between leaders.
func (c *checker) timeHandovers() {
	for i, t := range c.terms {
		if i == 0 {
			continue
		}
		before, wrote := c.terms[i-1], Time(0)
		for _, e := range c.events {
			if e.Kind == Sent && e.Who == before.who && e.Term == before.number && e.At < t.from {
				wrote = e.At
			}
			if e.Kind == Begin && e.Who == t.who && e.Term == t.number && e.At >= t.from {
				if wrote > 0 {
					c.report.Handovers = append(c.report.Handovers, e.At.Sub(wrote))
				}
				break
			}
		}
	}
}
