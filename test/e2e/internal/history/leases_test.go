package history

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// of returns the history with the lease in all events that concern one.
func (h history) of(lease string) history {
	all := slices.Clone(h)
	for i, e := range all {
		switch e.Kind {
		case Started, Stopped, Resumed, Stalled, Healed, Killed, Down, Up, Changed:
		default:
			all[i].Lease = lease
		}
	}
	return all
}

// other returns a history of another lease, which process b leads from second 1.5 on.
func other() history {
	h := history{{At: s(1.52), Process: "b", Kind: Leads, Term: 1}}
	for at := 1.5; at < 9; at += 0.5 {
		h = h.with(renew("b", at)...)
	}
	return h.with(handle("b", 1, "y", 0, 2)...).of("two")
}

func (h history) want(t *testing.T, rules Rules, want string) Report {
	t.Helper()
	slices.SortStableFunc(h, func(a, b Event) int { return int(a.At - b.At) })
	report := Check(h, rules)
	switch got := report.Violations; {
	case want == "" && len(got) > 0:
		t.Errorf("got violations %q, want none", got)
	case want != "" && (len(got) != 1 || !strings.Contains(got[0], want)):
		t.Errorf("got violations %q, want one that contains %q", got, want)
	}
	return report
}

func TestCheck_ChecksEachLeaseSeparately(t *testing.T) {
	both := good().of("one").with(other()...)
	for name, c := range map[string]struct {
		history history
		want    string
	}{
		"no violation if different replicas lead different leases": {history: both},
		"a second leader of one of the leases": {
			history: both.with(renew("c", 3).of("two")...).with(
				Event{At: s(3), Process: "c", Lease: "two", Kind: Leads, Term: 1},
				Event{At: s(3.2), Process: "c", Lease: "two", Kind: Led, Term: 1}),
			want: "c: two: term 1 overlaps term 1 of b for 200ms",
		},
		"a handler call in a term of another lease": {
			history: both.with(handle("b", 1, "x", 0, 3).of("two")...),
			want:    "handler for x called in a term of two, and before in one of one",
		},
		"a handler call without a lease": {
			history: both.with(Event{At: s(3), Process: "b", Kind: Begin, Object: "z"},
				Event{At: s(3.1), Process: "b", Kind: End, Object: "z"}),
			want: "handler for z called without a shard",
		},
		"a write without a term": {
			history: both.with(write("b", 0, "x", 3)...),
			want:    "of x passed the fence without a term",
		},
		"no violation for a rejected write without a term": {
			history: both.with(Event{At: s(3), Process: "b", Kind: Write, Object: "x", ID: -1},
				Event{At: s(3.1), Process: "b", Kind: Wrote, Object: "x", ID: -1, Error: "refused"}),
		},
		"no violation for watches that start again": {
			history: both.with(Event{At: s(3), Process: "b", Lease: "two", Kind: Watches},
				Event{At: s(4), Process: "b", Lease: "two", Kind: Left},
				Event{At: s(5), Process: "b", Lease: "two", Kind: Watches}),
		},
		"a shard that leaves something behind": {
			history: both.with(Event{At: s(3), Process: "b", Lease: "two", Kind: Watches},
				Event{At: s(4), Process: "b", Lease: "two", Kind: Left, Error: "a watch"}),
			want: "b: two: the watches have left something behind: a watch",
		},
	} {
		t.Run(name, func(t *testing.T) { c.history.want(t, testRules, c.want) })
	}
}

func TestCheck_CallsOfTwoProcessesDoNotOverlap(t *testing.T) {
	call := history{{At: s(3.9), Process: "a", Kind: Begin, Term: 1, Object: "x"},
		{At: s(6.05), Process: "a", Kind: End, Object: "x"}}
	overlapping := good().without(Led, 4).without(Release, 4.1).with(call...).
		with(Event{At: s(6.06), Process: "a", Kind: Led, Term: 1})
	for _, at := range []float64{2.5, 3, 3.5} {
		overlapping = overlapping.without(Renew, at).without(Renewed, at+0.01)
	}
	const violation = "b: handler for x called during the call in a that started at 3.900000"
	overlapping.want(t, testRules, violation)
	stopped := overlapping.with(Event{At: s(3.95), Process: "a", Kind: Stopped})
	if report := stopped.want(t, testRules, ""); report.Suspended != 1 {
		t.Errorf("%d calls during a suspended call, want 1", report.Suspended)
	}
	stopped.with(Event{At: s(5.99), Process: "a", Kind: Resumed}).want(t, testRules, "")
	stopped.with(Event{At: s(5.9), Process: "a", Kind: Resumed}).want(t, testRules, violation)
	overlapping.with(Event{At: s(4), Process: "a", Kind: Killed}).without(End, 6.05).want(t, testRules, "")
}

