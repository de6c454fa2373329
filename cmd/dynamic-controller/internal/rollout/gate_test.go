package rollout

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

var (
	accepted = time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	newest   = Revision{Name: "new", Same: []string{"new", "same"}, Since: accepted}
)

// created is the time at which the instances of the tests were created, unless stated otherwise.
var created = accepted.Add(-time.Hour)

// resumed returns a gate of a process that continues a rollout in which this number of instances has been admitted.
func resumed(admitted int) *Gate {
	g := New(newest)
	g.SetRecorded(admitted)
	return g
}

// some returns n instances with the given state. They were created before the newest revision was accepted.
func some(n int, state Instance) (all []Instance) {
	state.Created = created
	for i := range n {
		state.Key = fmt.Sprintf("shop/%s-%t-%d-%d-%d", state.Revision, state.Regressed, state.Health, n, i)
		all = append(all, state)
	}
	return all
}

func TestSurvey(t *testing.T) {
	var (
		old       = Instance{Revision: "old", Health: Ready}
		oldFailed = Instance{Revision: "old", Health: Failing}
		updated   = Instance{Revision: "new", Health: Ready}
		failing   = Instance{Revision: "new", Health: Failing, Regressed: true}
		waiting   = Instance{Revision: "new", Health: Waiting, Regressed: true}
		asBefore  = Instance{Revision: "new", Health: Failing}
		paused    = Instance{Revision: "new", Health: Failing, Regressed: true, Paused: true}
	)
	later := func(n int, state Instance) []Instance {
		all := some(n, state)
		for i := range all {
			all[i].Created = accepted.Add(time.Hour)
		}
		return all
	}
	for name, test := range map[string]struct {
		instances         []Instance
		admitted          int
		updated           int
		complete, stopped bool
	}{
		"no instances":      {nil, 0, 0, true, false},
		"no instance moved": {some(100, old), 1, 0, false, false},
		"first instance ready": {
			slices.Concat(some(1, updated), some(99, old)), 1, 1, false, false,
		},
		"step doubles": {
			slices.Concat(some(8, updated), some(92, old)), 8, 8, false, false,
		},
		"last step": {
			slices.Concat(some(64, updated), some(36, old)), 36, 64, false, false,
		},
		"all updated": {some(100, updated), 0, 100, true, false},
		"some not ready yet": {
			slices.Concat(some(8, updated), some(3, waiting), some(89, old)), 5, 11, false, false,
		},
		"as many not ready as ready": {
			slices.Concat(some(8, updated), some(8, waiting), some(84, old)), 0, 16, false, false,
		},
		"first instance fails": {
			slices.Concat(some(1, failing), some(99, old)), 0, 1, false, true,
		},
		"one of ten fails": {
			slices.Concat(some(9, updated), some(1, failing), some(90, old)), 0, 10, false, true,
		},
		"few fail": {
			slices.Concat(some(20, updated), some(2, failing), some(78, old)), 20, 22, false, false,
		},
		"too many fail": {
			slices.Concat(some(20, updated), some(3, failing), some(77, old)), 0, 23, false, true,
		},
		"last instance fails": {some(1, failing), 0, 1, true, false},
		"first instance failed before": {
			slices.Concat(some(1, asBefore), some(99, old)), 1, 1, false, false,
		},
		"failing instances move": {
			slices.Concat(some(4, updated), some(20, oldFailed)), 4, 4, false, false,
		},
		"failing instances do not delay others": {
			slices.Concat(some(4, asBefore), some(20, oldFailed), some(20, old)), 4 + 1, 4, false, false,
		},
		"failing instances wait after a stop": {
			slices.Concat(some(1, failing), some(20, oldFailed)), 0, 1, false, true,
		},
		"paused instance fails": {
			slices.Concat(some(2, paused), some(98, old)), 1, 0, false, false,
		},
		"all others paused": {
			slices.Concat(some(2, updated), some(2, paused)), 0, 2, true, false,
		},
		"new instances ready": {
			slices.Concat(later(50, updated), some(50, old)), 1, 50, false, false,
		},
		"new instances fail": {
			slices.Concat(later(50, failing), some(50, old)), 1, 50, false, false,
		},
		"new instances ready, moved instance fails": {
			slices.Concat(later(50, updated), some(1, failing), some(49, old)), 0, 51, false, true,
		},
		"only the schema changed": {some(100, Instance{Revision: "same", Health: Ready}), 0, 100, true, false},
		"as healthy as before": {
			slices.Concat(some(4, Instance{Revision: "new", Health: Waiting}), some(96, old)), 4, 4, false, false,
		},
		"without a revision": {some(100, Instance{}), 0, 100, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := resumed(Everyone)
			admitted := g.Survey(test.instances)
			p, known := g.Progress()
			if len(admitted) != test.admitted || p.Updated != test.updated || p.Complete() != test.complete ||
				p.Stopped != test.stopped || !known {
				t.Errorf("got %d admitted instances and progress %+v", len(admitted), p)
			}
			for _, i := range test.instances {
				want := i.Revision != "old" || slices.Contains(admitted, i.Key)
				if got := g.IsOpen(i.Key, i.Revision, i.Created); got != want {
					t.Errorf("instance %s: got open %t", i.Key, got)
				}
			}
			// Another process makes the same decision. The same process does not admit instances again.
			if again := resumed(Everyone).Survey(test.instances); !slices.Equal(again, admitted) {
				t.Errorf("another process admitted %q, want %q", again, admitted)
			}
			if again := g.Survey(test.instances); len(again) > 0 {
				t.Errorf("admitted again: %q", again)
			}
		})
	}
}

