package integration

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/dynamic-controller/engine/test/apiproxy"
)

// death is where and how the first process of a lifetime dies.
type death struct {
	kind  string // of the call, and never if empty
	nth   int    // of its kind
	after bool   // the call is carried out
	// userGoesOnTo is the phase to which the user has gone on before the next process begins, if it is not there yet.
	userGoesOnTo int
}

func (d death) String() string {
	return fmt.Sprintf("%s number %d, then phase %d", d.way(), d.nth, d.userGoesOnTo)
}

func (d death) way() string {
	if d.after {
		return "after " + d.kind
	}
	return "before " + d.kind
}

// live lets processes live the parent's life through, the first of which dies so. If it was at a write, the one that
// follows dies at its second. It returns the calls of the first, by phase.
func (l *lifetime) live(d death) (calls [][]apiproxy.Call, died bool) {
	l.Helper()
	first := l.start()
	alive, processes := first, 1
	if d.kind != "" {
		first.trap.Set(func(c apiproxy.Call) bool { return c.Kind() == d.kind }, d.nth, d.after)
	}
	first.lead()
	before := 0
	for i, phases := 0, l.phases(); i < len(phases); i++ {
		phases[i].begin()
		l.await(fmt.Sprintf("phase %d ends", i), func() phase {
			if alive.mustLive(); !alive.isDead() {
				return phases[i]
			}
			alive = l.start()
			if processes++; processes == 2 && first.trap.Caught().IsWrite() {
				alive.trap.Set(apiproxy.Call.IsWrite, 2, true) // death is no excuse for dying again
			}
			alive.lead()
			if processes == 2 && i < d.userGoesOnTo {
				i = d.userGoesOnTo
				phases[i].begin()
			}
			return phases[i]
		})
		all := first.proxy.Calls()
		calls, before = append(calls, all[before:]), len(all)
	}
	return calls, first.isDead()
}

// A process is killed (SIGKILL) at each of its calls in turn, reads and the beginnings of watches too, before it is
// carried out and after, when the answer is lost; the parent is changed or deleted, or is not; another process starts,
// and the end is always right.
func TestHandlers_AProcessMayDieAtEachCall(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	token := s.account()
	calls, _ := s.lifetimeIn(h, token).live(death{})
	deaths, writes := deathsAt(calls)
	// Two finalizers and their removal, two kinds and their striking off, six children and their deletion, a bucket.
	if writes < 15 {
		t.Errorf("only %d writes: the life has more", writes)
	}
	var mu sync.Mutex
	died := map[string]int{}
	t.Run("each in turn", func(t *testing.T) {
		for _, d := range deaths {
			t.Run(d.String(), func(t *testing.T) {
				t.Parallel()
				own := *h
				own.T = t
				if _, hasDied := s.lifetimeIn(&own, token).live(d); hasDied {
					mu.Lock()
					defer mu.Unlock()
					died[d.way()]++
				}
			})
		}
	})
	all := 0
	for _, way := range slices.Sorted(maps.Keys(died)) {
		t.Logf("%2d died %s", died[way], way)
		all += died[way]
	}
	t.Logf("%d lives, in %d of which a process was killed, %d writes in one without", len(deaths), all, writes)
	for _, d := range deaths {
		if died[d.way()] == 0 {
			t.Errorf("none died %s", d)
		}
	}
}

// deathsAt are all deaths at the calls that a life made, phase by phase. The nth of a kind need not be the same in another
// life, nor be there: watches begin at once, and some things are looked at twice by chance.
func deathsAt(calls [][]apiproxy.Call) (deaths []death, writes int) {
	times := map[string]int{}
	for i, phase := range calls {
		for _, c := range phase {
			times[c.Kind()]++
			d := death{kind: c.Kind(), nth: times[c.Kind()]}
			if !c.IsWrite() && d.nth > 1 {
				d.after = d.nth%2 == 0 // as a read changes nothing, that matters little
				deaths = append(deaths, d)
				continue
			}
			deaths = append(deaths, d)
			d.after = true
			deaths = append(deaths, d)
			if !c.IsWrite() {
				continue
			}
			writes++
			for d.userGoesOnTo = i + 1; d.userGoesOnTo < len(calls); d.userGoesOnTo++ {
				deaths = append(deaths, d)
			}
		}
	}
	return deaths, writes
}
