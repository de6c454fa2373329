package dynamiccontroller_test

import (
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/metrics"
)

// countGoroutines counts the goroutines that have a stack to show. runtime.NumGoroutine also counts a goroutine of the
// runtime while it runs a finalizer.
func countGoroutines() int {
	stacks := make([]byte, 1<<20)
	return 1 + strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "\n\ngoroutine ")
}

// A replica that is promoted a thousand times reconciles each object once per promotion, and leaks no goroutines,
// memory or metric series.
func TestL4_ThousandPromotionsLeakNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := dynamiccontroller.Config{Workers: 4, ResyncPeriod: -1}
		w := newWorld(t, 2, config)
		reconciles := metrics.NewReconciles()
		w.controller = dynamiccontroller.NewDynamicController(logr.Discard(), config, w.client,
			dynamiccontroller.WithMetadataClient(w.metadata()), dynamiccontroller.WithMetrics(reconciles))
		registry := prometheus.NewRegistry()
		registry.MustRegister(reconciles, metrics.NewStatus(w.controller))
		parent, child := w.types[0], w.types[1]
		for _, name := range []string{"a", "b"} {
			w.put(parent, name)
			w.put(child, "of-"+name, w.id(parent, name))
		}
		c := newCalls(succeed)
		w.serve(parent, c.handle, dynamiccontroller.Owns(child))
		stopWatches := w.runWatches()

		type measures struct{ goroutines, series int }
		lead := func(times int) (m measures, heap int64) {
			for range times {
				stop := w.run()
				c.want(t, "a term", named("a", "b"))
				if err := stop(); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			m.goroutines = countGoroutines()
			for _, family := range must(registry.Gather()) {
				m.series += len(family.GetMetric())
			}
			runtime.GC()
			runtime.GC()
			var stats runtime.MemStats
			runtime.ReadMemStats(&stats)
			return m, int64(stats.HeapAlloc)
		}
		before, heapBefore := lead(20)
		after, heapAfter := lead(1000)
		// There can be fewer goroutines, because one of an earlier test can have ended in the meantime.
		if after.goroutines > before.goroutines || after.series != before.series {
			t.Errorf("got %+v, want %+v", after, before)
		}
		if grown := heapAfter - heapBefore; grown > 512<<10 {
			t.Errorf("the heap grew by %d bytes", grown)
		}
		if err := stopWatches(); err != nil {
			t.Error(err)
		}
	})
}