// An instance that is being updated when another one fails must not return to its old revision.
func TestSurvey_AdmittedInstancesStayAdmitted(t *testing.T) {
	old := Instance{Revision: "old", Health: Ready}
	updated, others := some(8, Instance{Revision: "new", Health: Ready}), some(92, old)
	g := resumed(len(updated))
	admitted := g.Survey(slices.Concat(updated, others))
	if len(admitted) != 8 {
		t.Fatalf("admitted: %q", admitted)
	}
	others = slices.DeleteFunc(others, func(i Instance) bool { return i.Key == admitted[0] })
	for _, state := range []Instance{
		{Revision: "new", Health: Failing, Regressed: true}, {Revision: "new", Health: Waiting, Regressed: true},
	} {
		moved := old
		moved.Key, moved.Revision, moved.Health, moved.Regressed = admitted[0], state.Revision, state.Health, state.Regressed
		g.Moved(moved.Key, "new")
		more := g.Survey(slices.Concat(updated, []Instance{moved}, others))
		for _, key := range admitted[1:] {
			if !g.IsOpen(key, "old", created) {
				t.Errorf("%s is no longer admitted", key)
			}
		}
		if len(more) > 0 {
			t.Errorf("also admitted: %q", more)
		}
	}
	g.Survey(slices.Concat(updated, some(1, Instance{Revision: "older"})))
	if g.IsOpen(admitted[1], "old", created) {
		t.Error("a deleted instance is still admitted")
	}
}

func TestSurvey_ProgressDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		instances := some(2, Instance{Revision: "old", Health: Ready})
		instances[0].Revision, instances[0].Health, instances[0].Regressed = "new", Waiting, true
		instances[0].Changed = time.Now()
		g := resumed(Everyone)
		expect := func(stalled bool, recheck time.Duration) {
			t.Helper()
			g.Survey(instances)
			p, _ := g.Progress()
			if p.Stalled != stalled || p.Stopped || !stalled && time.Until(p.Recheck) != recheck ||
				stalled && !p.Recheck.IsZero() {
				t.Errorf("got progress %+v with the next check in %s", p, time.Until(p.Recheck))
			}
			if g = resumed(Everyone); !slices.Equal(g.Survey(instances), nil) {
				t.Error("an instance was admitted")
			}
		}
		expect(false, 10*time.Minute)
		time.Sleep(6 * time.Minute)
		expect(false, 4*time.Minute)
		// Another instance becomes ready.
		ready := some(1, Instance{Revision: "new", Health: Ready, Changed: time.Now()})
		instances = slices.Concat(instances, ready)
		expect(false, 10*time.Minute)
		time.Sleep(10 * time.Minute)
		expect(true, 0)
		instances[0].Health, instances[0].Regressed = Ready, false
		if admitted := g.Survey(instances); len(admitted) != 1 {
			t.Errorf("admitted: %q", admitted)
		}
		if p, _ := g.Progress(); p.Stalled {
			t.Errorf("the rollout has not continued: %+v", p)
		}
	})
}

