package integration

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/dynamic-controller/engine/test/apiproxy"
)

// crash describes when the first process of a lifecycle is killed.
type crash struct {
	kind  string // the kind of call at which the process is killed (see apiproxy.Call.Kind); empty for no crash
	nth   int    // the call's number among the calls of its kind, starting at 1
	after bool   // whether the process is killed after the call is executed, so that only the response is lost
	// phase is the phase that the user begins when the next process starts, unless that phase has already begun.
	phase int
}

func (c crash) String() string {
	return fmt.Sprintf("%s number %d, then phase %d", c.position(), c.nth, c.phase)
}

func (c crash) position() string {
	if c.after {
		return "after " + c.kind
	}
	return "before " + c.kind
}

// run runs all phases of a parent's life. The first process crashes as described by c. If the first process crashes at
// a write, the second process crashes at its second write. The method returns the first process's calls by phase, and
// whether that process crashed.
func (l *lifecycle) run(c crash) (calls [][]apiproxy.Call, crashed bool) {
	l.Helper()
	first := l.start()
	current, processes := first, 1
	if c.kind != "" {
		first.trap.Set(func(call apiproxy.Call) bool { return call.Kind() == c.kind }, c.nth, c.after)
	}
	first.lead()
	before := 0
	for i, phases := 0, l.phases(); i < len(phases); i++ {
		phases[i].begin()
		l.await(fmt.Sprintf("phase %d is complete", i), func() phase {
			if current.mustRun(); !current.hasExited() {
				return phases[i]
			}
			current = l.start()
			if processes++; processes == 2 && first.trap.Caught().IsWrite() {
				current.trap.Set(apiproxy.Call.IsWrite, 2, true)
			}
			current.lead()
			if processes == 2 && i < c.phase {
				i = c.phase
				phases[i].begin()
			}
			return phases[i]
		})
		all := first.proxy.Calls()
		calls, before = append(calls, all[before:]), len(all)
	}
	return calls, first.hasExited()
}

// Each subtest kills a process with SIGKILL at one of the process's calls: a write, a read or a watch. The process is
// killed either before the call is executed, or afterwards but before the process receives the response. Then another
// process starts, and the test changes the parent, deletes it or leaves it unchanged. The final state must be the same
// in all subtests.
func TestHandlers_RecoversFromCrashAtEachCall(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	token := s.newAccount()
	calls, _ := s.newLifecycle(h, token).run(crash{})
	crashes, writes := crashesAt(calls)
	crashes = sample(t, crashes)
	// Two finalizers and two kinds are added and removed. Six children and a bucket are created and deleted.
	if writes < 15 {
		t.Errorf("got %d writes in a lifecycle without a crash, want at least 15", writes)
	}
	var mu sync.Mutex
	crashed := map[string]int{}
	t.Run("each in turn", func(t *testing.T) {
		for _, c := range crashes {
			t.Run(c.String(), func(t *testing.T) {
				t.Parallel()
				own := *h
				own.T = t
				if _, hasCrashed := s.newLifecycle(&own, token).run(c); hasCrashed {
					mu.Lock()
					defer mu.Unlock()
					crashed[c.position()]++
				}
			})
		}
	})
	total := 0
	for _, position := range slices.Sorted(maps.Keys(crashed)) {
		t.Logf("%2d crashes %s", crashed[position], position)
		total += crashed[position]
	}
	t.Logf("%d lifecycles, %d of them with a crash; %d writes in a lifecycle without a crash", len(crashes), total, writes)
	if total < len(crashes)/2 {
		t.Error("a process crashed in fewer than half of the lifecycles")
	}
	for _, c := range crashes {
		if c.nth == 1 && crashed[c.position()] == 0 {
			t.Errorf("no process crashed %s", c)
		}
	}
}

// crashesAt returns the crashes to test, which cover all of the given calls, and the number of writes among these
// calls. In another lifecycle, the nth call of a kind can be a different call or not occur at all, because watches
// start concurrently and a process can happen to read an object twice.
func crashesAt(calls [][]apiproxy.Call) (crashes []crash, writes int) {
	counts := map[string]int{}
	for i, phase := range calls {
		for _, call := range phase {
			counts[call.Kind()]++
			c := crash{kind: call.Kind(), nth: counts[call.Kind()]}
			if !call.IsWrite() && c.nth > 1 {
				c.after = c.nth%2 == 0 // a crash either before or after the call is enough, because a read changes nothing
				crashes = append(crashes, c)
				continue
			}
			crashes = append(crashes, c)
			c.after = true
			crashes = append(crashes, c)
			if !call.IsWrite() {
				continue
			}
			writes++
			for c.phase = i + 1; c.phase < len(calls); c.phase++ {
				crashes = append(crashes, c)
			}
		}
	}
	return crashes, writes
}
