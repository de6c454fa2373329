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

// some returns n instances with the given state. They were created before the newest revision was accepted.
func some(n int, state Instance) (all []Instance) {
	state.Created = accepted.Add(-time.Hour)
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
	created := func(n int, state Instance) []Instance {
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
			slices.Concat(created(50, updated), some(50, old)), 1, 50, false, false,
		},
		"new instances fail": {
			slices.Concat(created(50, failing), some(50, old)), 1, 50, false, false,
		},
		"new instances ready, moved instance fails": {
			slices.Concat(created(50, updated), some(1, failing), some(49, old)), 0, 51, false, true,
		},
		"only the schema changed": {some(100, Instance{Revision: "same", Health: Ready}), 0, 100, true, false},
		"as healthy as before": {
			slices.Concat(some(4, Instance{Revision: "new", Health: Waiting}), some(96, old)), 4, 4, false, false,
		},
		"without a revision": {some(100, Instance{}), 0, 100, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := New(newest)
			admitted := g.Survey(test.instances)
			p, known := g.Progress()
			if len(admitted) != test.admitted || p.Updated != test.updated || p.Complete() != test.complete ||
				p.Stopped != test.stopped || !known {
				t.Errorf("got %d admitted instances and progress %+v", len(admitted), p)
			}
			for _, i := range test.instances {
				want := i.Revision != "old" || slices.Contains(admitted, i.Key)
				if got := g.IsOpen(i.Key, i.Revision); got != want {
					t.Errorf("instance %s: got open %t", i.Key, got)
				}
			}
			// Another process makes the same decision. The same process does not admit instances again.
			if again := New(newest).Survey(test.instances); !slices.Equal(again, admitted) {
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
	g := New(newest)
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
		more := g.Survey(slices.Concat(updated, []Instance{moved}, others))
		for _, key := range admitted[1:] {
			if !g.IsOpen(key, "old") {
				t.Errorf("%s is no longer admitted", key)
			}
		}
		if len(more) > 0 {
			t.Errorf("also admitted: %q", more)
		}
	}
	g.Survey(slices.Concat(updated, some(1, Instance{Revision: "older"})))
	if g.IsOpen(admitted[1], "old") {
		t.Error("a deleted instance is still admitted")
	}
}

func TestSurvey_ProgressDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		instances := some(2, Instance{Revision: "old", Health: Ready})
		instances[0].Revision, instances[0].Health, instances[0].Regressed = "new", Waiting, true
		instances[0].Changed = time.Now()
		g := New(newest)
		expect := func(stalled bool, recheck time.Duration) {
			t.Helper()
			g.Survey(instances)
			p, _ := g.Progress()
			if p.Stalled != stalled || p.Stopped || !stalled && time.Until(p.Recheck) != recheck ||
				stalled && !p.Recheck.IsZero() {
				t.Errorf("got progress %+v with the next check in %s", p, time.Until(p.Recheck))
			}
			if g = New(newest); !slices.Equal(g.Survey(instances), nil) {
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

// move gives the named instance the newest revision.
func move(instances []Instance, key string) {
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
			move(instances, expect(1, first)[0])
			expect(0) // another minute starts
			time.Sleep(time.Minute)
			third := expect(1, first)[0]
			time.Sleep(time.Minute)
			expect(0, first, third)
			g.RestartTimer()
			expect(0)
			time.Sleep(time.Minute)
			expect(0, first, third)
			move(instances, first)
			move(instances, third)
			move(instances, expect(1)[0])
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
			if p, _ := g.Progress(); len(p.Stuck) > 0 || !g.IsOpen(instances[0].Key, "old") {
				t.Errorf("paused %t: %+v", paused, p)
			}
			time.Sleep(50 * time.Second)
		}
	})
}

func TestGate_BeforeTheFirstSurvey(t *testing.T) {
	g := New(newest)
	if g.IsOpen("shop/a", "old") || !g.IsOpen("shop/a", "same") || !g.IsOpen("shop/a", "") {
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
			move(moved, key)
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
			if got := g.RevisionOf(moved, "old"); got != "new" || !g.IsOpen(moved, "old") {
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
	if admitted := g.Survey(paused); len(admitted) != 1 || g.RevisionOf(paused[0].Key, "old") != "old" {
		t.Errorf("admitted: %q", admitted)
	}
	g.Moved(paused[0].Key, "new")
	if !g.IsOpen(paused[0].Key, "old") || g.IsOpen("shop/other", "old") != true {
		t.Error("an instance that has moved must not move back")
	}
}

// rollOut moves instances until nothing changes, and returns the number of surveys. An instance fails if fails returns
// true for its key. If restarts is true, the process is replaced after each survey.
func rollOut(instances []Instance, restarts bool, fails func(key string) bool) (g *Gate, surveys int) {
	g = New(newest)
	for {
		surveys++
		admitted := g.Survey(instances)
		if len(admitted) == 0 {
			return g, surveys
		}
		for n, i := range instances {
			if slices.Contains(admitted, i.Key) {
				instances[n].Revision = "new"
				if fails(i.Key) {
					instances[n].Health, instances[n].Regressed = Failing, i.Health != Failing
				}
			}
		}
		if restarts {
			g = New(newest)
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
