package history

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"
)

var testRules = Rules{Certain: 2700 * time.Millisecond, AfterTake: 1500 * time.Millisecond, Slack: 50 * time.Millisecond}

// s is a time of a history, in seconds from some start.
func s(seconds float64) Time { return Time(seconds * float64(time.Second)) }

// history is written with what a replica of these times would write.
type history []Event

func (h history) with(events ...Event) history { return append(slices.Clone(h), events...) }

// without leaves out what is of the kind and the time.
func (h history) without(kind Kind, at float64) history {
	return slices.DeleteFunc(slices.Clone(h), func(e Event) bool { return e.Kind == kind && e.At == s(at) })
}

func (h history) check() Report {
	slices.SortStableFunc(h, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	return Check(h, testRules)
}

var ids int64

// renew is a renewal that is confirmed 10 ms later.
func renew(who string, at float64) history {
	ids++
	return history{{At: s(at), Who: who, Kind: Renew, ID: ids}, {At: s(at + 0.01), Who: who, Kind: Renewed, ID: ids}}
}

// handle is a handler that runs for 0.1 s and writes once.
func handle(who string, term int64, object string, n int64, at float64) history {
	return history{
		{At: s(at), Who: who, Kind: Begin, Term: term, Object: object},
		{At: s(at + 0.1), Who: who, Kind: End, Term: term, Object: object, N: n},
	}.with(write(who, term, object, at+0.05)...)
}

// write is a fenced write that takes 10 ms.
func write(who string, term int64, object string, at float64) history {
	ids++
	return history{
		{At: s(at), Who: who, Kind: Write, Term: term, Object: object, ID: ids},
		{At: s(at + 0.001), Who: who, Kind: Sent, Term: term, Object: object, ID: ids},
		{At: s(at + 0.01), Who: who, Kind: Wrote, Term: term, Object: object, ID: ids},
	}
}

// good is a clean handover from a, which led from 1 to 4, to b, which was killed at 9 or later.
func good() history {
	h := history{
		{At: s(0), Who: "a", Kind: Started, Holder: "a_1"}, {At: s(0), Who: "b", Kind: Started, Holder: "b_1"},
		{At: s(0.1), Who: "a", Kind: Watches}, {At: s(0.1), Who: "b", Kind: Watches},
		{At: s(1.02), Who: "a", Kind: Leads, Term: 1}, {At: s(4), Who: "a", Kind: Led, Term: 1},
		{At: s(4.1), Who: "a", Kind: Release, ID: -1},
		{At: s(5.02), Who: "b", Kind: Leads, Term: 1},
		{At: s(1.5), Who: "test", Kind: Changed, Object: "x", N: 1}, {At: s(5.5), Who: "test", Kind: Changed, Object: "x", N: 2},
		{At: s(1), Who: "test", Kind: Held, Version: "10", Holder: "a_1"}, {At: s(5), Who: "test", Kind: Held, Version: "20", Holder: "b_1"},
	}
	for _, at := range []float64{1, 1.5, 2, 2.5, 3, 3.5} {
		h = h.with(renew("a", at)...)
	}
	for _, at := range []float64{5, 5.5, 6, 6.5} {
		h = h.with(renew("b", at)...)
	}
	return h.with(handle("a", 1, "x", 1, 2)...).with(handle("b", 1, "x", 2, 6)...)
}

// lostAndRunning is the same where a was stopped after 2.3 and notices at 6.48 that it lost its lease.
func lostAndRunning() history {
	h := good().without(Led, 4).without(Release, 4.1)
	for _, at := range []float64{2.5, 3, 3.5} {
		h = h.without(Renew, at).without(Renewed, at+0.01)
	}
	return h.with(Event{At: s(6.48), Who: "a", Kind: Lost, Term: 1})
}

func TestCheckFinds(t *testing.T) {
	for name, c := range map[string]struct {
		history history
		want    string // in the only violation; none if empty
	}{
		"nothing in a good history": {history: good()},
		"a second leader": {
			history: good().with(renew("c", 3)...).with(Event{At: s(3), Who: "c", Kind: Leads, Term: 1}, Event{At: s(3.2), Who: "c", Kind: Led, Term: 1}),
			want:    "c: leads in term 1 while a does in its term 1, for 200ms",
		},
		"a second leader that has no lease": {
			history: good().with(Event{At: s(4.5), Who: "c", Kind: Leads, Term: 1}),
			want:    "c: leads in term 1 without a lease",
		},
		"no second leader when the first one's lease expired while it was stopped": {
			history: good().with(renew("c", 9.3)...).with(Event{At: s(9.4), Who: "c", Kind: Leads, Term: 1},
				Event{At: s(9.5), Who: "b", Kind: Resumed}, Event{At: s(9.51), Who: "b", Kind: Lost, Term: 1}),
		},
		"a successor that does not wait for the lease of a leader that was killed": {
			history: good().with(renew("c", 9)...).with(Event{At: s(9.1), Who: "c", Kind: Leads, Term: 1}),
			want:    "c: leads in term 1 while b does in its term 1, for 100ms",
		},
		"nothing in an overlap after a force-take": {
			history: good().with(renew("c", 7)...).with(Event{At: s(6.9), Who: "test", Kind: Taking}, Event{At: s(6.95), Who: "test", Kind: Taken},
				Event{At: s(7), Who: "c", Kind: Leads, Term: 1}, Event{At: s(8.4), Who: "b", Kind: Lost, Term: 1}),
		},
		"an overlap after a force-take that is too long": {
			history: good().with(renew("c", 7)...).with(Event{At: s(6.9), Who: "test", Kind: Taking}, Event{At: s(6.95), Who: "test", Kind: Taken},
				Event{At: s(7), Who: "c", Kind: Leads, Term: 1}, Event{At: s(8.5), Who: "b", Kind: Lost, Term: 1}),
			want: "c: leads in term 1 while b does in its term 1, for 1.5s",
		},
		"a term that begins before the work of the last has returned": {
			history: good().with(Event{At: s(7), Who: "b", Kind: Lost, Term: 1}, Event{At: s(8), Who: "b", Kind: Leads, Term: 2}).with(renew("b", 8)...),
			want:    "b: leads in term 2 before the work of term 1 has returned",
		},
		"a term that is counted twice": {
			history: good().with(Event{At: s(7), Who: "b", Kind: Led, Term: 1}, Event{At: s(8), Who: "b", Kind: Leads, Term: 1}).with(renew("b", 8)...),
			want:    "b: counts term 1 as its next",
		},
		"a handler that begins on a standby": {
			history: good().with(Event{At: s(2), Who: "b", Kind: Begin, Object: "x"}, Event{At: s(2.1), Who: "b", Kind: End, Object: "x"}).
				with(Event{At: s(1.9), Who: "test", Kind: Taking}), // so that only this is wrong with it
			want: "b: a handler begins for x outside of any term",
		},
		"a handler that begins after its term's work has returned": {
			history: good().with(Event{At: s(4.5), Who: "a", Kind: Begin, Object: "x"}, Event{At: s(4.6), Who: "a", Kind: End, Object: "x"}),
			want:    "a: a handler begins for x outside of any term",
		},
		"a handler that begins while another leads": {
			history: lostAndRunning().with(Event{At: s(6.5), Who: "a", Kind: Begin, Term: 1, Object: "x"}),
			want:    "a: a handler begins for x while b leads in its term 1",
		},
		"no handler that begins just after its process was resumed": {
			history: lostAndRunning().with(Event{At: s(6.5), Who: "a", Kind: Begin, Term: 1, Object: "x"},
				Event{At: s(6.48), Who: "a", Kind: Resumed}),
		},
		"a handler that begins later after its process was resumed": {
			history: lostAndRunning().with(Event{At: s(6.5), Who: "a", Kind: Begin, Term: 1, Object: "x"},
				Event{At: s(6.4), Who: "a", Kind: Resumed}),
			want: "a: a handler begins for x while b leads in its term 1",
		},
		"a handler that begins though the lease was lost": {
			history: good().with(Event{At: s(6.5), Who: "b", Kind: Lost, Term: 1},
				Event{At: s(6.56), Who: "b", Kind: Begin, Term: 1, Object: "x"}, Event{At: s(6.6), Who: "b", Kind: End, Term: 1, Object: "x"}),
			want: "b: a handler begins for x, and the lease was lost at 6.500000",
		},
		"no handler that begins when the lease is being lost": {
			history: good().with(Event{At: s(6.5), Who: "b", Kind: Lost, Term: 1},
				Event{At: s(6.54), Who: "b", Kind: Begin, Term: 1, Object: "x"}, Event{At: s(6.6), Who: "b", Kind: End, Term: 1, Object: "x"}),
		},
		"two handlers at once for one object": {
			history: good().with(Event{At: s(2.01), Who: "a", Kind: Begin, Term: 1, Object: "x"}),
			want:    "a: a handler begins for x while the one that began at 2.000000 runs",
		},
		"no two handlers at once for two objects": {
			history: good().with(handle("a", 1, "y", 1, 2.01)...),
		},
		"the end of what has not begun": {
			history: good().with(Event{At: s(3), Who: "a", Kind: End, Object: "x"}),
			want:    "a: a handler for x ends that has not begun",
		},
		"a lease that is released while a handler runs": {
			history: good().with(Event{At: s(3.9), Who: "a", Kind: Begin, Term: 1, Object: "x"}, Event{At: s(4.2), Who: "a", Kind: End, Object: "x"}),
			want:    "a: the lease is released while the handler for x runs that began at 3.900000",
		},
		"a per-replica half that begins again": {
			history: good().with(Event{At: s(4), Who: "a", Kind: Watches}),
			want:    "a: its per-replica half begins again",
		},
		"a write that begins when the lease may have expired": {
			history: good().with(write("b", 1, "x", 9.3)...),
			want:    "passed the fence, and the last renewal that was confirmed was sent at 6.500000",
		},
		"no write that begins just before": {
			history: good().with(write("b", 1, "x", 9.1)...),
		},
		"no renewal in one that was not confirmed": {
			history: good().with(Event{At: s(7), Who: "b", Kind: Renew, ID: -2}).with(write("b", 1, "x", 9.3)...),
			want:    "passed the fence, and the last renewal that was confirmed was sent at 6.500000",
		},
		"a write that begins after the lease was lost": {
			history: good().with(Event{At: s(6.6), Who: "b", Kind: Lost, Term: 1}).with(write("b", 0, "x", 6.7)...),
			want:    "passed the fence, which was closed at 6.600000",
		},
		"a write that begins after the lease was released": {
			history: good().with(write("a", 0, "x", 4.2)...),
			want:    "passed the fence, which was closed at 4.100000",
		},
		"no write that begins after the lease was won again": {
			history: good().with(Event{At: s(6.6), Who: "b", Kind: Lost, Term: 1}).with(renew("b", 9)...).with(write("b", 0, "x", 9.05)...),
		},
		"a write of an earlier term": {
			history: good().with(Event{At: s(6.6), Who: "b", Kind: Lost, Term: 1}, Event{At: s(6.7), Who: "b", Kind: Led, Term: 1},
				Event{At: s(9.1), Who: "b", Kind: Leads, Term: 2}).with(renew("b", 9)...).with(write("b", 1, "x", 9.2)...),
			want: "passed the fence from term 1 in term 2",
		},
		"a write that begins while another leads": {
			history: good().with(renew("c", 6)...).with(write("c", 0, "x", 6.2)...),
			want:    "of x passed the fence while b leads in its term 1",
		},
		"no write that was refused": {
			history: good().with(Event{At: s(9.3), Who: "b", Kind: Write, Object: "x", ID: -3}, Event{At: s(9.31), Who: "b", Kind: Wrote, ID: -3, Error: "refused"}),
		},
		"no write that began before and is sent after": {
			history: good().with(Event{At: s(9.19), Who: "b", Kind: Write, Object: "x", ID: -3}, Event{At: s(9.31), Who: "b", Kind: Sent, ID: -3}),
		},
		"a write that is sent and has not begun": {
			history: good().with(Event{At: s(6.5), Who: "b", Kind: Sent, Object: "x", ID: -3}),
			want:    "b: write -3 was sent that has not begun",
		},
		"a last change that was not reconciled": {
			history: good().with(Event{At: s(6.2), Who: "test", Kind: Changed, Object: "x", N: 3}),
			want:    "test: change 3 of x was never reconciled; the last that was is 2",
		},
		"a last change whose only reconcile failed": {
			history: good().with(Event{At: s(6.2), Who: "test", Kind: Changed, Object: "x", N: 3},
				Event{At: s(6.3), Who: "b", Kind: Begin, Term: 1, Object: "x"}, Event{At: s(6.4), Who: "b", Kind: End, Object: "x", N: 3, Error: "no"}),
			want: "test: change 3 of x was never reconciled; the last that was is 2",
		},
		"no change before the last that nobody saw": {
			history: good().with(Event{At: s(6.2), Who: "test", Kind: Changed, Object: "x", N: 3}, Event{At: s(6.3), Who: "test", Kind: Changed, Object: "x", N: 4}).
				with(handle("b", 1, "x", 4, 6.4)...),
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := c.history.check().Violations
			switch {
			case c.want == "" && len(got) > 0:
				t.Errorf("found %q", got)
			case c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)):
				t.Errorf("found %q, want one with %q", got, c.want)
			}
		})
	}
}

func TestCheckCounts(t *testing.T) {
	got := good().with(
		Event{At: s(5.1), Who: "a", Kind: Arrived, Object: "x", Version: "21"}, // after b had got the lease
		Event{At: s(5.1), Who: "b", Kind: Arrived, Object: "x", Version: "22"},
		Event{At: s(7), Who: "b", Kind: Write, Object: "x", ID: -1}, Event{At: s(7.1), Who: "b", Kind: Wrote, ID: -1, Error: "refused"},
		Event{At: s(7), Who: "b", Kind: Write, Object: "x", ID: -2}, Event{At: s(7), Who: "b", Kind: Sent, ID: -2},
		Event{At: s(7.1), Who: "b", Kind: Wrote, ID: -2, Error: "cut short"},
	).check()
	want := "2 terms, 2 handlers, 3 writes, 1 refused, 1 cut short, 1 late arrivals, 0 handlers excused after a force-take, 0 after a stop; handovers: 3.949s"
	if got.String() != want || len(got.Violations) > 0 {
		t.Errorf("got  %s %q\nwant %s", got, got.Violations, want)
	}
}
