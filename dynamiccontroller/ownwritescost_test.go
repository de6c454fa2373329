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

// ownWritesBench is a controller of parents with a child, and of an object of another type. It receives changes from
// channels.
type ownWritesBench struct {
	controller                     *dynamiccontroller.DynamicController
	parents                        []dynamiccontroller.ObjectIdentifiers
	child, other                   dynamiccontroller.ObjectIdentifiers
	ofParents, ofChildren, ofOther chan watch.Event
	version                        atomic.Int64
}

var noOwner dynamiccontroller.ObjectIdentifiers

// newOwnWritesBench starts a controller whose handler is called for each of the parents and for the other object.
func newOwnWritesBench(
	b *testing.B, parents int, maxLag time.Duration, handler dynamiccontroller.Handler,
) *ownWritesBench {
	gvrs := benchTypes(3)
	o := &ownWritesBench{
		child: benchID(gvrs[1], 0), other: benchID(gvrs[2], 0),
		ofParents: make(chan watch.Event), ofChildren: make(chan watch.Event, 1<<16), ofOther: make(chan watch.Event),
	}
	source := memory{
		objects: map[schema.GroupVersionResource][]*objects.Record{gvrs[2]: {benchRecord(o.other, noOwner, 1)}},
		events: map[schema.GroupVersionResource]chan watch.Event{
			gvrs[0]: o.ofParents, gvrs[1]: o.ofChildren, gvrs[2]: o.ofOther,
		},
	}
	for i := range parents {
		o.parents = append(o.parents, benchID(gvrs[0], i))
		source.objects[gvrs[0]] = append(source.objects[gvrs[0]], benchRecord(o.parents[i], noOwner, 1))
	}
	o.version.Store(1)
	o.controller = dynamiccontroller.NewDynamicController(logr.Discard(),
		dynamiccontroller.Config{ResyncPeriod: -1, MaxWriteLag: maxLag}, nil, dynamiccontroller.WithSource(source))
	benchServe(b, o.controller, gvrs[:1], handler, dynamiccontroller.Owns(gvrs[1]))
	benchServe(b, o.controller, gvrs[2:], handler)
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
	o.ofChildren <- watch.Event{Type: watch.Modified, Object: benchRecord(o.child, noOwner, int(version))}
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
// and the time until the handler is called because of it, for another object of the type and for one of another type.
func BenchmarkOwnWritesWaiting(b *testing.B) {
	for _, waiting := range []int{0, 100, 10_000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			var o *ownWritesBench
			ready, called := make(chan struct{}), make(chan time.Time)
			handler := func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
				<-ready
				if id == o.parents[waiting] || id == o.other {
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
			<-called
			testkit.Eventually(b, time.Minute, func() error {
				if n := must(o.controller.TypeStatusOf(o.parents[0].GVR)).Settling; n < waiting {
					return fmt.Errorf("%d objects wait", n)
				}
				return nil
			})
			grown := heapInUse() - before
			change := func(id dynamiccontroller.ObjectIdentifiers, version int, events chan<- watch.Event) time.Duration {
				event := watch.Event{Type: watch.Modified, Object: benchRecord(id, noOwner, version)}
				sent := time.Now()
				events <- event
				return (<-called).Sub(sent)
			}
			p99 := func(took []time.Duration) float64 {
				slices.Sort(took)
				return float64(took[len(took)*99/100].Nanoseconds())
			}
			var same, other []time.Duration
			cpu, version := cpuTime(), 1
			b.ResetTimer()
			for b.Loop() {
				version++
				same = append(same, change(o.parents[waiting], version, o.ofParents))
				other = append(other, change(o.other, version, o.ofOther))
			}
			b.ReportMetric(float64((cpuTime()-cpu).Nanoseconds())/float64(2*b.N), "cpu-ns/event")
			b.ReportMetric(p99(same), "p99-ns")
			b.ReportMetric(p99(other), "p99-other-type-ns")
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
