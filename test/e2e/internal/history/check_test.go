package history

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"
)

var testRules = Rules{Certain: 2700 * time.Millisecond, AfterTake: 1500 * time.Millisecond,
	Slack: 50 * time.Millisecond}

// s returns the time at the given number of seconds.
func s(seconds float64) Time { return Time(seconds * float64(time.Second)) }

// history is a log of events, not necessarily in order.
type history []Event

func (h history) with(events ...Event) history { return append(slices.Clone(h), events...) }

// without returns a copy of the history without the events of the given kind and time.
func (h history) without(kind Kind, at float64) history {
	return slices.DeleteFunc(slices.Clone(h), func(e Event) bool { return e.Kind == kind && e.At == s(at) })
}

func (h history) check() Report {
	slices.SortStableFunc(h, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	return Check(h, testRules)
}

var ids int64

// renew returns the events of a renewal that is confirmed after 10 ms.
func renew(process string, at float64) history {
	ids++
	return history{{At: s(at), Process: process, Kind: Renew, ID: ids},
		{At: s(at + 0.01), Process: process, Kind: Renewed, ID: ids}}
}

// handle returns the events of a handler call that takes 0.1 s and writes once.
func handle(process string, term int64, object string, n int64, at float64) history {
	return history{
		{At: s(at), Process: process, Kind: Begin, Term: term, Object: object},
		{At: s(at + 0.1), Process: process, Kind: End, Term: term, Object: object, N: n},
	}.with(write(process, term, object, at+0.05)...)
}

// write returns the events of a fenced write that takes 10 ms.
func write(process string, term int64, object string, at float64) history {
	ids++
	return history{
		{At: s(at), Process: process, Kind: Write, Term: term, Object: object, ID: ids},
		{At: s(at + 0.001), Process: process, Kind: Sent, Term: term, Object: object, ID: ids},
		{At: s(at + 0.01), Process: process, Kind: Wrote, Term: term, Object: object, ID: ids},
	}
}

// good returns a history without violations. In this history, process a leads from second 1 to second 4. Then process b
// leads from second 5 until its lease expires.
func good() history {
	h := history{
		{At: s(0), Process: "a", Kind: Started, Holder: "a_1"}, {At: s(0), Process: "b", Kind: Started, Holder: "b_1"},
		{At: s(0.1), Process: "a", Kind: Watches}, {At: s(0.1), Process: "b", Kind: Watches},
		{At: s(1.02), Process: "a", Kind: Leads, Term: 1}, {At: s(4), Process: "a", Kind: Led, Term: 1},
		{At: s(4.1), Process: "a", Kind: Release, ID: -1},
		{At: s(5.02), Process: "b", Kind: Leads, Term: 1},
		{At: s(1.5), Process: "test", Kind: Changed, Object: "x", N: 1}, {At: s(5.5), Process: "test", Kind: Changed,
			Object: "x",
			N:      2},
		{At: s(1), Process: "test", Kind: Held, Version: "10", Holder: "a_1"}, {At: s(5), Process: "test", Kind: Held,
			Version: "20",
			Holder:  "b_1"},
	}
	for _, at := range []float64{1, 1.5, 2, 2.5, 3, 3.5} {
		h = h.with(renew("a", at)...)
	}
	for _, at := range []float64{5, 5.5, 6, 6.5} {
		h = h.with(renew("b", at)...)
	}
	return h.with(handle("a", 1, "x", 1, 2)...).with(handle("b", 1, "x", 2, 6)...)
}

// lostAndRunning returns a variant of good in which process a is stopped at 2.3 s and detects the loss of its lease at
// 6.48 s.
func lostAndRunning() history {
	h := good().without(Led, 4).without(Release, 4.1)
	for _, at := range []float64{2.5, 3, 3.5} {
		h = h.without(Renew, at).without(Renewed, at+0.01)
	}
	return h.with(Event{At: s(6.48), Process: "a", Kind: Lost, Term: 1})
}

func TestCheck_ReportsViolations(t *testing.T) {
	for name, c := range map[string]struct {
		history history
		want    string // A substring of the only violation, or empty for no violation.
	}{
		"no violation in a good history": {history: good()},
		"a second leader": {
			history: good().with(renew("c", 3)...).with(Event{At: s(3), Process: "c", Kind: Leads, Term: 1},
				Event{At: s(3.2), Process: "c", Kind: Led, Term: 1}),
			want: "c: term 1 overlaps term 1 of a for 200ms",
		},
		"a second leader without a lease": {
			history: good().with(Event{At: s(4.5), Process: "c", Kind: Leads, Term: 1}),
			want:    "c: term 1 started without a lease",
		},
		"no overlap if the lease of the first leader expired while it was stopped": {
			history: good().with(renew("c", 9.3)...).with(Event{At: s(9.4), Process: "c", Kind: Leads, Term: 1},
				Event{At: s(9.5), Process: "b", Kind: Resumed}, Event{At: s(9.51), Process: "b", Kind: Lost, Term: 1}),
		},
		"a successor that starts before the lease of a killed leader has expired": {
			history: good().with(renew("c", 9)...).with(Event{At: s(9.1), Process: "c", Kind: Leads, Term: 1}),
			want:    "c: term 1 overlaps term 1 of b for 100ms",
		},
		"no violation for a short overlap after a lease change": {
			history: good().with(renew("c", 7)...).with(Event{At: s(6.9), Process: "test", Kind: Taking},
				Event{At: s(6.95), Process: "test", Kind: Taken},
				Event{At: s(7), Process: "c", Kind: Leads, Term: 1}, Event{At: s(8.4), Process: "b", Kind: Lost, Term: 1}),
		},
		"too long an overlap after a lease change": {
			history: good().with(renew("c", 7)...).with(Event{At: s(6.9), Process: "test", Kind: Taking},
				Event{At: s(6.95), Process: "test", Kind: Taken},
				Event{At: s(7), Process: "c", Kind: Leads, Term: 1}, Event{At: s(8.5), Process: "b", Kind: Lost, Term: 1}),
			want: "c: term 1 overlaps term 1 of b for 1.5s",
		},
		"a term that starts before the previous term has ended": {
			history: good().with(Event{At: s(7), Process: "b", Kind: Lost, Term: 1},
				Event{At: s(8), Process: "b", Kind: Leads, Term: 2}).with(renew("b", 8)...),
			want: "b: term 2 started before the runnables of term 1 returned",
		},
		"a term number that is used twice": {
			history: good().with(Event{At: s(7), Process: "b", Kind: Led, Term: 1},
				Event{At: s(8), Process: "b", Kind: Leads, Term: 1}).with(renew("b", 8)...),
			want: "b: term 1 follows term 1",
		},
		"no violation for a term number that is skipped": {
			history: good().with(Event{At: s(7), Process: "b", Kind: Led, Term: 1},
				Event{At: s(8), Process: "b", Kind: Leads, Term: 3}).with(renew("b", 8)...),
		},
		"a handler call on a standby": {
			history: good().with(Event{At: s(2), Process: "b", Kind: Begin, Object: "x"},
				Event{At: s(2.1), Process: "b", Kind: End, Object: "x"}).
				with(Event{At: s(1.9), Process: "test", Kind: Taking}), // Prevents a second violation.
			want: "b: handler for x called outside of a term",
		},
		"a handler call after the end of the term": {
			history: good().with(Event{At: s(4.5), Process: "a", Kind: Begin, Object: "x"},
				Event{At: s(4.6), Process: "a", Kind: End, Object: "x"}),
			want: "a: handler for x called outside of a term",
		},
		"a handler call while another replica leads": {
			history: lostAndRunning().with(Event{At: s(6.5), Process: "a", Kind: Begin, Term: 1, Object: "x"}),
			want:    "a: handler for x called while b leads in its term 1",
		},
		"no violation for a handler call immediately after a resumption": {
			history: lostAndRunning().with(Event{At: s(6.5), Process: "a", Kind: Begin, Term: 1, Object: "x"},
				Event{At: s(6.48), Process: "a", Kind: Resumed}),
		},
		"a handler call some time after a resumption": {
			history: lostAndRunning().with(Event{At: s(6.5), Process: "a", Kind: Begin, Term: 1, Object: "x"},
				Event{At: s(6.4), Process: "a", Kind: Resumed}),
			want: "a: handler for x called while b leads in its term 1",
		},
		"a handler call after the loss of the lease": {
			history: good().with(Event{At: s(6.5), Process: "b", Kind: Lost, Term: 1},
				Event{At: s(6.56), Process: "b", Kind: Begin, Term: 1, Object: "x"}, Event{At: s(6.6), Process: "b", Kind: End,
					Term:   1,
					Object: "x"}),
			want: "b: handler for x called after the lease was lost at 6.500000",
		},
		"no violation for a handler call within the slack after the loss of the lease": {
			history: good().with(Event{At: s(6.5), Process: "b", Kind: Lost, Term: 1},
				Event{At: s(6.54), Process: "b", Kind: Begin, Term: 1, Object: "x"}, Event{At: s(6.6), Process: "b", Kind: End,
					Term:   1,
					Object: "x"}),
		},
		"two concurrent handler calls for the same object": {
			history: good().with(Event{At: s(2.01), Process: "a", Kind: Begin, Term: 1, Object: "x"}),
			want:    "a: handler for x called during the call that started at 2.000000",
		},
		"no violation for concurrent handler calls for different objects": {
			history: good().with(handle("a", 1, "y", 1, 2.01)...),
		},
		"the end of a handler call that has not started": {
			history: good().with(Event{At: s(3), Process: "a", Kind: End, Object: "x"}),
			want:    "a: handler for x returned without a call",
		},
		"a release of the lease while a handler is running": {
			history: good().with(Event{At: s(3.9), Process: "a", Kind: Begin, Term: 1, Object: "x"},
				Event{At: s(4.2), Process: "a", Kind: End, Object: "x"}),
			want: "a: lease released during the handler call for x that started at 3.900000",
		},
		"watches that are started twice": {
			history: good().with(Event{At: s(4), Process: "a", Kind: Watches}),
			want:    "a: watches started again",
		},
		"a write that starts when the lease can have expired": {
			history: good().with(write("b", 1, "x", 9.3)...),
			want:    "passed the fence although the last confirmed renewal was sent at 6.500000",
		},
		"no violation for a write before the lease can have expired": {
			history: good().with(write("b", 1, "x", 9.1)...),
		},
		"a write after a renewal that was not confirmed": {
			history: good().with(Event{At: s(7), Process: "b", Kind: Renew, ID: -2}).with(write("b", 1, "x", 9.3)...),
			want:    "passed the fence although the last confirmed renewal was sent at 6.500000",
		},
		"a write that starts after the loss of the lease": {
			history: good().with(Event{At: s(6.6), Process: "b", Kind: Lost, Term: 1}).with(write("b", 0, "x", 6.7)...),
			want:    "passed the fence, which was closed at 6.600000",
		},
		"a write that starts after the release of the lease": {
			history: good().with(write("a", 0, "x", 4.2)...),
			want:    "passed the fence, which was closed at 4.100000",
		},
		"no violation for a write after the lease was acquired again": {
			history: good().with(Event{At: s(6.6), Process: "b", Kind: Lost, Term: 1}).with(renew("b", 9)...).with(write("b", 0,
				"x",
				9.05)...),
		},
		"a write from an earlier term": {
			history: good().with(Event{At: s(6.6), Process: "b", Kind: Lost, Term: 1},
				Event{At: s(6.7), Process: "b", Kind: Led, Term: 1},
				Event{At: s(9.1), Process: "b", Kind: Leads, Term: 2}).with(renew("b", 9)...).with(write("b", 1, "x", 9.2)...),
			want: "passed the fence from term 1 in term 2",
		},
		"a write that starts while another replica leads": {
			history: good().with(renew("c", 6)...).with(write("c", 0, "x", 6.2)...),
			want:    "of x passed the fence while b leads in its term 1",
		},
		"no violation for a rejected write": {
			history: good().with(Event{At: s(9.3), Process: "b", Kind: Write, Object: "x", ID: -3},
				Event{At: s(9.31), Process: "b", Kind: Wrote, ID: -3, Error: "refused"}),
		},
		"no violation for a write that starts before the lease expires and is sent afterwards": {
			history: good().with(Event{At: s(9.19), Process: "b", Kind: Write, Object: "x", ID: -3},
				Event{At: s(9.31), Process: "b", Kind: Sent, ID: -3}),
		},
		"a write that is sent before it started": {
			history: good().with(Event{At: s(6.5), Process: "b", Kind: Sent, Object: "x", ID: -3}),
			want:    "b: write -3 was sent before it started",
		},
		"a last change without a reconcile": {
			history: good().with(Event{At: s(6.2), Process: "test", Kind: Changed, Object: "x", N: 3}),
			want:    "test: change 3 of x was not reconciled; the last reconciled change is 2",
		},
		"a last change whose only reconcile failed": {
			history: good().with(Event{At: s(6.2), Process: "test", Kind: Changed, Object: "x", N: 3},
				Event{At: s(6.3), Process: "b", Kind: Begin, Term: 1, Object: "x"}, Event{At: s(6.4), Process: "b", Kind: End,
					Object: "x",
					N:      3, Error: "no"}),
			want: "test: change 3 of x was not reconciled; the last reconciled change is 2",
		},
		"no violation for an intermediate change without a reconcile": {
			history: good().with(Event{At: s(6.2), Process: "test", Kind: Changed, Object: "x", N: 3},
				Event{At: s(6.3), Process: "test", Kind: Changed, Object: "x", N: 4}).
				with(handle("b", 1, "x", 4, 6.4)...),
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := c.history.check().Violations
			switch {
			case c.want == "" && len(got) > 0:
				t.Errorf("got violations %q, want none", got)
			case c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)):
				t.Errorf("got violations %q, want one that contains %q", got, c.want)
			}
		})
	}
}

