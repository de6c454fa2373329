package fairqueue

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func addMany(q *testQueue, group string, n int) {
	for _, item := range numbered(group, n) {
		q.Add(item)
	}
}

// numbered returns n items of the group.
func numbered(group string, n int) (items []string) {
	for i := range n {
		items = append(items, fmt.Sprintf("%s/%d", group, i))
	}
	return items
}

// idleWithHungGroups returns how many of the given number of workers remain idle if the handlers of all groups never
// return. If together is set, the groups become busy at the same time. Otherwise, they become busy one after another.
func idleWithHungGroups(t *testing.T, groups, number int, together bool) (idle int) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		w := newWorkers(t, q)
		if !together {
			w.start(number)
		}
		for g := range groups {
			open(q, fmt.Sprint(g))
			addMany(q, fmt.Sprint(g), number)
			synctest.Wait()
		}
		if together {
			w.start(number)
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		idle = q.idle
	})
	return idle
}

func TestF2_TableOfHungGroupsInDocIsCorrect(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, groups := range []int{1, 2, 3, 4, 5, 8} {
		line := fmt.Sprintf("//\t%-11d", groups)
		for _, number := range []int{2, 4, 8, 10, 16} {
			low, high := idleWithHungGroups(t, groups, number, false), idleWithHungGroups(t, groups, number, true)
			cell := fmt.Sprint(low)
			if high > low {
				cell = fmt.Sprintf("%d-%d", low, high)
			}
			line += fmt.Sprintf("%5s", cell)
		}
		if !strings.Contains(string(doc), line+"\n") {
			t.Errorf("doc.go lacks the line\n%s", line)
		}
	}
}

func TestF2_ThreeHungGroupsLeaveAWorkerForAFourth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		open(q, "hung1", "hung2", "hung3", "healthy")
		w := newWorkers(t, q).start(10)
		for _, group := range []string{"hung1", "hung2", "hung3"} {
			addMany(q, group, 100)
			synctest.Wait()
		}
		for i := range 100 {
			item := fmt.Sprintf("healthy/%d", i)
			q.Add(item)
			w.finish(t, item)
		}
	})
}

func TestF2_FastGroupGetsAllWorkersButOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		open(q, "busy", "quiet")
		w := newWorkers(t, q).start(10)
		addMany(q, "busy", 1000)
		if running := len(w.items("busy")); running != 5 {
			t.Fatalf("%d items are running before the first one has returned, want 5", running)
		}
		w.finishAny(t, "busy", time.Millisecond)
		for range 100 {
			if running := len(w.items("busy")); running != 9 {
				t.Fatalf("%d items of the fast group are running, want 9", running)
			}
			w.finishAny(t, "busy", time.Millisecond)
		}
		q.Add("quiet/1")
		if len(w.items("quiet")) != 1 {
			t.Fatal("the quiet group was not served immediately")
		}
	})
}

func TestF2_SlowRunReducesTheShareUntilItReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		open(q, "a")
		w := newWorkers(t, q).start(10)
		q.Add("a/slow")
		w.finish(t, "a/slow")
		q.Add("a/slow")
		synctest.Wait()
		addMany(q, "a", 1000)
		fast := func() (items []string) {
			for _, item := range w.items("a") {
				if item != "a/slow" {
					items = append(items, item)
				}
			}
			return items
		}
		time.Sleep(slowRun)
		for _, item := range fast() {
			w.finish(t, item)
		}
		if running := len(w.items("a")); running != 9 {
			t.Fatalf("%d items are running after 1 s, want 9", running)
		}
		time.Sleep(1 * time.Nanosecond)
		for _, item := range fast() {
			w.finish(t, item)
		}
		if running := len(w.items("a")); running != 5 {
			t.Fatalf("%d items are running while the oldest is slow, want 5", running)
		}
		w.finish(t, "a/slow")
		if running := len(w.items("a")); running != 9 {
			t.Fatalf("%d items are running after the slow one has returned, want 9", running)
		}
	})
}

func TestF2_ReopenedGroupStartsWithTheSmallShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		open(q, "a")
		w := newWorkers(t, q).start(10)
		q.Add("a/old")
		q.Add("a/older")
		w.finish(t, "a/older")
		open(q, "a")
		addMany(q, "a", 100)
		w.finish(t, "a/old") // it was handed out for the earlier opening
		if running := len(w.items("a")); running != 5 {
			t.Fatalf("%d items are running, want 5", running)
		}
	})
}

func TestF2_SingleWorkerServesAllGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		open(q, "a", "b")
		addMany(q, "a", 2)
		addMany(q, "b", 2)
		w := newWorkers(t, q).start(1)
		for _, item := range []string{"a/0", "b/0", "a/1", "b/1"} {
			w.finish(t, item)
		}
	})
}

func TestLimits_ConcurrencyDoesNotBlockOtherGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		limited := q.Open("a", "a", testOptions{Concurrency: 1})
		open(q, "b")
		w := newWorkers(t, q).start(10)
		addMany(q, "a", 10)
		addMany(q, "b", 1)
		if a, b := len(w.items("a")), len(w.items("b")); a != 1 || b != 1 {
			t.Fatalf("%d and %d items are running, want 1 and 1", a, b)
		}
		limited.Configure(testOptions{Concurrency: 3})
		if a := len(w.items("a")); a != 3 {
			t.Fatalf("%d items are running after the limit was raised, want 3", a)
		}
		limited.Pause()
		w.finishAny(t, "a", 0)
		if a := len(w.items("a")); a != 2 {
			t.Fatalf("%d items are running while the group is paused, want 2", a)
		}
		limited.Resume()
		if a := len(w.items("a")); a != 3 {
			t.Fatalf("%d items are running after the pause, want 3", a)
		}
	})
}

func TestF1_SingleItemWaitsForAtMostOneRound(t *testing.T) {
	q := newTestQueue()
	groups := open(q, "busy", "other", "quiet")
	groups["other"].Configure(testOptions{Weight: 3})
	addMany(q, "busy", 1000)
	addMany(q, "other", 1000)
	process(t, q)
	q.Add("quiet/1")
	for waited := 0; process(t, q) != "quiet/1"; waited++ {
		if waited == 4 {
			t.Fatal("the item waited for more than one turn of each other group")
		}
	}
}

// TestF1_BlockedGroupKeepsItsTurn blocks a group in the middle of its turn.
func TestF1_BlockedGroupKeepsItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		groups := open(q, "a", "b")
		groups["a"].Configure(testOptions{Weight: 2})
		groups["b"].Configure(testOptions{Weight: 2})
		addMany(q, "a", 4)
		addMany(q, "b", 4)
		w := newWorkers(t, q).start(2)
		// Each group has one running item, and can take one more item in its turn.
		for _, item := range []string{"b/0", "a/0", "b/1", "a/1"} {
			w.finish(t, item)
		}
		if a, b := w.items("a"), w.items("b"); len(a) != 1 || a[0] != "a/2" || len(b) != 1 || b[0] != "b/2" {
			t.Fatalf("%v and %v are running", a, b)
		}
	})
}

func TestNext_PrefersTheLiveLaneWithoutStarvation(t *testing.T) {
	q := newTestQueue()
	a := open(q, "a")["a"]
	a.Add(Background, "a/background")
	addMany(q, "a", 100)
	for turn := 1; ; turn++ {
		item := process(t, q)
		if item == "a/background" {
			if turn == 1 {
				t.Fatal("the first item came from the background lane")
			}
			return
		}
		if turn == backgroundShare {
			t.Fatalf("none of the first %d items came from the background lane", turn)
		}
	}
}

func TestAdd_MovesABackgroundItemToTheLiveLane(t *testing.T) {
	q := newTestQueue()
	a := open(q, "a")["a"]
	a.Add(Background, "a/1", "a/2", "a/3")
	q.Add("a/2")
	if got := process(t, q); got != "a/2" {
		t.Fatalf("got %s", got)
	}
	a.Add(Background, "a/2")
	for _, want := range []string{"a/1", "a/3", "a/2"} {
		if got := process(t, q); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
	requireStats(t, a, Stats{})
}

func TestAdd_KeepsARunningItemOutOfTheBackgroundLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		a := q.Open("a", "a", testOptions{Concurrency: 1})
		a.Add(Background, "a/1", "a/2", "a/3")
		q.Add("a/2")
		w := newWorkers(t, q).start(6)
		a.Add(Background, "a/2") // a/2 is running; its stale entry is still between a/1 and a/3
		a.Configure(testOptions{Concurrency: 2})
		for _, item := range []string{"a/1", "a/3"} {
			if running := w.items("a"); len(running) != 2 || !slices.Contains(running, item) {
				t.Fatalf("%v are running, want a/2 and %s", running, item)
			}
			w.finish(t, item)
		}
		w.finish(t, "a/2")
		w.finish(t, "a/2")
		requireStats(t, a, Stats{})
	})
}

// The waiting time counts from when the item was added to its current lane.
func TestNext_ReturnsTheTimeInTheLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		a := open(q, "a")["a"]
		a.Add(Background, "a/1", "a/2")
		time.Sleep(time.Second)
		a.Add(Background, "a/2", "a/3")
		q.Add("a/1")
		time.Sleep(time.Minute)
		if got := a.Stats().Oldest; got != time.Minute+time.Second {
			t.Errorf("the oldest item has waited for %s, want 1m1s", got)
		}
		for _, want := range []time.Duration{time.Minute, time.Minute + time.Second, time.Minute} {
			item, _, wait, _ := q.Next(nil)
			if wait.For != want {
				t.Errorf("%s waited for %s, want %s", item, wait.For, want)
			}
			q.Done(item)
		}
	})
}
