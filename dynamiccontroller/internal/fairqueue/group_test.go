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

// countingLimiter counts the calls of its methods, and returns the same delay for all items.
type countingLimiter struct {
	delay                  time.Duration
	when, forgets, numbers int
	queue                  *testQueue // if set, the limiter calls its methods
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

func TestDelays(t *testing.T) {
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
		q.Add("b/2") // ends the delay
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

func TestInitialListDoesNotPostponeRetry(t *testing.T) {
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
		q.Cancel()
	})
}

func TestDelayEndsWhenItemIsHandedOutOfBackgroundLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		a := open(q, "a")["a"]
		a.Add(Background, "a/1")
		a.AddAfter("a/1", time.Second)
		if got := a.Stats(); got.Background != 1 || got.Delayed != 1 {
			t.Fatalf("%+v, want an item that is delayed and in the background lane", got)
		}
		process(t, q)
		if got := a.Stats(); got != (Stats{}) {
			t.Fatalf("%+v", got)
		}
		a.AddAfter("a/1", time.Second)
		a.Add(Background, "a/1")
		a.Add(Live, "a/1")
		if got := a.Stats(); got.Live != 1 || got.Delayed != 0 {
			t.Fatalf("%+v, want an item in the live lane without a delay", got)
		}
	})
}

func TestCloseDropsAllItemsExceptRunningOnes(t *testing.T) {
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

		again := q.Open("a", "again", Limits{}, nil)
		again.Add(Live, "a/running")
		if q.Len() != 0 {
			t.Fatal("an item that is running for an earlier opening is waiting")
		}
		q.Done("a/running")
		if item, value, _ := q.Next(); item != "a/running" || value != "again" {
			t.Fatalf("got %s of %s", item, value)
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

func TestEndedOpeningDoesNotAffectTheNext(t *testing.T) {
	for name, reopen := range map[string]bool{"closed": false, "opened again": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newTestQueue()
				early, late := &countingLimiter{}, &countingLimiter{}
				old := q.Open("a", "old", Limits{}, early)
				q.Add("a/1")
				next(t, q)
				if !reopen {
					old.Close()
				}
				current := q.Open("a", "current", Limits{}, late)
				for _, handle := range []interface {
					AddAfter(string, time.Duration)
					AddRateLimited(string)
					Forget(string)
					NumRequeues(string) int
				}{old, q} {
					handle.AddAfter("a/1", 0)
					handle.AddAfter("a/1", time.Second)
					handle.AddRateLimited("a/1")
					handle.Forget("a/1")
					if n := handle.NumRequeues("a/1"); n != 0 {
						t.Fatalf("%d requeues", n)
					}
				}
				old.Add(Live, "a/1", "a/2")
				old.Pause()
				old.Configure(Limits{}, early)
				old.Close()
				if got := old.Stats(); got != (Stats{}) {
					t.Fatalf("%+v", got)
				}
				if got := current.Stats(); got != (Stats{Running: 1}) {
					t.Fatalf("%+v, want the running item only", got)
				}
				for _, limiter := range []*countingLimiter{early, late} {
					if !slices.Equal(limiter.calls(), []int{0, 0, 0}) {
						t.Fatalf("calls of a rate limiter: %v", limiter.calls())
					}
				}

				current.AddAfter("a/1", time.Second) // the new opening needs the item
				q.Done("a/1")
				time.Sleep(time.Second)
				synctest.Wait()
				if item, value, _ := q.Next(); item != "a/1" || value != "current" {
					t.Fatalf("got %s of %s", item, value)
				}
			})
		})
	}
}

func TestRateLimiterOfOpeningIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		a, b := &countingLimiter{delay: time.Second, queue: q}, &countingLimiter{delay: time.Minute, queue: q}
		group := q.Open("a", "a", Limits{}, a)
		q.Open("b", "b", Limits{}, b)
		q.AddRateLimited("a/1")
		group.AddRateLimited("a/2")
		q.AddRateLimited("b/1")
		q.Forget("a/1")
		group.Forget("a/1")
		if q.NumRequeues("a/1") != 2 || group.NumRequeues("a/1") != 2 {
			t.Fatal("wrong number of requeues")
		}
		if !slices.Equal(a.calls(), []int{2, 2, 2}) || !slices.Equal(b.calls(), []int{1, 0, 0}) {
			t.Fatalf("calls of the rate limiters: %v, %v", a.calls(), b.calls())
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
		group.Configure(Limits{}, other)
		group.AddRateLimited("a/1")
		if other.when != 1 || a.when != 2 || q.Len() != 1 {
			t.Fatalf("%d items are waiting after the rate limiter was replaced, want 1", q.Len())
		}
		if n := q.NumRequeues("unknown/1"); n != 0 {
			t.Fatalf("%d requeues in an unknown group", n)
		}
	})
}