// keysOf returns the keys of the instances.
func keysOf(instances []Instance) (keys []string) {
	for _, i := range instances {
		keys = append(keys, i.Key)
	}
	return keys
}

// move gives the named instance the newest revision, as the process that owns the gate.
func (g *Gate) move(instances []Instance, key string) {
	g.Moved(key, "new")
	i := slices.IndexFunc(instances, func(i Instance) bool { return i.Key == key })
	instances[i].Revision, instances[i].Health = "new", Ready
}

// An instance whose status cannot be written does not move.
func TestSurvey_StuckInstance(t *testing.T) {
	for _, health := range []Health{Failing, Ready} {
		synctest.Test(t, func(t *testing.T) {
			instances := some(4, Instance{Revision: "old", Health: health})
			g := New(newest)
			expect := func(admits int, stuck ...string) (admitted []string) {
				t.Helper()
				admitted = g.Survey(instances)
				p, _ := g.Progress()
				slices.Sort(stuck)
				if len(admitted) != admits || !slices.Equal(keysOf(p.Stuck), stuck) || p.Stopped != (len(stuck) > 1) {
					t.Fatalf("%q are admitted, %+v", admitted, p)
				}
				return admitted
			}
			first := expect(1)[0]
			time.Sleep(59 * time.Second)
			expect(0)
			time.Sleep(time.Second)
			g.move(instances, expect(1, first)[0])
			expect(0) // another minute starts
			time.Sleep(time.Minute)
			third := expect(1, first)[0]
			time.Sleep(time.Minute)
			expect(0, first, third)
			g.RestartTimer()
			expect(0)
			time.Sleep(time.Minute)
			expect(0, first, third)
			g.move(instances, first)
			g.move(instances, third)
			g.move(instances, expect(1)[0])
			expect(0)
			if p, _ := g.Progress(); !p.Complete() {
				t.Errorf("%+v", p)
			}
		})
	}
}

func TestSurvey_PausedInstanceIsNotStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		instances := some(1, Instance{Revision: "old", Health: Ready})
		g := New(newest)
		for _, paused := range []bool{false, true, false} {
			instances[0].Paused = paused
			g.Survey(instances)
			if p, _ := g.Progress(); len(p.Stuck) > 0 || !g.IsOpen(instances[0].Key, "old", created) {
				t.Errorf("paused %t: %+v", paused, p)
			}
			time.Sleep(50 * time.Second)
		}
	})
}

func TestGate_BeforeTheFirstSurvey(t *testing.T) {
	g := New(newest)
	if g.IsOpen("shop/a", "old", created) || !g.IsOpen("shop/a", "same", created) || !g.IsOpen("shop/a", "", created) {
		t.Error("an existing instance can move before the first survey, or a new one cannot")
	}
	if _, known := g.Progress(); known || !g.InUse("old") || !g.RollsOut("new") || g.RollsOut("old") {
		t.Error("got progress before the first survey")
	}
}

func TestGate_Outdated(t *testing.T) {
	revision := newest
	revision.Base, revision.Older = "base", []string{"base", "old", "rare"}
	g := New(revision)
	g.Survey(slices.Concat(some(2, Instance{Revision: "rare"}), some(3, Instance{Revision: "old"}),
		some(1, Instance{Revision: "base", Paused: true}), some(1, Instance{Revision: "same"})))
	if got := g.Outdated(); !slices.Equal(got, []string{"old", "rare"}) {
		t.Errorf("got %q", got)
	}
	if !g.InUse("rare") || g.InUse("base") || !g.InUse("same") || !g.RollsOut("new") {
		t.Error("got wrong revisions in use")
	}
	if g.Survey(nil); g.RollsOut("new") {
		t.Error("the rollout is not complete")
	}
}

