package fairqueue

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// countingLimiter counts the calls to its methods, and returns the same delay for all items.
type countingLimiter struct {
	delay                  time.Duration
	when, forgets, numbers int
	queue                  *testQueue // if set, the limiter calls the queue's methods
	workqueue.TypedRateLimiter[string]
}

func (l *countingLimiter) When(string) time.Duration {
	l.when++
	if l.queue != nil {
		l.queue.Len()
	}
	return l.delay
}

func (l *countingLimiter) Forget(string) { l.forgets++ }

func (l *countingLimiter) NumRequeues(string) int {
	l.numbers++
	return l.when
}

func (l *countingLimiter) calls() []int { return []int{l.when, l.forgets, l.numbers} }

func TestAddAfter_UsesTheEarliestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		open(q, "a", "b")
		time.Sleep(time.Second)
		q.AddAfter("a/1", 3*time.Second)
		q.AddAfter("a/1", 2*time.Second) // the earliest counts
		q.AddAfter("a/1", 4*time.Second)
		q.AddAfter("b/1", time.Second)
		q.AddAfter("b/2", time.Hour)
		q.AddAfter("b/3", math.MaxInt64)
		q.Add("b/2") // cancels the delay
		if got := process(t, q); got != "b/2" {
			t.Fatalf("got %s", got)
		}
		began := time.Now()
		for _, want := range []string{"b/1", "a/1"} {
			if got, _ := q.Get(); got != want {
				t.Fatalf("got %s, want %s", got, want)
			}
			q.Done(want)
		}
		if waited := time.Since(began); waited != 2*time.Second {
			t.Fatalf("waited for %s", waited)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if q.Len() != 0 {
			t.Fatal("an item whose delay had ended was added again")
		}
		q.ShutDown()
	})
}

func TestAddAfter_IsNotPostponedByTheBackgroundLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		a := open(q, "a")["a"]
		q.Add("a/retry")
		next(t, q)
		q.AddAfter("a/retry", time.Second)
		keys := make([]string, 50_000, 50_001)
		for i := range keys {
			keys[i] = fmt.Sprintf("a/%d", i)
		}
		a.Add(Background, append(keys, "a/retry")...)
		q.Done("a/retry")
		began := time.Now()
		for process(t, q) != "a/retry" {
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		if waited := time.Since(began); waited < time.Second || waited > 1010*time.Millisecond {
			t.Fatalf("the retry ran after %s, want 1s", waited)
		}
		stopAll(q)
	})
}

func TestNext_CancelsTheDelayOfABackgroundItem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		a := open(q, "a")["a"]
		a.Add(Background, "a/1")
		a.AddAfter("a/1", time.Second)
		if got := a.Stats(); got.Background != 1 || got.Delayed != 1 {
			t.Fatalf("got %+v, want an item that is delayed and in the background lane", got)
		}
		process(t, q)
		if got := a.Stats(); got != (Stats{}) {
			t.Fatalf("got %+v, want no items", got)
		}
		a.AddAfter("a/1", time.Second)
		a.Add(Background, "a/1")
		a.Add(Live, "a/1")
		if got := a.Stats(); got.Live != 1 || got.Delayed != 0 {
			t.Fatalf("got %+v, want an item in the live lane without a delay", got)
		}
	})
}

func TestClose_DropsAllItemsExceptRunningOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		a := open(q, "a")["a"]
		q.Add("a/running")
		next(t, q)
		q.Add("a/running")
		q.Add("a/waiting")
		for i := range 100_000 {
			q.AddAfter(fmt.Sprintf("a/%d", i), 10*time.Hour)
		}
		a.Close()
		if q.Len() != 0 || len(q.delays) != 0 || len(q.groups["a"].items) != 1 {
			t.Fatalf("%d items are waiting, %d groups are delayed", q.Len(), len(q.delays))
		}
		q.Add("a/late")
		a.Add(Live, "a/late")
		q.AddAfter("a/late", time.Second)
		if q.Len() != 0 || len(q.groups["a"].items) != 1 {
			t.Fatal("a closed group accepted an item")
		}

		again := q.Open("a", "again", testOptions{})
		again.Add(Live, "a/running")
		if q.Len() != 0 {
			t.Fatal("an item is waiting although it is still running for an earlier opening")
		}
		q.Done("a/running")
		if item, value, _, _ := q.Next(nil); item != "a/running" || value != "again" {
			t.Fatalf("got item %s with value %s", item, value)
		}
		again.Close()
		if len(q.groups) != 1 {
			t.Fatal("a closed group with a running item was removed")
		}
		q.Done("a/running")
		open(q, "b")["b"].Close()
		if len(q.groups) != 0 {
			t.Fatal("a closed group without running items was not removed")
		}
		q.ShutDown()
	})
}

