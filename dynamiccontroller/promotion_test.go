package dynamiccontroller_test

import (
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/metrics"
)

// countGoroutines counts the goroutines that appear in a stack dump, except those of timers, which can belong to
// earlier tests. runtime.NumGoroutine also counts the runtime's own goroutine while it runs a finalizer.
func countGoroutines() (n int) {
	stacks := make([]byte, 1<<20)
	for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\ngoroutine ") {
		if !strings.Contains(stack, "created by time.goFunc") {
			n++
		}
	}
	return n
}

// A replica that is promoted a thousand times reconciles each object once per promotion, and leaks no goroutines,
// memory or metric series.
func TestL4_ThousandPromotionsLeakNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reconciles := metrics.NewReconciles()
		f := newFixture(t, 2, dynamiccontroller.Config{Workers: 4, ResyncPeriod: -1},
			dynamiccontroller.WithMetrics(reconciles))
		registry := prometheus.NewRegistry()
		registry.MustRegister(reconciles, metrics.NewStatus(f.controller))
		parent, child := f.types[0], f.types[1]
		for _, name := range []string{"a", "b"} {
			f.put(parent, name)
			f.put(child, "of-"+name, f.id(parent, name))
		}
		c := newCalls(succeed)
		f.serve(parent, c.handle, dynamiccontroller.Owns(child))
		stopWatches := f.runWatches()

		type measures struct{ goroutines, series int }
		lead := func(times int) (m measures, heap int64) {
			for range times {
				stop := f.run()
				c.want(t, "a term", named("a", "b"))
				stop()
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
		// There can be fewer goroutines than before, because one from an earlier test may have ended in the meantime.
		if after.goroutines > before.goroutines || after.series != before.series {
			t.Errorf("after 1000 promotions, got %+v, want the same as before: %+v", after, before)
		}
		if grown := heapAfter - heapBefore; grown > 512<<10 {
			t.Errorf("the heap grew by %d bytes, want at most 512 KiB", grown)
		}
		stopWatches()
	})
}
