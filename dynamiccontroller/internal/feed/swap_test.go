package feed

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

var stateNames = map[swapState]string{
	swapWaiting: "waiting", swapEffective: "effective", swapQueued: "queued", swapMatched: "matched", swapDone: "done",
	swapSuperseded: "superseded",
}

// transitions holds the allowed transitions: from a state and an event to the next state.
var transitions = map[swapState]map[swapState]swapState{
	swapWaiting:   {swapEffective: swapEffective, swapSuperseded: swapSuperseded},
	swapEffective: {swapQueued: swapQueued, swapMatched: swapMatched},
	swapQueued:    {swapMatched: swapDone},
	swapMatched:   {swapQueued: swapDone},
}

// The rows are states and the columns are events. All combinations that the table does not contain change nothing.
func TestSwap_Transitions(t *testing.T) {
	for from, name := range stateNames {
		for event, eventName := range stateNames {
			for _, run := range []string{"detached", "attached", "in the next run"} {
				t.Run(fmt.Sprintf("%s and %s, %s", name, eventName, run), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { testTransition(t, from, event, run) })
				})
			}
		}
	}
}

func testTransition(t *testing.T, from, event swapState, run string) {
	f := newFixture(t)
	defer f.start(serving())()
	f.Feed.mu.Lock()
	defer f.Feed.mu.Unlock()
	before := f.options.Load()
	s := newSwap(&Options{Primary: sourceFor(widgets)})
	s.state = from
	inProgress := from == swapWaiting || from == swapEffective || from == swapQueued
	if inProgress {
		f.swap = s
	}
	if from != swapWaiting {
		close(s.settled)
	}
	if run != "detached" {
		f.lifetime = t.Context()
	}
	if run == "attached" && (from == swapEffective || from == swapMatched) {
		f.beginInitialSyncLocked(nil)
		s.initialSync = f.initialSync
	}
	if run == "in the next run" { // it waits for its own existing objects
		s.initialSync = &initialSync{}
		f.beginInitialSyncLocked(nil)
	}
	current := f.initialSync

	to, allowed := transitions[from][event]
	if got := f.advanceLocked(s, event); got != allowed {
		t.Errorf("the transition is reported as possible: %t, want %t", got, allowed)
	}
	if !allowed {
		to = from
	}
	if s.state != to {
		t.Errorf("the state is %s, want %s", stateNames[s.state], stateNames[to])
	}
	if settled := typewatch.IsClosed(s.settled); settled != (to != swapWaiting) {
		t.Errorf("settled is closed: %t", settled)
	}
	takesEffect := allowed && to == swapEffective
	if inEffect := f.options.Load() == s.next; inEffect != takesEffect || !inEffect && f.options.Load() != before {
		t.Errorf("the new options are in effect: %t, want %t", inEffect, takesEffect)
	}
	stays := to == swapWaiting || to == swapEffective || to == swapQueued
	if (f.swap == s) != stays {
		t.Errorf("the swap is in progress: %t, want %t", f.swap == s, stays)
	}
	checkInitialSync(t, f, s, current, allowed && event == swapQueued, takesEffect, run)
}

// Effect is called once for each swap that takes effect, while the feed is not locked.
func TestSwap_CallsEffectWithoutTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.start(serving())()
		effects := 0
		for range 2 {
			s := newSwap(&Options{Primary: sourceFor(widgets), Effect: func() {
				effects++
				if !f.Feed.mu.TryLock() {
					t.Error("the feed is locked")
					return
				}
				f.Feed.mu.Unlock()
			}})
			f.takeEffect(s)
			f.takeEffect(s)
		}
		if effects != 2 {
			t.Errorf("Effect was called %d times, want once for each swap", effects)
		}
	})
}

// checkInitialSync checks how a transition has changed the initial sync. The feed must be locked.
func checkInitialSync(
	t *testing.T, f *fixture, s *swap, before *initialSync, queued, takesEffect bool, run string,
) {
	t.Helper()
	switch {
	case run == "detached" && f.initialSync != nil:
		t.Error("a detached feed began an initial sync")
	case run == "in the next run" && (f.initialSync != before || !before.primaryDone.IsZero()):
		t.Error("the swap changed the initial sync of the next run")
	case run != "attached":
	case takesEffect && (f.initialSync == nil || f.initialSync != s.initialSync || !f.target.paused):
		t.Error("the target was not paused for the swap")
	case queued && f.swap == nil && (f.initialSync != nil || f.target.paused):
		t.Error("the target was not resumed at the end of the swap")
	case queued && f.swap != nil && before.primaryDone.IsZero():
		t.Error("the initial sync waits for the primary source, although all objects have been passed on")
	}
}

