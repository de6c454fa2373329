package attempts

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestTable_RecordsAreRemovedWhenNothingIsToRemember(t *testing.T) {
	for name, steps := range map[string]func(*Table){
		"a success after failures":         func(x *Table) { x.Failed("a", "x"); x.Succeeded("a") },
		"a delayed requeue after failures": func(x *Table) { x.Failed("a", "x"); x.Requeued("a", false) },
		"a start after parking":            func(x *Table) { x.Failed("a", "x"); x.Park("a", true); x.Started("a") },
		"a start of a kept key":            func(x *Table) { x.Keep("a"); x.Started("a") },
		"a success of a kept key, started later": func(x *Table) {
			x.Failed("a", "x")
			x.Keep("a")
			x.Succeeded("a")
			x.Started("a")
		},
		"a filtered deletion of a parked object": func(x *Table) { x.Park("a", false); x.Deleted("a", true, false) },
		"a deletion of an object that succeeds later": func(x *Table) {
			x.Deleted("a", true, true)
			x.Succeeded("a")
		},
	} {
		t.Run(name, func(t *testing.T) {
			table := NewTable()
			steps(table)
			if keys := table.Keys(); len(keys) != 0 || table.absent.Len() != 0 {
				t.Errorf("entries remain: %v, %d absent", keys, table.absent.Len())
			}
		})
	}
}

func TestTable_RecordsAreKept(t *testing.T) {
	for name, test := range map[string]struct {
		steps       func(*Table)
		count       int
		filteredOut bool
	}{
		"failures are counted":          {func(x *Table) { x.Failed("a", "x"); x.Failed("a", "x") }, 2, false},
		"requeues at once are counted":  {func(x *Table) { x.Requeued("a", true); x.Requeued("a", true) }, 2, false},
		"a failure resets the requeues": {func(x *Table) { x.Requeued("a", true); x.Failed("a", "x") }, 1, false},
		"a requeue resets the failures": {func(x *Table) {
			x.Failed("a", "x")
			x.Failed("a", "x")
			x.Requeued("a", true)
		}, 1, false},
		"a start keeps the failures":       {func(x *Table) { x.Failed("a", "x"); x.Started("a") }, 1, false},
		"a success keeps the mark":         {func(x *Table) { x.Keep("a"); x.Succeeded("a") }, 0, false},
		"a filtered deletion while queued": {func(x *Table) { x.Deleted("a", true, true) }, 0, true},
		"a requeue keeps the deletion":     {func(x *Table) { x.Deleted("a", true, true); x.Requeued("a", false) }, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			table := NewTable()
			test.steps(table)
			if got := table.Keys(); !slices.Equal(got, []string{"a"}) {
				t.Errorf("the keys with entries are %v, want only a", got)
			}
			if count := table.Count("a"); count != test.count {
				t.Errorf("the count is %d, want %d", count, test.count)
			}
			if got := table.FilteredOut("a"); got != test.filteredOut {
				t.Errorf("filtered out: %t, want %t", got, test.filteredOut)
			}
		})
	}
}

func TestTable_ALaterEventUndoesAFilteredDeletion(t *testing.T) {
	table := NewTable()
	table.Deleted("a", true, true)
	table.Deleted("a", false, true)
	if table.FilteredOut("a") || table.Len() != 0 {
		t.Error("the deletion is still recorded as filtered out")
	}
}

func TestPark_LimitsTheRecordsOfAbsentObjects(t *testing.T) {
	table := NewTable()
	table.Park("present", false)
	for i := range maxAbsent {
		if dropped := table.Park(fmt.Sprint("absent-", i), true); dropped != nil {
			t.Fatalf("dropped %v", dropped)
		}
	}
	table.Park("absent-1", true) // moves to the end
	if dropped := table.Park("another", true); !slices.Equal(dropped, []string{"absent-0"}) {
		t.Errorf("dropped %v, want the object that was parked first", dropped)
	}
	if dropped := table.Park("yet another", true); !slices.Equal(dropped, []string{"absent-2"}) {
		t.Errorf("dropped %v, want absent-2, because absent-1 was parked again", dropped)
	}
	if n := table.Len(); n != maxAbsent+1 {
		t.Errorf("%d entries, want %d", n, maxAbsent+1)
	}
}

func TestSummary_ReturnsTheNewestParkedObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable()
		for _, key := range []string{"a", "b", "c"} {
			table.Failed(key, strings.Repeat("x", 2*maxErrorLength))
			table.Park(key, false)
			time.Sleep(time.Second)
		}
		table.Failed("d", "x")
		table.Keep("e")
		failing, parked, newest := table.Summary(2)
		if failing != 1 || parked != 3 || len(newest) != 2 || newest[0].Key != "b" || newest[1].Key != "c" {
			t.Errorf("got %d failing, %d parked, newest %v", failing, parked, newest)
		}
		if n := len(newest[0].LastError); n != maxErrorLength+len("...") {
			t.Errorf("the error has %d bytes", n)
		}
	})
}

func TestClose_RemovesAllAndIgnoresChanges(t *testing.T) {
	table := NewTable()
	table.Park("a", true)
	table.Close()
	table.Keep("b")
	table.Park("c", true)
	if table.Failed("d", "x") != 0 || table.Len() != 0 || table.absent.Len() != 0 {
		t.Error("a closed table holds entries")
	}
}

func TestBackoff_DoublesWithEachConsecutiveFailure(t *testing.T) {
	const minimum, maximum = 10 * time.Millisecond, time.Second
	table := NewTable()
	b := NewBackoff(table, minimum, maximum)
	exact := minimum
	for failures := 1; failures < 100; failures++ {
		if table.Failed("a", "on purpose") != failures {
			t.Fatalf("%d failures counted, want %d", table.Count("a"), failures)
		}
		if delay := b.Delay("a"); delay < min(exact, maximum*3/4) || delay > min(exact*3/2, maximum) {
			t.Fatalf("failure %d: the delay is %s, want about %s", failures, delay, exact)
		}
		exact = min(2*exact, maximum)
	}
	table.Failed("b", "on purpose")
	if delay := b.Delay("b"); delay > minimum*3/2 {
		t.Errorf("the failures of one object delay another object by %s", delay)
	}
	table.Succeeded("a")
	table.Requeued("a", true)
	if delay := b.Delay("a"); delay > minimum*3/2 {
		t.Errorf("a requeue after a success is delayed by %s", delay)
	}
}

func TestBackoff_LimitsTheRetriesOfAType(t *testing.T) {
	const minimum, maximum = 10 * time.Millisecond, time.Second
	table := NewTable()
	b := NewBackoff(table, minimum, maximum)
	for range 100 {
		table.Failed("slow", "on purpose")
	}
	budget := b.budget.Tokens()
	for range retriesBurst {
		b.Delay("slow")
	}
	if b.budget.Tokens() < budget {
		t.Error("retries after the maximum delay use the budget")
	}
	for i := range 100_000 {
		if delay := b.Delay(fmt.Sprint("many ", i)); delay > maximum {
			t.Fatalf("earlier failures delay an object by %s, which exceeds the maximum", delay)
		}
	}
	if b.Delay("another") < maximum*3/4 {
		t.Error("the retries of a type whose budget is used up do not have the maximum delay")
	}
}