// Tenants can write any revision to the statuses of their instances. It selects one of the revisions that instances can
// have, and nothing else. The number of instances does not affect the order.
func TestGate_ForgedRevisions(t *testing.T) {
	for name, test := range map[string]struct {
		base     string
		older    []string
		outdated []string
		inUse    map[string]bool
	}{
		"a revision from before the base stands for the base": {
			"base", []string{"base", "old"}, []string{"base", "old"},
			map[string]bool{"ancient": false, "base": true, "old": true},
		},
		"the base is unknown": {
			"", []string{"base", "old"}, []string{"old", "ancient", "invented"},
			map[string]bool{"ancient": false, "base": false},
		},
		"all instances had moved": {
			"new", nil, []string{"ancient", "invented", "old"}, map[string]bool{"ancient": false, "old": false},
		},
	} {
		t.Run(name, func(t *testing.T) {
			revision := newest
			revision.Base, revision.Older = test.base, test.older
			g := New(revision)
			g.Survey(slices.Concat(some(5, Instance{Revision: "ancient"}), some(5, Instance{Revision: "invented"}),
				some(1, Instance{Revision: "old"})))
			if got := g.Outdated(); !slices.Equal(got, test.outdated) {
				t.Errorf("got %q, want %q", got, test.outdated)
			}
			for revision, want := range test.inUse {
				if got := g.InUse(revision); got != want {
					t.Errorf("%s: got in use %t", revision, got)
				}
			}
		})
	}
}

// After an instance has moved, a forged revision neither moves it back nor delays the rollout.
func TestGate_MovedInstancesStayMoved(t *testing.T) {
	revision := newest
	revision.Base, revision.Older = "old", []string{"old"}
	instances := some(3, Instance{Revision: "old", Health: Ready})
	for name, step := range map[string]func(g *Gate, key string){
		"the platform has written the status": func(g *Gate, key string) { g.Moved(key, "new") },
		"the move was observed": func(g *Gate, key string) {
			moved := slices.Clone(instances)
			g.move(moved, key)
			g.Survey(moved)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := New(revision)
			moved := g.Survey(instances)[0]
			step(g, moved)
			g.Moved("shop/other", "old") // reconciled with the old revision
			g.Survey(instances)
			if p, _ := g.Progress(); p.Updated != 1 || g.IsDone() {
				t.Errorf("got %+v", p)
			}
			if got := g.RevisionOf(moved, "old", created); got != "new" || !g.IsOpen(moved, "old", created) {
				t.Errorf("got revision %s", got)
			}
			for _, i := range instances {
				g.Moved(i.Key, "new")
			}
			g.Survey(instances)
			if p, _ := g.Progress(); !p.Complete() || !g.IsDone() {
				t.Errorf("got %+v", p)
			}
		})
	}
}

// Instances that were paused when the others had moved are updated in steps when they are resumed.
func TestGate_ResumedInstancesMoveInSteps(t *testing.T) {
	revision := newest
	revision.Base, revision.Older = "old", []string{"old"}
	g := New(revision)
	paused := some(4, Instance{Revision: "old", Health: Ready, Paused: true})
	if g.Survey(paused); !g.IsDone() {
		t.Fatal("the rollout is not done")
	}
	for i := range paused {
		paused[i].Paused = false
	}
	admitted := g.Survey(paused)
	if len(admitted) != 1 || g.RevisionOf(paused[0].Key, "old", created) != "old" {
		t.Errorf("admitted: %q", admitted)
	}
	g.Moved(admitted[0], "new")
	if !g.IsOpen(admitted[0], "old", created) || g.IsOpen("shop/other", "old", created) != true {
		t.Error("an instance that has moved must not move back")
	}
}

// rollOut moves instances until nothing changes, and returns the number of surveys. An instance fails if fails returns
// true for its key. If restarts is true, the process is replaced after each survey. It has then stored the number of
// admitted instances if the gate requires it.
func rollOut(instances []Instance, restarts bool, fails func(key string) bool) (g *Gate, surveys int) {
	g = New(newest)
	stored := 0
	for {
		surveys++
		admitted := g.Survey(instances)
		if n, record := g.Admitted(); record {
			stored = n
		}
		g.SetRecorded(stored)
		if len(admitted) == 0 {
			return g, surveys
		}
		for n, i := range instances {
			if slices.Contains(admitted, i.Key) {
				g.Moved(i.Key, "new")
				instances[n].Revision = "new"
				if fails(i.Key) {
					instances[n].Health, instances[n].Regressed = Failing, i.Health != Failing
				}
			}
		}
		if restarts {
			g = resumed(stored)
		}
	}
}

