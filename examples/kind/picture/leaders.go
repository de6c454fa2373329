package main

import (
	"regexp"
	"time"
)

// leadership records when each Pod led.
type leadership struct {
	spans []span
	gaps  []gap
	// leader is the Pod that has led since the end of the last gap.
	leader string
	since  time.Duration
}

// span is a period in which a Pod led.
type span struct {
	pod      string
	from, to time.Duration
}

// gap is the time from a fault or an operation until the demonstration observed another leader.
type gap struct {
	cause    string
	from, to time.Duration
}

var (
	killedFormat  = regexp.MustCompile(`^killed the leader (\S+) `)
	leadsFormat   = regexp.MustCompile(`^(\S+) leads (\d+) ms after the kill`)
	drainedFormat = regexp.MustCompile(`^drained the node \S+: \S+ released the lease and (\S+) leads after (\d+) ms`)
	updatedFormat = regexp.MustCompile(`^replaced all Pods of the platform in (\d+) ms: (\S+) leads`)
)

// add adds the information in a line of the output. The line was printed at the time at, and its chapter began at the
// time began.
func (l *leadership) add(began, at time.Duration, text string) {
	if match := killedFormat.FindStringSubmatch(text); match != nil {
		l.begin(match[1], 0)
		l.interrupt("leader killed", at)
	} else if match := leadsFormat.FindStringSubmatch(text); match != nil && len(l.gaps) > 0 {
		l.begin(match[1], l.gaps[len(l.gaps)-1].from+milliseconds(match[2]))
	} else if match := drainedFormat.FindStringSubmatch(text); match != nil {
		l.interrupt("node drained", began)
		l.begin(match[1], began+milliseconds(match[2]))
	} else if match := updatedFormat.FindStringSubmatch(text); match != nil {
		l.interrupt("rolling update", at-milliseconds(match[1]))
		l.begin(match[2], at)
	}
}

// begin makes the Pod the leader and ends an open gap.
func (l *leadership) begin(pod string, at time.Duration) {
	if n := len(l.gaps); n > 0 {
		l.gaps[n-1].to = at
	}
	l.leader, l.since = pod, at
}

// interrupt begins a gap.
func (l *leadership) interrupt(cause string, at time.Duration) {
	l.end(at)
	l.gaps = append(l.gaps, gap{cause: cause, from: at})
}

// end ends the span of the leader.
func (l *leadership) end(at time.Duration) {
	if l.leader != "" {
		l.spans = append(l.spans, span{l.leader, l.since, at})
	}
	l.leader = ""
}