func TestSwap_TakesEffectAtOnceIfTheWatchStaysTheSame(t *testing.T) {
	bubble(t, serving(owned(gadgets)), func(f *fixture) {
		f.put(widgets, "a")
		f.put(gizmos, "of-a", "a")
		f.attach()
		f.target.expect(t, "the first options", "existing a")
		next := serving(owned(gizmos))
		<-f.Swap(next)
		if f.options.Load() != next || f.Newest() != next || !f.HasSynced() {
			t.Error("the options did not take effect")
		}
		f.target.expect(t, "the swap", "all objects", "existing a")
		f.expectSecondaries("after the swap", gizmos)
		f.expectPaused(0, false)
	})
}

func TestSwap_WaitsForTheNewWatch(t *testing.T) {
	bubble(t, serving(owned(gadgets)), func(f *fixture) {
		f.put(widgets, "a")
		f.attach()
		f.target.expect(t, "the first options", "existing a")
		before := f.options.Load()
		unblock := f.block(widgets)
		next := &Options{Primary: selected(), Secondaries: []*Source{owned(gizmos)}}
		<-f.Swap(next)
		synced := f.Synced()
		time.Sleep(time.Second)
		if f.options.Load() != before || f.Newest() != next || f.HasSynced() || typewatch.IsClosed(synced) {
			t.Error("the options took effect before the new watch had synced")
		}
		f.expectSecondaries("while the swap is waiting", gadgets)
		f.expectPaused(0, false)
		f.put(widgets, "a")
		f.target.expect(t, "while the swap is waiting", "changed a")
		unblock()
		if f.options.Load() != next || !f.HasSynced() || !typewatch.IsClosed(synced) {
			t.Error("the options did not take effect when the new watch had synced")
		}
		f.target.expect(t, "the swap", "all objects")
		f.expectSecondaries("after the swap", gizmos)
		f.expectPaused(time.Second, false)
	})
}

// The last one of several swaps takes effect, and each earlier one that has not taken effect is superseded.
func TestSwap_SupersedesTheOnesThatAreWaiting(t *testing.T) {
	bubble(t, serving(), func(f *fixture) {
		f.put(widgets, "a")
		f.attach()
		f.target.expect(t, "the first options", "existing a")
		unblock := f.block(widgets)
		effects := ""
		var swaps []*swap
		for i, name := range []string{"a", "b", "c"} {
			next := &Options{Primary: selected(), Effect: func() { effects += name }}
			if i == 2 {
				next.Primary = sourceFor(widgets) // the current watch
			}
			<-f.Swap(next)
			swaps = append(swaps, f.newestSwap())
		}
		unblock()
		time.Sleep(time.Minute)
		for i, want := range []swapState{swapSuperseded, swapSuperseded, swapDone} {
			if got := f.state(swaps[i]); got != want || !typewatch.IsClosed(swaps[i].settled) {
				t.Errorf("swap %d is %s, want %s", i, stateNames[got], stateNames[want])
			}
		}
		if effects != "c" {
			t.Errorf("the swaps %q took effect, want c", effects)
		}
		f.target.expect(t, "the swaps", "all objects")
		f.expectPaused(0, false)
	})
}

// A run ends while the swap waits, and the next one begins before or after the swap takes effect.
func TestSwap_ContinuesIfTheRunEndsWhileItWaits(t *testing.T) {
	for name, between := range map[string]bool{"between the runs": true, "in the next run": false} {
		t.Run("the swap takes effect "+name, func(t *testing.T) {
			bubble(t, serving(owned(gadgets)), func(f *fixture) {
				f.put(widgets, "a")
				f.attach()
				unblock := f.block(widgets)
				<-f.Swap(&Options{Primary: selected(), Secondaries: []*Source{owned(gizmos)}})
				s := f.newestSwap()
				f.target.expect(t, "the first run", "existing a")
				f.detach()
				if got := f.state(s); got != swapWaiting {
					t.Errorf("after the run, the swap is %s", stateNames[got])
				}
				want := []string{"existing a"}
				if between {
					unblock()
					f.target.expect(t, "the swap while the feed is detached")
				} else {
					want = append(want, "all objects")
				}
				f.attach()
				if !between {
					unblock()
				}
				f.target.expect(t, "the next run", want...)
				if got := f.state(s); got != swapDone {
					t.Errorf("the swap is %s, want done", stateNames[got])
				}
				f.expectSecondaries("after the swap", gizmos)
				f.expectPaused(0, false)
			})
		})
	}
}

