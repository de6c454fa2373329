package fairqueue

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestAdd_DeduplicatesWaitingAndRunningItems(t *testing.T) {
	q := newTestQueue()
	open(q, "a")
	q.Add("a/1")
	q.Add("a/1")
	if got := next(t, q); got != "a/1" || q.Len() != 0 {
		t.Fatalf("got %s, and %d items are waiting", got, q.Len())
	}
	q.Add("a/1")
	if q.Len() != 0 {
		t.Fatal("an item is waiting although it is running")
	}
	q.Done("a/1")
	if got := next(t, q); got != "a/1" {
		t.Fatalf("got %s", got)
	}
}

func TestShutDown_ReturnsWaitingItemsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		open(q, "a")
		q.Add("a/1")
		q.AddAfter("a/2", time.Second)
		q.ShutDown()
		q.Add("a/3")
		if got, shutdown := q.Get(); got != "a/1" || shutdown {
			t.Fatalf("got %s, %v; want the waiting item", got, shutdown)
		}
		drained := make(chan struct{})
		go func() {
			q.ShutDownWithDrain()
			close(drained)
		}()
		synctest.Wait()
		select {
		case <-drained:
			t.Fatal("ShutDownWithDrain returned while an item was running")
		default:
		}
		q.Done("a/1")
		<-drained
		if _, shutdown := q.Get(); !shutdown || !q.ShuttingDown() {
			t.Fatal("not shut down")
		}
		q.AddAfter("a/3", time.Second/2)
		q.Restart()
		q.AddAfter("a/4", time.Second)
		if got, _ := q.Get(); got != "a/4" {
			t.Fatalf("got %s", got)
		}
	})
}

// If ShutDown dropped the item together with its delay, the lane would still contain the item's struct, and the queue
// would hand out that struct after it had been reused.
func TestShutDown_KeepsWaitingItemsWithADelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		a := open(q, "a")["a"]
		q.AddAfter("a/1", time.Hour)
		a.Add(Background, "a/1")
		q.ShutDown()
		if got := process(t, q); got != "a/1" || q.Len() != 0 || len(q.groups["a"].items) != 0 {
			t.Fatalf("got %s, and %d items are waiting", got, q.Len())
		}
	})
}

func TestShutDown_KeepsRunningItemsWithADelay(t *testing.T) {
	q := newTestQueue()
	a := open(q, "a")["a"]
	q.Add("a/1")
	next(t, q)
	q.AddAfter("a/1", time.Hour)
	q.ShutDown()
	q.Restart()
	q.Add("a/1")
	if got := a.Stats(); got != (Stats{Running: 1}) {
		t.Fatalf("got %+v, want only a running item", got)
	}
}

func TestShutDown_EndsIdleWorkersWhileTheLastItemIsRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		q.Open("a", "a", testOptions{Concurrency: 1})
		w := newWorkers(t, q).start(4)
		q.Add("a/1")
		q.Add("a/2")
		q.ShutDown()
		w.finish(t, "a/1")
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.running != 1 || q.idle != 0 {
			t.Fatalf("%d items are running and %d workers are idle, want 1 and 0", q.running, q.idle)
		}
	})
}

func TestShutDown_EndsWorkersOfClosedGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		a := open(q, "a")["a"]
		a.Pause()
		q.Add("a/1")
		done := make(chan struct{})
		go func() {
			defer close(done)
			q.ShutDownWithDrain()
			if _, shutdown := q.Get(); !shutdown {
				t.Error("not shut down")
			}
		}()
		synctest.Wait()
		a.Close()
		<-done
	})
}

