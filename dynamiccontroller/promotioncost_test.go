package dynamiccontroller_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

// BenchmarkPromotion measures the CPU time of a promotion, with many types that own the objects of the same child type.
// The watches have synced before. The time is measured from the start of Run until each object has been reconciled
// once. The handlers return immediately. It is compared with the CPU time of reading the children from a store and
// decoding their owners once: "times-once" is the ratio. The larger promotion takes minutes, and the second command
// leaves it out. Run the benchmark with
//
//	go test -run '^$' -bench Promotion ./dynamiccontroller
//	go test -run '^$' -bench 'Promotion/types=100$' ./dynamiccontroller
func BenchmarkPromotion(b *testing.B) {
	const owners, perOwner = 10, 10
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprintf("types=%d/children=%d", n, n*owners*perOwner), func(b *testing.B) {
			all := benchTypes(n + 1)
			served, child := all[:n], all[n]
			cached := map[schema.GroupVersionResource][]*objects.Record{}
			for _, gvr := range served {
				for i := range owners {
					owner := benchID(gvr, i)
					cached[gvr] = append(cached[gvr], benchRecord(owner, dynamiccontroller.ObjectIdentifiers{}, 1))
					for range perOwner {
						cached[child] = append(cached[child], benchRecord(benchID(child, len(cached[child])), owner, 1))
					}
				}
				// Children do not cause a reconcile of this object, so that all lists are delivered when it is reconciled.
				childless := benchID(gvr, owners)
				cached[gvr] = append(cached[gvr], benchRecord(childless, dynamiccontroller.ObjectIdentifiers{}, 1))
			}
			once := readOnce(cached[child])

			var current atomic.Pointer[firstCalls]
			c := benchController(memory{objects: cached})
			benchServe(b, c, served, func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
				current.Load().add(id)
				return nil
			}, dynamiccontroller.Owns(child))
			benchWatches(b, c)
			var cpu time.Duration
			promotions := 0
			for b.Loop() {
				promotions++
				calls := newFirstCalls(n * (owners + 1))
				current.Store(calls)
				before := cpuTime()
				stop := benchRun(b, c.Run)
				<-calls.all
				cpu += cpuTime() - before
				b.StopTimer()
				stop()
				b.StartTimer()
			}
			cpu /= time.Duration(promotions)
			b.ReportMetric(float64(cpu), "cpu-ns/promotion")
			b.ReportMetric(float64(once), "once-cpu-ns")
			b.ReportMetric(float64(cpu)/float64(once), "times-once")
		})
	}
}

// readOnce returns the CPU time of reading each of the records from a store and decoding its owners.
func readOnce(records []*objects.Record) time.Duration {
	const repeats = 10
	store := objects.NewStore(objects.Metadata)
	for _, r := range records {
		store.Put(r)
	}
	before := cpuTime()
	for range repeats {
		for _, key := range store.Keys() {
			r, _ := store.Get(key)
			objects.OwnersOf(r)
		}
	}
	return (cpuTime() - before) / repeats
}

// firstCalls counts the objects that have been reconciled.
type firstCalls struct {
	want int
	all  chan struct{} // closed when all objects have been reconciled

	mu   sync.Mutex
	seen map[dynamiccontroller.ObjectIdentifiers]struct{}
}

func newFirstCalls(want int) *firstCalls {
	return &firstCalls{
		want: want, all: make(chan struct{}), seen: make(map[dynamiccontroller.ObjectIdentifiers]struct{}, want),
	}
}

func (f *firstCalls) add(id dynamiccontroller.ObjectIdentifiers) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := len(f.seen)
	f.seen[id] = struct{}{}
	if before < f.want && len(f.seen) == f.want {
		close(f.all)
	}
}
