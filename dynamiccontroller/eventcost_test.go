package dynamiccontroller_test

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

// mappings are the ways to map the objects of one type to those of many types. The function serve serves the types, and
// returns how often mapFunc is called for each state of a watched object.
var mappings = []struct {
	name  string
	serve func(b *testing.B, m mappedTypes, mapFunc dynamiccontroller.MapFunc) (calls int)
}{
	{"each", func(b *testing.B, m mappedTypes, mapFunc dynamiccontroller.MapFunc) (calls int) {
		benchServe(b, m.controller, m.served, succeed, dynamiccontroller.Watches(m.watched, mapFunc))
		return len(m.served)
	}},
	{"standalone", func(b *testing.B, m mappedTypes, mapFunc dynamiccontroller.MapFunc) (calls int) {
		benchServe(b, m.controller, m.served, succeed)
		mapAny := func(ctx context.Context, object dynamiccontroller.Object) []dynamiccontroller.ObjectIdentifiers {
			mapFunc(ctx, object)
			return nil
		}
		if _, err := m.controller.StartWatch(m.watched, mapAny); err != nil {
			b.Fatal(err)
		}
		return 1
	}},
}

type mappedTypes struct {
	controller *dynamiccontroller.DynamicController
	served     []schema.GroupVersionResource
	watched    schema.GroupVersionResource
}

// BenchmarkEvent measures the CPU time of an event of a type that many types watch. Their MapFuncs read the labels and
// find nothing to reconcile. The time is measured from the arrival of the event until the last MapFunc has returned. It
// shows how much of the work for an event is repeated for each type. In "watch=each", each type has a watch of its own,
// as with Watches. In "watch=standalone", one watch serves all types, as with StartWatch. Run it with
//
//	go test -run '^$' -bench Event ./dynamiccontroller
func BenchmarkEvent(b *testing.B) {
	for _, mapping := range mappings {
		for _, n := range []int{1, 100, 500} {
			b.Run(fmt.Sprintf("watch=%s/types=%d", mapping.name, n), func(b *testing.B) {
				const states, versions = 2, 1024 // an update has an old state and a new one
				all := benchTypes(n + 1)
				watched, events := all[n], make(chan watch.Event)
				var updates []*objects.Record
				for i := range versions {
					updates = append(updates, benchRecord(benchID(watched, 0), dynamiccontroller.ObjectIdentifiers{}, 2+i))
				}
				c := benchController(memory{
					objects: map[schema.GroupVersionResource][]*objects.Record{watched: updates[:1]},
					events:  map[schema.GroupVersionResource]chan watch.Event{watched: events},
				})
				var mapped *countdown
				types := mappedTypes{controller: c, served: all[:n], watched: watched}
				calls := mapping.serve(b, types, func(_ context.Context, object dynamiccontroller.Object) []string {
					if object.GetLabels()["app.kubernetes.io/part-of"] == "shop" {
						mapped.done()
					}
					return nil
				})
				benchWatches(b, c)
				mapped = newCountdown(calls) // the initial list
				b.Cleanup(benchRun(b, c.Run))
				<-mapped.zero
				i, before := 0, cpuTime()
				for b.Loop() {
					i++
					mapped = newCountdown(states * calls)
					events <- watch.Event{Type: watch.Modified, Object: updates[i%versions]}
					<-mapped.zero
				}
				cpu := float64(cpuTime() - before)
				b.ReportMetric(cpu/float64(i), "cpu-ns/event")
				b.ReportMetric(cpu/float64(i*n), "cpu-ns/event/type")
			})
		}
	}
}