func TestCheck_ExplainsLateWrites(t *testing.T) {
	// Process b has acquired the lease at version 20.
	late := good().with(Event{At: s(5.1), Process: "a", Kind: Arrived, Object: "x", Version: "21"})
	violation := `of x, sent at 2.051000, took effect when "b_1" held the lease`
	probe := good().with(write("a", 1, "p", 3.95)...)
	for name, c := range map[string]struct {
		history history
		reason  string // Empty for a violation.
	}{
		"without a reason": {history: late},
		"of a process that was stopped before the write": {history: late.with(
			Event{At: s(1.5), Process: "a", Kind: Stopped}, Event{At: s(1.6), Process: "a", Kind: Resumed})},
		"of a process that was stopped": {history: late.with(
			Event{At: s(2.06), Process: "a", Kind: Stopped}, Event{At: s(5), Process: "a", Kind: Resumed}),
			reason: "stopped before sending"},
		"through a partition": {history: late.with(
			Event{At: s(2), Process: "a", Kind: Stalled}, Event{At: s(5), Process: "a", Kind: Healed}),
			reason: "delayed by a partition"},
		"after a change of the lease": {history: late.with(Event{At: s(4.9), Process: "test", Kind: Forced}),
			reason: "after a lease change"},
		"long after a change of the lease": {history: late.with(Event{At: s(3), Process: "test", Kind: Forced})},
		"that no handler has sent": {
			history: probe.with(Event{At: s(4.8), Process: "a", Kind: Arrived, Object: "p", Version: "21"}),
			reason:  "in flight at the end of the term",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.reason == "" {
				c.history.want(t, testRules, violation)
			} else if report := c.history.want(t, testRules, ""); report.Late[c.reason] != 1 {
				t.Errorf("got %v, want %s", report.Late, c.reason)
			}
		})
	}
	// The test has missed the version with which process b has renewed the lease.
	missed := good().with(Event{At: s(6.7), Process: "b", Kind: Arrived, Object: "x", Version: "31"},
		Event{At: s(6.6), Process: "test", Kind: Held, Version: "30", Holder: "a_1"})
	missed.want(t, testRules, "")
}

// With a fence on the server, no other reason counts.
func TestCheck_LimitsLateWritesToTheDelayOfTheAPIServer(t *testing.T) {
	// Process b has acquired the lease at version 20 and 5 s. The write of process a takes effect at 5.1 s.
	late := good().with(Event{At: s(5.1), Process: "a", Kind: Arrived, Object: "x", Version: "21"},
		Event{At: s(2.06), Process: "a", Kind: Stopped}, Event{At: s(5), Process: "a", Kind: Resumed})
	rules := testRules
	rules.ServerDelay = 50 * time.Millisecond
	late.want(t, rules, `of x, sent at 2.051000, took effect when "b_1" held the lease`)
	rules.ServerDelay = 150 * time.Millisecond
	if report := late.want(t, rules, ""); report.Late["within the delay of the API server"] != 1 {
		t.Errorf("got %v", report.Late)
	}
}

