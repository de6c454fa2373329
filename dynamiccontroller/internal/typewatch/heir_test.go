package typewatch

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// What is deleted after a need has left and before its heir has a sink is told to that sink, whatever the heir asks for and
// however early its list came.
func TestS6_ASwapLosesNoDeletion(t *testing.T) {
	same := func(obj any) (any, error) { return obj, nil }
	for name, to := range map[string]Want{
		"less of the same watch": wantDepth(Metadata),
		"as much":                wantDepth(Full),
		"a transform":            {Spec: Spec{GVR: widgets, Depth: Full}, Transform: same},
		"a selector":             {Spec: Spec{GVR: widgets, Depth: Full, Selector: "some=label"}},
		"a namespace":            {Spec: Spec{GVR: widgets, Depth: Full, Namespace: "ns"}},
	} {
		for when, deleteFirst := range map[string]bool{"before it left": true, "after it left": false} {
			t.Run(name+", "+when, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newServer()
					s.put("a")
					s.put("b")
					p := newTestPool(s)
					p.Begin(context.Background())
					old := p.Acquire(wantDepth(Full))
					e := &ear{}
					old.Attach(e.sink())
					synctest.Wait()
					deletion := func() {
						s.delete("a")
						s.put("b")
						synctest.Wait()
					}
					if deleteFirst {
						// The old sink is slow, and the heir's list has come when it is told.
						old.shared.feed.deliver.Lock()
						s.delete("a")
						s.put("b")
					}
					to.After = old
					heir := p.Acquire(to)
					old.Release()
					left := make(chan struct{})
					go func() {
						defer close(left)
						old.Leave(heir)
					}()
					if deleteFirst {
						if heir.shared != old.shared {
							<-heir.Synced()
						}
						old.shared.feed.deliver.Unlock()
					}
					<-left
					if !deleteFirst {
						deletion()
					}
					synctest.Wait()
					heard := e.take()
					second := &ear{}
					heir.Attach(second.sink())
					synctest.Wait()
					heard = append(heard, second.take()...)
					deleted := 0
					for _, what := range heard {
						if what == "ns/a 1>-" {
							deleted++
						}
					}
					if deleted != 1 {
						t.Errorf("the deletion was told %d times: %q", deleted, heard)
					}
					heir.Detach()
					s.put("a")
					s.delete("a")
					synctest.Wait()
					heir.Attach(second.sink())
					if diff := cmp.Diff([]string{"known ns/b", "synced"}, second.take()); diff != "" {
						t.Errorf("a later sink is told of the past: %s", diff)
					}
					heir.Release()
					heir.Leave(nil)
					<-heir.Ended()
					p.End()
				})
			})
		}
	}
}

// A need that took the place of one and gave it up before it had a sink hands on what it was to tell.
func TestS6_AnHeirThatNeverHeardHandsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("a")
		s.put("b")
		p := newTestPool(s)
		p.Begin(context.Background())
		stays := attachWitness(t, p.Acquire(wantDepth(Full)))
		first := p.Acquire(wantDepth(Full))
		first.Attach((&ear{}).sink())
		synctest.Wait()
		second, third := p.Acquire(wantDepth(Metadata)), p.Acquire(wantDepth(Keys))
		first.Release()
		first.Leave(second)
		s.delete("a")
		s.put("b")
		synctest.Wait()
		second.Release()
		second.Leave(third)
		e := &ear{}
		third.Attach(e.sink())
		if diff := cmp.Diff([]string{"known ns/b", "ns/a 1>-", "synced"}, e.take()); diff != "" {
			t.Error(diff)
		}
		third.Release()
		third.Leave(nil)
		stays.leave()
		p.End()
	})
}

// Where nobody heard, as on a standby, nothing is kept for anybody.
func TestS6_AnHeirOfNobodyKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("a")
		p := newTestPool(s)
		p.Begin(context.Background())
		old := p.Acquire(wantDepth(Full))
		synctest.Wait()
		heir := p.Acquire(wantDepth(Metadata))
		old.Release()
		old.Leave(heir)
		synctest.Wait()
		if len(heir.inherited) > 0 || heir.awaitsSink {
			t.Errorf("it keeps %v", heir.inherited)
		}
		// A run that ends during a swap will give the heir no sink.
		heir.Attach((&ear{}).sink())
		last := p.Acquire(wantDepth(Metadata))
		heir.Release()
		heir.Leave(last)
		if len(last.inherited) == 0 {
			t.Error("it keeps nothing for the sink to come")
		}
		last.Detach()
		if len(last.inherited) > 0 || last.awaitsSink {
			t.Errorf("after Detach it keeps %v", last.inherited)
		}
		last.Release()
		last.Leave(nil)
		p.End()
	})
}

// A deep need that cannot be met keeps a lesser one from nothing, and has its turn when it can.
func TestS6_ADeepNeedThatFailsStarvesNoLesserOne(t *testing.T) {
	for name, deepFirst := range map[string]bool{"the deep one came first": true, "it came last": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				s.put("a")
				p := newTestPool(s)
				p.Begin(context.Background())
				keys := attachWitness(t, p.Acquire(wantDepth(Keys)))
				synctest.Wait()
				s.refuseAll(Full, errors.New("not today"))
				depths := []Depth{Full, Metadata}
				if !deepFirst {
					slices.Reverse(depths)
				}
				needs := map[Depth]*witness{}
				for _, depth := range depths {
					needs[depth] = attachWitness(t, p.Acquire(wantDepth(depth)))
					synctest.Wait()
				}
				time.Sleep(time.Hour)
				s.put("b")
				synctest.Wait()
				if !isOver(needs[Metadata].need.Synced()) || needs[Full].need.State().Phase != Failing || s.opened() > 2 {
					t.Errorf("%+v, %+v, %d open at once", needs[Metadata].need.State(), needs[Full].need.State(), s.opened())
				}
				s.refuseAll(Full, nil)
				time.Sleep(time.Minute)
				for _, w := range needs {
					if diff := w.knows(s.versions()); diff != "" || !isOver(w.need.Synced()) {
						t.Errorf("%+v: %s", w.need.State(), diff)
					}
					w.leave()
				}
				keys.leave()
				p.End()
			})
		})
	}
}

// A watch that is on its way to somebody is not thrown away because somebody else needs more.
func TestS6_AWatchOnItsWayIsNotDroppedForADeeperOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("a")
		p := newTestPool(s)
		p.Begin(context.Background())
		keys := attachWitness(t, p.Acquire(wantDepth(Keys)))
		synctest.Wait()
		s.mu.Lock() // so that lists take their time
		metadata := p.Acquire(wantDepth(Metadata))
		before := p.keepers(widgets)
		full := p.Acquire(wantDepth(Full))
		if after := p.keepers(widgets); !slices.Equal(before, after) {
			t.Error("it was dropped")
		}
		s.mu.Unlock()
		synctest.Wait()
		if !isOver(full.Synced()) || !isOver(metadata.Synced()) || len(p.keepers(widgets)) != 1 {
			t.Errorf("%+v, %+v", full.State(), metadata.State())
		}
		for _, n := range []*Need{full, metadata} {
			n.Release()
			n.Leave(nil)
		}
		keys.leave()
		p.End()
	})
}