func TestRollout_LargeRolloutTakesFewSteps(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		g, surveys := rollOut(some(10_000, Instance{Revision: "old", Health: Ready}), restarts,
			func(string) bool { return false })
		if p, _ := g.Progress(); !p.Complete() || surveys > 17 {
			t.Errorf("restarts %t: %d surveys, %+v", restarts, surveys, p)
		}
	}
}

func TestRollout_StopsAndContinues(t *testing.T) {
	instances := append(some(12, Instance{Revision: "old", Health: Ready}), some(3, Instance{Revision: "old"})...)
	g, _ := rollOut(instances, true, func(string) bool { return true })
	p, _ := g.Progress()
	if !p.Stopped || len(p.Failing) != 1 || p.Updated > 2 {
		t.Errorf("the rollout has not stopped: %+v", p)
	}
	for i := range instances {
		if instances[i].Regressed {
			instances[i].Regressed, instances[i].Health = false, Ready
		}
	}
	g, _ = rollOut(instances, true, func(string) bool { return false })
	if p, _ := g.Progress(); !p.Complete() {
		t.Errorf("the rollout has not continued: %+v", p)
	}
}

func TestProgress_OrdersInstances(t *testing.T) {
	g := New(newest)
	instances := some(4, Instance{Revision: "new", Health: Failing, Regressed: true})
	slices.Reverse(instances)
	g.Survey(instances)
	if p, _ := g.Progress(); len(p.Failing) != 4 || p.Failing[0].Key > p.Failing[3].Key {
		t.Errorf("got %+v", p)
	}
}

// Instances whose statuses contain the newest revision do not show that others can be updated. Only the instances that
// the platform has allowed to move do.
func TestGate_ForgedMovesAreNoEvidence(t *testing.T) {
	var (
		forged      = Instance{Revision: "new", Health: Ready}
		unknown     = Instance{Revision: "", Health: Ready}
		old         = Instance{Revision: "old", Health: Ready}
		oldFailing  = Instance{Revision: "old", Health: Failing}
		failing     = Instance{Revision: "new", Health: Failing, Regressed: true}
		victims     = 100
		moved, lost = some(8, Instance{Revision: "new", Health: Ready, Reason: "moved"}), some(2, failing)
	)
	for i := range moved {
		moved[i].Key += "-moved"
	}
	for name, test := range map[string]struct {
		instances []Instance
		recorded  int
		admitted  int
		stopped   bool
	}{
		"nothing has moved":               {slices.Concat(some(50, forged), some(victims, old)), 0, 1, false},
		"no revision":                     {some(victims, unknown), 0, 1, false},
		"an earlier process moved some":   {slices.Concat(moved, some(50, forged), some(victims, old)), 8, 8, false},
		"an earlier process stopped":      {slices.Concat(lost, some(50, forged), some(victims, old)), 2, 0, true},
		"failures are not tolerated":      {slices.Concat(lost, some(50, forged), some(victims, old)), 0, 0, true},
		"instances that failed before":    {slices.Concat(some(50, forged), some(victims, oldFailing)), 0, 1, false},
		"all have moved":                  {slices.Concat(lost, some(50, forged), some(victims, old)), Everyone, 50, false},
		"claims of failures are believed": {slices.Concat(some(1, failing), some(victims, old)), 0, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			revision := newest
			revision.Base, revision.Older = "old", []string{"old"}
			g := New(revision)
			g.SetRecorded(test.recorded)
			admitted := g.Survey(test.instances)
			if p, _ := g.Progress(); len(admitted) != test.admitted || p.Stopped != test.stopped {
				t.Errorf("got %d admitted instances and progress %+v", len(admitted), p)
			}
			for _, i := range test.instances { // forged instances can move, but nobody else's
				if g.IsOpen(i.Key, i.Revision, i.Created) != (i.Revision == "new" || slices.Contains(admitted, i.Key)) {
					t.Errorf("instance %s: got revision %q", i.Key, g.RevisionOf(i.Key, i.Revision, i.Created))
				}
			}
		})
	}
}

