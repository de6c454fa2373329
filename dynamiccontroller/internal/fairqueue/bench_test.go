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

// BenchmarkFlows adds, gets and finishes items of a group in which 5,000 items are waiting.
func BenchmarkFlows(b *testing.B) {
	for _, flows := range []int{0, 1, 5000} {
		b.Run(fmt.Sprintf("flows=%d", flows), func(b *testing.B) {
			b.ReportAllocs()
			const waiting = 5000
			q := openWithFlowsOf(flows)
			items := make([]string, 2*waiting)
			for i := range items {
				items[i] = benchmarkItem(i)
			}
			for i := range waiting {
				q.Add(items[i])
			}
			b.ResetTimer()
			for i := range b.N {
				q.Add(items[(waiting+i)%len(items)])
				item, _ := q.Get()
				q.Done(item)
			}
			b.StopTimer()
			q.ShutDown()
		})
	}
}

// BenchmarkWaiting measures the memory of 5,000 waiting items. They are in one flow or each in its own.
func BenchmarkWaiting(b *testing.B) {
	for lane, name := range []string{Live: "live", Background: "background"} {
		for _, flows := range []int{0, 1, 5000} {
			b.Run(fmt.Sprintf("lane=%s/flows=%d", name, flows), func(b *testing.B) {
				items := make([]string, 5000)
				for i := range items {
					items[i] = benchmarkItem(i)
				}
				var bytes int64
				for b.Loop() {
					q := openWithFlowsOf(flows)
					before := heapSize()
					q.groupFor("a/").Add(Lane(lane), items...)
					bytes += heapSize() - before
					q.ShutDown()
				}
				b.ReportMetric(float64(bytes)/float64(b.N)/float64(len(items)), "B/item")
			})
		}
	}
}

func benchmarkItem(i int) string { return fmt.Sprintf("a/%d", i) }

// openWithFlowsOf opens group a without flows if flows is 0, with all items in the same flow if it is 1, and otherwise
// with each item in its own flow.
func openWithFlowsOf(flows int) *testQueue {
	q := newTestQueue()
	var options testOptions
	switch flows {
	case 0:
	case 1:
		options.FlowsOf = each(func(string) string { return "" })
	default:
		options.FlowsOf = each(identity)
	}
	q.Open("a", "a", options)
	return q
}