// annotate changes the metadata of each object, so that it belongs to the difference of the two watches.
func annotate(object any) (any, error) {
	object.(metav1.Object).SetAnnotations(map[string]string{"changed": "true"})
	return object, nil
}

// While the difference is being passed on, the new options are in effect. A run can end there, and another swap begin.
func TestSwap_ContinuesIfTheRunEndsOrAnotherSwapBeginsWhileTheDifferenceIsPassedOn(t *testing.T) {
	for name, another := range map[string]bool{"the run ends": false, "another swap begins": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, serving(), func(f *fixture) {
				hang, hung := make(chan struct{}), false
				f.put(widgets, "a")
				f.attach()
				f.target.expect(t, "the first options", "existing a")
				primary := sourceFor(widgets)
				primary.Watch.Transform = annotate
				primary.Accepts = func(Environment, *typewatch.Object, *typewatch.Object) bool {
					hung = true
					<-hang
					return true
				}
				<-f.Swap(&Options{Primary: primary, Secondaries: []*Source{owned(gadgets)}})
				s := f.newestSwap()
				if got := f.state(s); got != swapEffective || !hung {
					t.Fatalf("the swap is %s, and the predicate was called: %t", stateNames[got], hung)
				}
				f.target.expect(t, "the swap", "all objects")
				f.expectPaused(5*time.Second, true)
				if another {
					unblock := f.block(widgets)
					<-f.Swap(&Options{Primary: selected()})
					f.expectSecondaries("the options in effect stay so until the next ones take effect", gadgets)
					if got := f.state(s); got != swapMatched {
						t.Errorf("the swap is %s, want matched", stateNames[got])
					}
					close(hang)
					f.expectPaused(maxFailingWait, false)
					unblock()
					f.expectSecondaries("after the other swap")
				} else {
					f.endRun()
					detached := f.Detach()
					close(hang)
					<-detached
					f.expectPaused(time.Minute, true)
					f.target.expect(t, "the end of the run", "changed a")
					f.attach()
					f.target.expect(t, "the next run", "existing a")
					f.expectSecondaries("after the swap", gadgets)
				}
				if got := f.state(s); got != swapDone {
					t.Errorf("the swap is %s, want done", stateNames[got])
				}
				f.expectPaused(time.Minute, false)
			})
		})
	}
}

// Without the option KeepSecondaries, a swap removes the secondaries that its options do not contain.
func TestSwap_KeepSecondaries(t *testing.T) {
	for _, keep := range []bool{true, false} {
		for name, primary := range map[string]*Source{"the same watch": sourceFor(widgets), "a new watch": selected()} {
			t.Run(fmt.Sprintf("%s, %t", name, keep), func(t *testing.T) {
				bubble(t, serving(owned(gadgets)), func(f *fixture) {
					f.attach()
					f.add(owned(gizmos))
					seen := ""
					mapTo := func(name string) *Source {
						return mapped(gizmos, func() []string { seen = name; return nil })
					}
					f.add(mapTo("old"))
					next := &Options{Primary: primary, Secondaries: []*Source{mapTo("new")}, KeepSecondaries: keep}
					<-f.Swap(next)
					synctest.Wait()
					if keep {
						f.expectSecondaries("after the swap", gadgets, gizmos)
					} else {
						f.expectSecondaries("after the swap", gizmos)
					}
					if n, want := len(f.Secondaries()), map[bool]int{true: 3, false: 1}[keep]; n != want {
						t.Errorf("%d secondaries, want %d", n, want)
					}
					f.put(gizmos, "g")
					if seen != "new" {
						t.Errorf("the function %q was called, want that of the new options", seen)
					}
				})
			})
		}
	}
}

// A watch that fails does not take effect, whatever happens to the run.
func TestSwap_WaitsForAWatchThatFails(t *testing.T) {
	bubble(t, serving(), func(f *fixture) {
		f.put(widgets, "a")
		f.attach()
		f.fail(widgets, errors.New("on purpose"))
		before := f.options.Load()
		<-f.Swap(&Options{Primary: selected()})
		for range 2 {
			time.Sleep(time.Hour)
			if f.options.Load() != before || f.HasSynced() {
				t.Error("the options took effect")
			}
			f.detach()
			f.attach()
		}
		f.fail(widgets, nil)
		time.Sleep(time.Minute)
		if f.options.Load() == before || !f.HasSynced() {
			t.Error("the options did not take effect")
		}
	})
}
