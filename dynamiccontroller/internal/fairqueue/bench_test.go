package fairqueue

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// queues returns constructors of the queues to compare: client-go's queue, and this package's queue with the given
// number of groups.
func queues() map[string]func(groups int) workqueue.TypedInterface[string] {
	return map[string]func(groups int) workqueue.TypedInterface[string]{
		"queue=client-go": func(int) workqueue.TypedInterface[string] { return workqueue.NewTyped[string]() },
		"queue=fair":      func(groups int) workqueue.TypedInterface[string] { return openMany(groups) },
	}
}

func openMany(groups int) *testQueue {
	q := newTestQueue()
	for g := range groups {
		open(q, fmt.Sprint(g))
	}
	return q
}

func benchmarkItems(groups int) []string {
	items := make([]string, 10_000)
	for i := range items {
		items[i] = fmt.Sprintf("%d/namespace/name-%d", i%groups, i)
	}
	return items
}

// BenchmarkAddGetDone adds, gets and finishes each item in one goroutine.
func BenchmarkAddGetDone(b *testing.B) {
	for name, queue := range queues() {
		for _, groups := range []int{1, 10_000} {
			b.Run(fmt.Sprintf("%s/groups=%d", name, groups), func(b *testing.B) {
				b.ReportAllocs()
				q, items := queue(groups), benchmarkItems(groups)
				for i := range b.N {
					q.Add(items[i%len(items)])
					item, _ := q.Get()
					q.Done(item)
				}
				b.StopTimer()
				q.ShutDown()
			})
		}
	}
}

// BenchmarkWorkers adds items in one goroutine and processes them in ten workers.
func BenchmarkWorkers(b *testing.B) {
	for name, queue := range queues() {
		for _, groups := range []int{1, 100} {
			b.Run(fmt.Sprintf("%s/groups=%d", name, groups), func(b *testing.B) {
				b.ReportAllocs()
				q, items := queue(groups), benchmarkItems(groups)
				limit := make(chan struct{}, len(items)-100)
				var wg sync.WaitGroup
				for range 10 {
					wg.Go(func() {
						for {
							item, shutdown := q.Get()
							if shutdown {
								return
							}
							q.Done(item)
							<-limit
						}
					})
				}
				for i := range b.N {
					limit <- struct{}{}
					q.Add(items[i%len(items)])
				}
				q.ShutDownWithDrain()
				wg.Wait()
			})
		}
	}
}

// BenchmarkAddAfter delays each item, and then adds the item before its delay has expired.
func BenchmarkAddAfter(b *testing.B) {
	b.ReportAllocs()
	q, items := openMany(100), benchmarkItems(100)
	for i := range b.N {
		q.AddAfter(items[i%len(items)], time.Hour)
		q.Add(items[i%len(items)])
		item, _ := q.Get()
		q.Done(item)
	}
	b.StopTimer()
	q.ShutDown()
}