func TestCheck_LimitsTheTimeWithoutALeader(t *testing.T) {
	rules := testRules
	rules.Takeover, rules.ReadInterval, rules.Assigned = 2*time.Second, time.Second, 5*time.Second
	rules.Fleet, rules.Respected = "fleet", map[string]time.Duration{"": time.Second, "fleet": 3 * time.Second}

	// Process a releases the lease at second 4. Process b leads from second 10 on.
	unled := good()
	for _, e := range good() {
		if e.Process == "b" && e.At >= s(5) || e.Kind == Changed || e.Kind == Held {
			unled = unled.without(e.Kind, time.Duration(e.At).Seconds())
		}
	}
	unled = unled.with(Event{At: s(10), Process: "b", Kind: Leads, Term: 1}).with(renew("b", 9.99)...)
	read := func(process string, from, to float64) history {
		var h history
		for at := from; at <= to; at += 0.5 {
			h = h.with(Event{At: s(at), Process: process, Kind: Read})
		}
		return h
	}
	killed := history{{At: s(6), Process: "a", Kind: Killed}, {At: s(8), Process: "b", Kind: Killed}}
	copied := history{{At: s(2), Process: "test", Kind: Planned, Holder: "a_1 b_1"}, {At: s(2), Process: "b", Kind: Warm}}
	for name, c := range map[string]struct {
		history history
		want    string
	}{
		"no violation without a candidate": {history: unled.with(killed...)},
		"a candidate that waits too long": {
			history: unled.with(killed...).with(read("b", 3, 6.5)...),
			want:    "b: shard: term 1 started after a candidate had waited for 2.5s, at most 2s are allowed",
		},
		"no violation if the candidate is interrupted": {
			history: unled.with(killed...).with(read("b", 3, 5.5)...).with(read("b", 7, 8)...),
		},
		"no violation after the lease was changed": {
			history: unled.with(killed...).with(read("b", 3, 6.5)...).
				with(Event{At: s(4), Process: "test", Lease: "shard", Kind: Forced}),
		},
		"no violation after the lease of the fleet was changed": {
			history: unled.with(killed...).with(read("b", 3, 8.5)...).
				with(Event{At: s(4), Process: "test", Lease: "fleet", Kind: Forced}),
		},
		"a lease without candidates": {
			history: unled.with(killed[0]),
			want:    "b: shard: term 1 started after b had worked for 6s without a leader, at most 5s are allowed",
		},
		"no violation if the API server was down": {
			history: unled.with(killed[0], Event{At: s(5), Process: "test", Kind: Down},
				Event{At: s(6), Process: "test", Kind: Up}),
		},
		"no violation if the replica was stopped and disconnected": {
			history: unled.with(killed[0], Event{At: s(5), Process: "b", Kind: Stopped},
				Event{At: s(5.5), Process: "b", Kind: Resumed}, Event{At: s(9.5), Process: "b", Kind: Stalled},
				Event{At: s(9.6), Process: "b", Kind: Healed}),
		},
		"a warm copy that does not campaign": {
			history: unled.with(copied...),
			want:    "b: shard: term 1 started after b had kept the shard warm for 6s without a leader, at most 2s are allowed",
		},
		"no violation if the plan named the copy too late": {
			history: unled.with(copied...).without(Planned, 2).
				with(Event{At: s(4.5), Process: "test", Kind: Planned, Holder: "b_1"}),
		},
		"no violation if the plan named the copy only at first": {
			history: unled.with(copied...).with(Event{At: s(6), Process: "test", Kind: Planned, Holder: "c_1 d_1"}),
		},
		"no violation if the copy was warm too late": {
			history: unled.with(copied...).without(Warm, 2).with(Event{At: s(4.5), Process: "b", Kind: Warm}),
		},
		"no violation if the copy was cold in the meantime": {
			history: unled.with(copied...).with(Event{At: s(5), Process: "b", Kind: Cold},
				Event{At: s(5.1), Process: "b", Kind: Warm}),
		},
		"no violation if the copy was stopped": {
			history: unled.with(copied...).with(Event{At: s(5), Process: "b", Kind: Stopped},
				Event{At: s(5.1), Process: "b", Kind: Resumed}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			rules := rules
			if slices.ContainsFunc(c.history, func(e Event) bool { return e.Kind == Planned }) {
				rules.Assigned = time.Minute
			}
			h := c.history.of("shard")
			for i, e := range c.history {
				if e.Kind == Forced {
					h[i].Lease = e.Lease
				}
			}
			h.want(t, rules, c.want)
		})
	}
}
