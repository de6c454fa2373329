package fairqueue

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"
)

func next(t *testing.T, q *testQueue) string {
	t.Helper()
	if q.Len() == 0 {
		t.Fatal("nothing waits")
	}
	item, shutdown := q.Get()
	if shutdown {
		t.Fatal("the queue has shut down")
	}
	return item
}

func TestAnItemWaitsOnceAndIsNeverHandedOutTwiceAtOnce(t *testing.T) {
	q := newTestQueue()
	open(q, "a")
	q.Add("a/1")
	q.Add("a/1")
	if got := next(t, q); got != "a/1" || q.Len() != 0 {
		t.Fatalf("got %s and %d waiting", got, q.Len())
	}
	q.Add("a/1")
	if q.Len() != 0 {
		t.Fatal("an item that is being processed waits")
	}
	q.Done("a/1")
	if got := next(t, q); got != "a/1" {
		t.Fatalf("got %s", got)
	}
}

func TestF1_AGroupWithOneItemWaitsAtMostOneRound(t *testing.T) {
	q := newTestQueue()
	groups := open(q, "busy", "other", "quiet")
	groups["other"].SetLimits(Limits{Weight: 3})
	for i := range 1000 {
		q.Add(fmt.Sprintf("busy/%d", i))
		q.Add(fmt.Sprintf("other/%d", i))
	}
	next(t, q)
	q.Add("quiet/1")
	for waited := 0; ; waited++ {
		if next(t, q) == "quiet/1" {
			return
		}
		if waited == 4 {
			t.Fatal("waited for more than a turn of each other group")
		}
	}
}

func TestAGroupAtItsCapBlocksNobodyAndARaisedCapWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		capped := q.Open("a", "a", Limits{Concurrency: 1})
		open(q, "b")
		for i := range 3 {
			q.Add(fmt.Sprintf("a/%d", i))
		}
		q.Add("b/0")
		if first, second := next(t, q), next(t, q); first != "a/0" || second != "b/0" {
			t.Fatalf("got %s, %s", first, second)
		}
		got := make(chan string)
		go func() {
			for {
				item, shutdown := q.Get()
				if shutdown {
					close(got)
					return
				}
				got <- item
			}
		}()
		synctest.Wait()
		select {
		case item := <-got:
			t.Fatalf("%s was handed out above the cap", item)
		default:
		}
		capped.SetLimits(Limits{Concurrency: 3})
		if first, second := <-got, <-got; first != "a/1" || second != "a/2" {
			t.Fatalf("got %s, %s", first, second)
		}
		q.ShutDown()
		<-got
	})
}

func TestTheBackgroundLaneGoesSecondAndNeverStarves(t *testing.T) {
	q := newTestQueue()
	a := open(q, "a")["a"]
	a.Add(Background, "a/slow")
	for i := range 100 {
		a.Add(Live, fmt.Sprintf("a/%d", i))
	}
	for turn := 1; ; turn++ {
		item := next(t, q)
		a.Add(Live, fmt.Sprintf("a/more%d", turn))
		if item == "a/slow" {
			if turn == 1 {
				t.Fatal("the background lane went first")
			}
			return
		}
		if turn == backgroundShare {
			t.Fatalf("the background lane had none of %d turns", backgroundShare)
		}
	}
}

func TestALiveAddMovesAnItemUp(t *testing.T) {
	q := newTestQueue()
	a := open(q, "a")["a"]
	a.Add(Background, "a/1", "a/2")
	q.Add("a/2")
	if got := next(t, q); got != "a/2" {
		t.Fatalf("got %s", got)
	}
}

func TestClosingDropsEverythingButWhatIsProcessed(t *testing.T) {
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
		if q.Len() != 0 || q.delays.len() != 0 || !q.armed.IsZero() || len(q.groups["a"].items) != 1 {
			t.Fatalf("left: %d waiting, %d groups delayed, timer %v", q.Len(), q.delays.len(), q.armed)
		}
		q.Add("a/late")
		a.Add(Live, "a/late")
		q.AddAfter("a/late", time.Second)

		again := q.Open("a", "again", Limits{})
		q.AddAfter("a/running", time.Second) // asked for by the processing that the closed group began
		again.Add(Live, "a/running")
		if q.Len() != 0 {
			t.Fatal("an item that an earlier opening still processes was put in line")
		}
		q.Done("a/running")
		if item, value, _ := q.Next(); item != "a/running" || value != "again" {
			t.Fatalf("got %s of %s", item, value)
		}
		q.Done("a/running")
		again.Close()
		if len(q.groups) != 0 {
			t.Fatal("a closed group that processes nothing is still known")
		}
	})
}

func TestDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		open(q, "a", "b")
		q.AddAfter("a/1", 3*time.Second)
		q.AddAfter("a/1", 2*time.Second) // the earlier counts
		q.AddAfter("a/1", 4*time.Second)
		q.AddAfter("b/1", time.Second)
		q.AddAfter("b/2", time.Hour)
		q.Add("b/2") // brought forward, and not delayed any more
		if got := next(t, q); got != "b/2" {
			t.Fatalf("got %s", got)
		}
		q.Done("b/2")
		began := time.Now()
		for _, want := range []string{"b/1", "a/1"} {
			if got, _ := q.Get(); got != want {
				t.Fatalf("got %s, want %s", got, want)
			}
			q.Done(want)
		}
		if waited := time.Since(began); waited != 2*time.Second {
			t.Fatalf("waited %s", waited)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if q.Len() != 0 {
			t.Fatal("an item that was brought forward came again")
		}
	})
}

func TestShutDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue()
		open(q, "a")
		q.Add("a/1")
		q.AddAfter("a/2", time.Second)
		q.ShutDown()
		q.Add("a/3")
		if got, shutdown := q.Get(); got != "a/1" || shutdown {
			t.Fatalf("got %s, %v: what waits is still handed out", got, shutdown)
		}
		drained := make(chan struct{})
		go func() {
			q.ShutDownWithDrain()
			close(drained)
		}()
		synctest.Wait()
		select {
		case <-drained:
			t.Fatal("drained while an item is processed")
		default:
		}
		q.Done("a/1")
		<-drained
		if _, shutdown := q.Get(); !shutdown || !q.ShuttingDown() {
			t.Fatal("not shut down")
		}
		q.Restart()
		q.Add("a/4")
		if got := next(t, q); got != "a/4" {
			t.Fatalf("got %s", got)
		}
	})
}

// TestNoWakeUpIsLost has many workers take few items, so that one that is not woken would be missed.
func TestNoWakeUpIsLost(t *testing.T) {
	const workers, groups, items, rounds = 8, 4, 5, 2000
	q := newTestQueue()
	for g := range groups {
		q.Open(fmt.Sprint(g), "", Limits{Concurrency: 1 + g})
	}
	var processed sync.Map // item -> *atomic.Int64
	var inHand sync.Map
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				item, shutdown := q.Get()
				if shutdown {
					return
				}
				if _, twice := inHand.LoadOrStore(item, true); twice {
					t.Errorf("%s was handed out twice at once", item)
				}
				count, _ := processed.LoadOrStore(item, &atomic.Int64{})
				count.(*atomic.Int64).Add(1)
				if len(item)%2 == 0 {
					runtime.Gosched()
				}
				inHand.Delete(item)
				q.Done(item)
			}
		})
	}
	for round := range rounds {
		for g := range groups {
			for i := range items {
				if item := fmt.Sprintf("%d/%d", g, i); round%3 == 0 {
					q.AddAfter(item, time.Microsecond)
				} else {
					q.Add(item)
				}
			}
		}
	}
	for g := range groups {
		for i := range items {
			q.Add(fmt.Sprintf("%d/last%d", g, i))
		}
	}
	q.ShutDownWithDrain()
	wg.Wait()
	for g := range groups {
		for i := range items {
			if _, done := processed.Load(fmt.Sprintf("%d/last%d", g, i)); !done {
				t.Errorf("%d/last%d was lost", g, i)
			}
		}
	}
}

func TestMemoryIsGivenBack(t *testing.T) {
	q := newTestQueue()
	open(q, "a")
	for i := range 100_000 {
		q.Add(fmt.Sprintf("a/%d", i))
	}
	for q.Len() > 0 {
		item := next(t, q)
		q.Done(item)
	}
	if g := q.groups["a"]; g.items != nil || q.kept > maxFree {
		t.Fatalf("a map of %d, %d items kept", g.peak, q.kept)
	}
}

// clientGo is what client-go offers in place of this package.
func clientGo() workqueue.TypedInterface[string] { return workqueue.NewTyped[string]() }

// BenchmarkAddGetDone compares with client-go's own queue. The number of types matters to this queue alone.
func BenchmarkAddGetDone(b *testing.B) {
	fair := func(types int) func() workqueue.TypedInterface[string] {
		return func() workqueue.TypedInterface[string] {
			q := newTestQueue()
			for g := range types {
				q.Open(fmt.Sprint(g), "", Limits{})
			}
			return q
		}
	}
	for _, bench := range []struct {
		name  string
		types int
		queue func() workqueue.TypedInterface[string]
	}{
		{"queue=client-go/types=1", 1, clientGo},
		{"queue=fair/types=1", 1, fair(1)},
		{"queue=client-go/types=10000", 10_000, clientGo},
		{"queue=fair/types=10000", 10_000, fair(10_000)},
	} {
		for _, goroutines := range []int{1, 8} {
			b.Run(fmt.Sprintf("%s/goroutines=%d", bench.name, goroutines), func(b *testing.B) {
				b.ReportAllocs()
				q := bench.queue()
				var wg sync.WaitGroup
				for g := range goroutines {
					// Each goroutine adds what it was handed out before, so that no item is added twice and none misses.
					items := make([]string, 10_000/goroutines)
					for i := range items {
						items[i] = fmt.Sprintf("%d/namespace/name-%d", (g*len(items)+i)%bench.types, g*len(items)+i)
					}
					wg.Go(func() {
						for i := range b.N / goroutines {
							item := &items[i%len(items)]
							q.Add(*item)
							*item, _ = q.Get()
							q.Done(*item)
						}
					})
				}
				wg.Wait()
			})
		}
	}
}
