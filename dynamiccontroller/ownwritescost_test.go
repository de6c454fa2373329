package dynamiccontroller_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/internal/testkit"
	"github.com/dynamic-controller/engine/internal/writes"
)

// ownWritesBench is a controller of parents, and of children whose changes it receives from a channel.
type ownWritesBench struct {
	controller       *dynamiccontroller.DynamicController
	parents          []dynamiccontroller.ObjectIdentifiers
	child            dynamiccontroller.ObjectIdentifiers
	parent, children chan watch.Event
	version          atomic.Int64
}

var noOwner dynamiccontroller.ObjectIdentifiers

// newOwnWritesBench starts a controller whose handler is called for each of the parents.
func newOwnWritesBench(
	b *testing.B, parents int, maxLag time.Duration, handler dynamiccontroller.Handler,
) *ownWritesBench {
	gvrs := benchTypes(2)
	o := &ownWritesBench{
		child: benchID(gvrs[1], 0), parent: make(chan watch.Event), children: make(chan watch.Event, 1<<16),
	}
	source := memory{
		objects: map[schema.GroupVersionResource][]*objects.Record{},
		events:  map[schema.GroupVersionResource]chan watch.Event{gvrs[0]: o.parent, gvrs[1]: o.children},
	}
	for i := range parents {
		o.parents = append(o.parents, benchID(gvrs[0], i))
		source.objects[gvrs[0]] = append(source.objects[gvrs[0]], benchRecord(o.parents[i], noOwner, 1))
	}
	o.version.Store(1)
	o.controller = dynamiccontroller.NewDynamicController(logr.Discard(),
		dynamiccontroller.Config{ResyncPeriod: -1, MaxWriteLag: maxLag}, nil, dynamiccontroller.WithSource(source))
	benchServe(b, o.controller, gvrs[:1], handler, dynamiccontroller.Owns(gvrs[1]))
	benchWatches(b, o.controller)
	b.Cleanup(benchRun(b, o.controller.Run))
	return o
}

// write records a write to the child for the call that ctx belongs to, as a transport does.
func (o *ownWritesBench) write(ctx context.Context, version int64) {
	writes.Record(ctx, writes.Write{
		Resource: o.child.GVR.GroupResource(), Namespace: "default", Name: o.child.Name(), UID: benchUID(o.child),
		States: []writes.State{{Version: strconv.FormatInt(version, 10)}},
	})
}

// arrive sends the child's next version to the watch.
func (o *ownWritesBench) arrive() (version int64) {
	version = o.version.Add(1)
	o.children <- watch.Event{Type: watch.Modified, Object: benchRecord(o.child, noOwner, int(version))}
	return version
}

// What D12 costs: a handler that writes nothing, one whose write has arrived when it returns, and one whose write
// arrives later. "none" and "arrived" with wait=false are also the null comparison: the engine then does the same.
func BenchmarkOwnWrites(b *testing.B) {
	for _, writes := range []string{"none", "arrived", "later"} {
		for _, lag := range []time.Duration{0, -1} {
			b.Run(fmt.Sprintf("write=%s/wait=%t", writes, lag == 0), func(b *testing.B) {
				const parents = 100
				var o *ownWritesBench
				var left atomic.Pointer[countdown]
				ready := make(chan struct{})
				o = newOwnWritesBench(b, parents, lag, func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
					<-ready
					switch writes {
					case "arrived":
						o.write(ctx, 1)
					case "later":
						o.write(ctx, o.arrive())
					}
					if c := left.Load(); c != nil {
						c.done()
					}
					return nil
				})
				close(ready)
				testkit.Eventually(b, time.Minute, func() error {
					if n := o.controller.QueueLen(); n > 0 {
						return fmt.Errorf("%d objects wait in the queue", n)
					}
					return nil
				})
				b.ReportAllocs()
				cpu := cpuTime()
				for b.Loop() {
					c := newCountdown(parents)
					left.Store(c)
					o.controller.Enqueue(o.parents...)
					<-c.zero
					left.Store(nil)
				}
				b.ReportMetric(float64((cpuTime()-cpu).Nanoseconds())/float64(b.N*parents), "cpu-ns/reconcile")
			})
		}
	}
}

// What waiting objects cost while the watch of the children hangs: memory, the CPU time of an event of another watch,
// and the time until the handler is called for another object because of it.
func BenchmarkOwnWritesWaiting(b *testing.B) {
	for _, waiting := range []int{0, 100, 10_000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			var o *ownWritesBench
			ready, called := make(chan struct{}), make(chan time.Time)
			handler := func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
				<-ready
				if id == o.parents[waiting] {
					called <- time.Now()
				} else {
					o.write(ctx, 1000)
				}
				return nil
			}
			o = newOwnWritesBench(b, waiting+1, time.Hour, handler)
			before := heapInUse()
			close(ready)
			<-called
			testkit.Eventually(b, time.Minute, func() error {
				if n := must(o.controller.TypeStatusOf(o.parents[0].GVR)).Settling; n < waiting {
					return fmt.Errorf("%d objects wait", n)
				}
				return nil
			})
			grown := heapInUse() - before
			var took []time.Duration
			cpu, version := cpuTime(), 1
			b.ResetTimer()
			for b.Loop() {
				version++
				event := watch.Event{Type: watch.Modified, Object: benchRecord(o.parents[waiting], noOwner, version)}
				sent := time.Now()
				o.parent <- event
				took = append(took, (<-called).Sub(sent))
			}
			slices.Sort(took)
			b.ReportMetric(float64((cpuTime()-cpu).Nanoseconds())/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
			b.ReportMetric(float64(grown)/float64(max(waiting, 1)), "B/waiting")
		})
	}
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
