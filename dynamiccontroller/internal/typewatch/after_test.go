package typewatch

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"
)

func transformed(after *Need) Want {
	want := wantDepth(Full)
	want.Transform, want.After = func(obj any) (any, error) { return obj, nil }, after
	return want
}

// However fast one replaces the other, a transform that all have is called from one goroutine at a time: the watches wait
// for all that were before them, also for those that one waits for that never ran.
func TestATransformIsCalledFromOneGoroutineAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.linger = time.Minute
		s.put("a")
		p := newTestPool(s)
		p.Begin(context.Background())
		var all []*Need
		for i := range 7 {
			var before *Need
			if i > 0 {
				before = all[i-1]
			}
			n := p.Acquire(transformed(before))
			all = append(all, n)
			if before != nil {
				before.Release()
				before.Leave(n)
			}
			synctest.Wait()
		}
		time.Sleep(time.Hour)
		last := all[len(all)-1]
		if s.opened() != 1 || !isOver(last.Synced()) {
			t.Errorf("%d watches were open at once, the last is %+v", s.opened(), last.State())
		}
		last.Release()
		last.Leave(nil)
		for _, n := range all {
			<-n.Ended()
		}
		p.End()
	})
}

// A swap keeps nothing of what was before it.
func TestASwapKeepsNoFormerCache(t *testing.T) {
	s := newServer()
	s.put("a")
	p := newTestPool(s)
	p.Begin(context.Background())
	var former []weak.Pointer[store]
	n := p.Acquire(transformed(nil))
	for range 5 {
		n.Attach((&ear{}).sink())
		<-n.Synced()
		former = append(former, weak.Make(n.shared.current.store))
		next := p.Acquire(transformed(n))
		n.Release()
		n.Leave(next)
		<-n.Ended()
		n = next
	}
	left := func() (left int) {
		for _, store := range former {
			if store.Value() != nil {
				left++
			}
		}
		return left
	}
	// What the goroutines of a watch had on their stacks goes with them.
	for deadline := time.Now().Add(10 * time.Second); left() > 0 && time.Now().Before(deadline); runtime.Gosched() {
		runtime.GC()
	}
	if left() > 0 {
		t.Errorf("%d former caches are still in memory", left())
	}
	n.Release()
	n.Leave(nil)
	<-n.Ended()
	p.End()
}

// A need that goes before its deeper watch has synced ends when that has.
func TestS1_ANeedEndsWithTheWatchThatWasToComeForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("a")
		p := newTestPool(s)
		p.Begin(context.Background())
		stays := attachWitness(t, p.Acquire(wantDepth(Metadata)))
		synctest.Wait()
		s.refuseAll(Full, errors.New("not today"))
		full := p.Acquire(wantDepth(Full))
		synctest.Wait()
		coming := full.shared.coming
		full.Release()
		full.Leave(nil)
		if isOver(full.Ended()) && !isOver(coming.ended) {
			t.Error("it says that nothing runs for it any more, and something does")
		}
		<-full.Ended()
		if !isOver(coming.ended) {
			t.Error("it has ended before what ran for it")
		}
		stays.leave()
		p.End()
	})
}