func TestCheck_CountsEvents(t *testing.T) {
	got := good().with(
		Event{At: s(5.1), Process: "a", Kind: Arrived, Object: "x", Version: "21"}, // After b acquired the lease.
		Event{At: s(2.1), Process: "a", Kind: Stopped}, Event{At: s(2.2), Process: "a", Kind: Resumed},
		Event{At: s(5.1), Process: "b", Kind: Arrived, Object: "x", Version: "22"},
		Event{At: s(7), Process: "b", Kind: Write, Object: "x", ID: -1}, Event{At: s(7.1), Process: "b", Kind: Wrote, ID: -1,
			Error: "refused"},
		Event{At: s(7), Process: "b", Kind: Write, Object: "x", ID: -2}, Event{At: s(7), Process: "b", Kind: Sent, ID: -2},
		Event{At: s(7.1), Process: "b", Kind: Wrote, ID: -2, Error: "cut short"},
	).check()
	want := "2 terms, 2 handler calls, 3 writes, 1 rejected, 1 interrupted, 1 late (1 stopped before sending), " +
		"0 tolerated after a lease change, 0 after a resumption (0 of them overlap), 0 during a suspended call; " +
		"handovers: 1, median 3.949s, at most 3.949s; unled: none"
	if got.String() != want || len(got.Violations) > 0 {
		t.Errorf("got  %s %q\nwant %s", got, got.Violations, want)
	}
}