func requireStats(t *testing.T, g testGroup, want Stats) {
	t.Helper()
	if got := g.Stats(); got != want {
		t.Fatalf("got %+v, want %+v", got, want)
	}
}

func TestGroup_InvalidHandleHasNoEffect(t *testing.T) {
	for name, closes := range map[string]bool{"closed": true, "opened again": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newTestQueue()
				early, late := &countingLimiter{}, &countingLimiter{}
				old := q.Open("a", "old", testOptions{Limiter: early})
				q.Add("a/1")
				next(t, q)
				if closes {
					old.Close()
				}
				current := q.Open("a", "current", testOptions{Limiter: late})
				q.AddAfter("a/1", 0)
				q.AddAfter("a/1", time.Second)
				q.AddRateLimited("a/1")
				q.Forget("a/1")
				if n := q.NumRequeues("a/1"); n != 0 {
					t.Fatalf("an invalid handle returned %d requeues, want 0", n)
				}
				if old.AddAfter("a/1", 0) || old.AddAfter("a/1", time.Second) {
					t.Fatal("an invalid handle accepted an item")
				}
				old.AddRateLimited("a/1")
				old.Forget("a/1")
				old.Add(Live, "a/1", "a/2")
				old.Pause()
				old.Configure(testOptions{Limiter: early})
				old.Close()
				requireStats(t, old, Stats{})
				requireStats(t, current, Stats{Running: 1})
				if calls := slices.Concat(early.calls(), late.calls()); slices.Max(calls) > 0 {
					t.Fatalf("calls to the rate limiters: %v", calls)
				}

				current.AddAfter("a/1", time.Second)
				q.Done("a/1")
				time.Sleep(time.Second)
				synctest.Wait()
				if item, value, _, _ := q.Next(nil); item != "a/1" || value != "current" {
					t.Fatalf("got item %s with value %s", item, value)
				}
			})
		})
	}
}

func TestGroup_UsesTheRateLimiterOfItsHandle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		a, b := &countingLimiter{delay: time.Second, queue: q}, &countingLimiter{delay: time.Minute, queue: q}
		group := q.Open("a", "a", testOptions{Limiter: a})
		q.Open("b", "b", testOptions{Limiter: b})
		q.AddRateLimited("a/1")
		group.AddRateLimited("a/2")
		q.AddRateLimited("b/1")
		q.Forget("a/1")
		group.Forget("a/1")
		if n := q.NumRequeues("a/1"); n != 2 {
			t.Fatalf("got %d requeues, want 2", n)
		}
		if !slices.Equal(a.calls(), []int{2, 2, 1}) || !slices.Equal(b.calls(), []int{1, 0, 0}) {
			t.Fatalf("calls to the rate limiters: %v, %v", a.calls(), b.calls())
		}
		began := time.Now()
		for _, want := range []time.Duration{time.Second, time.Second, time.Minute} {
			item, _ := q.Get()
			q.Done(item)
			if waited := time.Since(began); waited != want {
				t.Fatalf("%s waited for %s, want %s", item, waited, want)
			}
		}
		other := &countingLimiter{}
		group.Configure(testOptions{Limiter: other})
		group.AddRateLimited("a/1")
		if other.when != 1 || a.when != 2 || q.Len() != 1 {
			t.Fatalf("%d items are waiting after the rate limiter was replaced, want 1", q.Len())
		}
		if n := q.NumRequeues("unknown/1"); n != 0 {
			t.Fatalf("got %d requeues in an unknown group, want 0", n)
		}
	})
}

// The value tells a worker whether the item was handed out before the group was stopped.
func TestStart_SetsTheValueOfItemsThatAreHandedOutFromThenOn(t *testing.T) {
	q := newTestQueue()
	group := q.Open("a", "opened", testOptions{})
	group.Add(Live, "a/1")
	if item, value, _, _ := q.Next(nil); item != "a/1" || value != "opened" {
		t.Errorf("got item %s with value %s", item, value)
	}
	group.Stop()
	group.Start("started again")
	group.Add(Live, "a/2")
	if item, value, _, _ := q.Next(nil); item != "a/2" || value != "started again" {
		t.Errorf("got item %s with value %s", item, value)
	}
}