// TestNext_LosesNoWakeup processes few items with many workers, so that a lost wakeup blocks the test.
func TestNext_LosesNoWakeup(t *testing.T) {
	const number, groups, items, rounds = 8, 4, 5, 2000
	q := newTestQueue()
	for g := range groups {
		q.Open(fmt.Sprint(g), "", testOptions{Concurrency: g})
	}
	var processed, running sync.Map // sets of items
	var wg sync.WaitGroup
	for range number {
		wg.Go(func() {
			for item, shutdown := q.Get(); !shutdown; item, shutdown = q.Get() {
				if _, twice := running.LoadOrStore(item, true); twice {
					t.Errorf("%s is running twice", item)
				}
				processed.Store(item, true)
				if len(item)%2 == 0 {
					runtime.Gosched()
				}
				running.Delete(item)
				q.Done(item)
			}
		})
	}
	var names, last []string
	for i := range groups * items {
		names = append(names, fmt.Sprintf("%d/%d", i%groups, i))
		last = append(last, fmt.Sprintf("%d/last%d", i%groups, i))
	}
	for round := range rounds {
		for _, item := range names {
			if round%3 == 0 {
				q.AddAfter(item, time.Microsecond)
			} else {
				q.Add(item)
			}
		}
	}
	for _, item := range last {
		q.Add(item)
	}
	q.ShutDownWithDrain()
	wg.Wait()
	for _, item := range last {
		if _, done := processed.Load(item); !done {
			t.Errorf("%s was lost", item)
		}
	}
}

func TestGroup_ReleasesMemoryWhenEmpty(t *testing.T) {
	for name, lane := range map[string]Lane{"live lane": Live, "background lane": Background} {
		t.Run(name, func(t *testing.T) {
			const items, limit = 100_000, 50_000 // the limit is in bytes
			q, names := newTestQueue(), numbered("a", items)
			a := open(q, "a")["a"]
			before := heapSize()
			for batch := range slices.Chunk(names, 256) {
				a.Add(lane, batch...)
			}
			for range items {
				process(t, q)
			}
			if kept := heapSize() - before; kept > limit {
				t.Errorf("the empty group kept %d bytes, want at most %d", kept, limit)
			}
			runtime.KeepAlive(q)
			runtime.KeepAlive(names)
		})
	}
}

// The initial list of a type adds all its objects to the background lane.
func TestAdd_NeedsLittleMemoryForBackgroundItems(t *testing.T) {
	const items, limit = 100_000, 80 // the limit is in bytes per item, excluding its name
	q, names := newTestQueue(), numbered("a", items)
	a := open(q, "a")["a"]
	before := heapSize()
	for batch := range slices.Chunk(names, 256) {
		a.Add(Background, batch...)
	}
	if used := (heapSize() - before) / items; used > limit {
		t.Errorf("each item takes %d bytes, want at most %d", used, limit)
	}
	runtime.KeepAlive(q)
	runtime.KeepAlive(names)
}

// heapSize returns the size of all live objects.
func heapSize() int64 {
	runtime.GC()
	runtime.GC() // empties sync.Pools
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// TestGroup_KeepsItsItemsWhenLarge finishes some items of a group that is so large that its index would be dropped if
// the group became empty.
func TestGroup_KeepsItsItemsWhenLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		q.Open("a", "a", testOptions{Concurrency: 2})
		w := newWorkers(t, q).start(4)
		addMany(q, "a", 2000)
		w.finish(t, "a/0")
		w.finish(t, "a/1")
		addMany(q, "a", 2000) // a/0 and a/1 are waiting again; a/2 and a/3 are running
		if q.Len() != 1998 {
			t.Fatalf("%d items are waiting, want 1998", q.Len())
		}
		w.finish(t, "a/2")
		w.finish(t, "a/3")
		if q.Len() != 1998 {
			t.Fatalf("%d items are waiting, want 1998", q.Len())
		}
	})
}

// The queue serves other workers at once, so that those that are over cannot see that it was shut down.
func TestNext_ReturnsAfterAShutdownThatIsFollowedByARestart(t *testing.T) {
	for name, waiting := range map[string]bool{"no item is waiting": false, "an item of a paused group is waiting": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newTestQueue()
				group := q.Open("a", "a", testOptions{})
				if waiting {
					group.Pause()
					group.Add(Live, "a/1")
				}
				var over atomic.Bool
				var ended sync.WaitGroup
				for range 4 {
					ended.Go(func() {
						if item, _, _, shutdown := q.Next(&over); !shutdown {
							t.Errorf("a worker that is over received the item %s", item)
						}
					})
				}
				synctest.Wait()
				over.Store(true)
				q.ShutDown()
				q.Restart()
				ended.Wait()
				group.Resume()
				group.Add(Live, "a/1")
				if item := process(t, q); item != "a/1" {
					t.Errorf("got item %s", item)
				}
			})
		})
	}
}