// An instance that has been allowed to move counts after the process has reconciled it. Its status has no effect.
func TestGate_ForgedStatusOfAnAdmittedInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		revision := newest
		revision.Base, revision.Older = "old", []string{"old"}
		instances := some(100, Instance{Revision: "old", Health: Ready})
		g := New(revision)
		first := g.Survey(instances)[0]
		i := slices.IndexFunc(instances, func(i Instance) bool { return i.Key == first })
		instances[i].Revision = "new"
		if more := g.Survey(instances); len(more) > 0 || g.HasMoved(first, "new", created) {
			t.Errorf("admitted: %q", more)
		}
		if p, _ := g.Progress(); p.Updated != 0 {
			t.Errorf("got %+v", p)
		}
		time.Sleep(stuckAfter)
		if g.Survey(instances); len(g.progress.Stuck) != 1 {
			t.Errorf("the instance is not stuck: %+v", g.progress)
		}
		g.Moved(first, "new")
		if more := g.Survey(instances); len(more) != 0 || !g.HasMoved(first, "new", created) {
			t.Errorf("admitted: %q", more)
		}
		if g.HasMoved(first, "old", created) {
			t.Error("a status from before the move describes the instance after the move")
		}
		// Another tenant's instances follow: the one that was stuck has made room for a second one.
		if p, _ := g.Progress(); p.Updated != 1 {
			t.Errorf("got %+v", p)
		}
	})
}

// The status of an instance reaches the cache before Moved is called.
func TestGate_FailureThatIsCountedBeforeMoved(t *testing.T) {
	for name, test := range map[string]struct{ before, after Health }{
		"an instance begins to fail": {Ready, Failing},
		"an instance recovers":       {Failing, Ready},
	} {
		t.Run(name, func(t *testing.T) {
			instances := some(100, Instance{Revision: "old", Health: test.before})
			g := New(newest)
			first := g.Survey(instances)[0]
			i := slices.IndexFunc(instances, func(i Instance) bool { return i.Key == first })
			instances[i].Revision, instances[i].Health = "new", test.after
			instances[i].Regressed = test.after == Failing
			if more := g.Survey(instances); len(more) > 0 {
				t.Errorf("admitted: %q", more)
			}
			g.Moved(first, "new")
			g.Survey(instances)
			if p, _ := g.Progress(); p.Updated != 1 || p.Stopped != (test.after == Failing) {
				t.Errorf("got %+v", p)
			}
		})
	}
}

// A user who overwrites status.revision after each move must not silently hold up the others.
func TestGate_OverwrittenStatusOfAMovedInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		revision := newest
		revision.Base, revision.Older = "old", []string{"old"}
		instances := some(100, Instance{Revision: "old", Health: Ready})
		g := New(revision)
		first := g.Survey(instances)[0]
		g.Moved(first, "new")
		if more := g.Survey(instances); len(more) > 0 || g.progress.Recheck.IsZero() {
			t.Errorf("admitted %q before the status was known: %+v", more, g.progress)
		}
		time.Sleep(stuckAfter)
		more := g.Survey(instances)
		if p, _ := g.Progress(); len(more) != 1 || len(p.Stuck) != 1 || p.Stuck[0].Key != first {
			t.Errorf("admitted %q: %+v", more, p)
		}
	})
}

// Without the instances that this process has allowed to move, forged ones must not take their places.
func TestGate_ForgedMovesAfterDeletions(t *testing.T) {
	revision := newest
	revision.Base, revision.Older = "old", []string{"old"}
	g := New(revision)
	victims := some(100, Instance{Revision: "old", Health: Ready})
	all := slices.Concat(victims, some(50, Instance{Revision: "new", Health: Ready}))
	for step := range 4 {
		admitted := g.Survey(all)
		if len(admitted) != 1 {
			t.Fatalf("step %d: admitted %q, although nothing has moved successfully", step, admitted)
		}
		g.Moved(admitted[0], "new")
		all = slices.DeleteFunc(all, func(i Instance) bool { return i.Key == admitted[0] })
	}
}

// A new instance without a revision is reconciled with the newest one, and an existing one with the base.
func TestGate_InstancesWithoutRevision(t *testing.T) {
	revision := newest
	revision.Base, revision.Older = "old", []string{"old"}
	g := New(revision)
	if got := g.RevisionOf("shop/a", "", created); got != "old" || g.IsOpen("shop/a", "", created) {
		t.Errorf("existing instance: got revision %q", got)
	}
	for _, at := range []time.Time{accepted, accepted.Add(time.Second)} {
		if !g.IsOpen("shop/a", "", at) {
			t.Errorf("an instance that was created at %s is not new", at)
		}
	}
	revision.Base, revision.Older = "new", nil
	if !New(revision).IsOpen("shop/a", "", created) {
		t.Error("all instances have moved, but one has not")
	}
}

// The number of admitted instances is recorded rarely, but always before a later process would stop the rollout.
func TestGate_RecordsAdmittedInstances(t *testing.T) {
	instances := some(3000, Instance{Revision: "old", Health: Ready})
	g, records, stored := New(newest), 0, 0
	for step := 0; ; step++ {
		admitted := g.Survey(instances)
		if n, record := g.Admitted(); record {
			records, stored = records+1, n
			g.SetRecorded(stored)
		}
		p, _ := g.Progress()
		if p.Stopped {
			t.Fatalf("the rollout has stopped: %+v", p)
		}
		if next := resumed(stored); len(next.Survey(instances)) == 0 && next.progress.Stopped {
			t.Fatalf("a later process stops the rollout: %+v", next.progress)
		}
		if p.Complete() {
			break
		}
		for n, i := range instances {
			if k := slices.Index(admitted, i.Key); k >= 0 {
				g.Moved(i.Key, "new")
				instances[n].Revision = "new"
				if step > 5 && k%20 == 0 {
					instances[n].Health, instances[n].Regressed = Failing, true
				}
			}
		}
	}
	if records > 20 {
		t.Errorf("the number was recorded %d times", records)
	}
}

// The recorded number would not be high enough for a later process to tolerate two failing instances.
func TestGate_RecordsAdmittedInstancesForFailures(t *testing.T) {
	instances := slices.Concat(some(16, Instance{Revision: "new", Health: Ready}),
		some(20, Instance{Revision: "old", Health: Ready}))
	const stored = 21
	g := resumed(stored)
	admitted := g.Survey(instances)
	if n, record := g.Admitted(); len(admitted) != 16 || n != stored+16 || record {
		t.Fatalf("%d are admitted, %d in total", len(admitted), n)
	}
	for k, key := range admitted {
		g.move(instances, key)
		if k < 2 {
			i := slices.IndexFunc(instances, func(i Instance) bool { return i.Key == key })
			instances[i].Health, instances[i].Regressed = Failing, true
		}
	}
	g.Survey(instances)
	if resumed(stored).Survey(instances) != nil {
		t.Error("the recorded number suffices")
	}
	n, record := g.Admitted()
	if p, _ := g.Progress(); p.Stopped || !record || n != stored+20 {
		t.Errorf("record %d: %t, %+v", n, record, p)
	}
	if len(resumed(n).Survey(instances)) != 4 {
		t.Error("a later process stops the rollout")
	}
}

// The cache does not contain the status of an instance that has just moved. Its earlier health is no evidence.
func TestSurvey_StatusFromBeforeTheMove(t *testing.T) {
	for _, health := range []Health{Ready, Failing} {
		instances := some(12, Instance{Revision: "old", Health: health})
		g := New(newest)
		first := g.Survey(instances)[0]
		g.Moved(first, "new")
		for range 2 {
			if more := g.Survey(instances); len(more) > 0 {
				t.Errorf("admitted before the result of the first instance is known: %q", more)
			}
		}
		g.move(instances, first)
		more := g.Survey(instances)
		if len(more) != 1 {
			t.Fatalf("admitted: %q", more)
		}
		g.Moved(more[0], "new")
		if more := g.Survey(instances); len(more) > 0 {
			t.Errorf("admitted before the result of the second instance is known: %q", more)
		}
	}
}
