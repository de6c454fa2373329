package dynamiccontroller_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

// runCounts are the numbers of runs that are compared. With several runs, each type belongs to the run of its shard.
var runCounts = []int{1, 64}

// startRuns starts n runs, which together reconcile all types. The function stop ends them.
func startRuns(b *testing.B, c *dynamiccontroller.DynamicController, n int) (stop func()) {
	if n == 1 {
		return benchRun(b, c.Run)
	}
	stops := make([]func(), n)
	for shard := range n {
		stops[shard] = benchRun(b, func(ctx context.Context) error {
			return c.Run(dynamiccontroller.WithShard(ctx, shard, n))
		})
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// BenchmarkRuns measures 200 types of 50 objects that are divided among some runs. The handlers return immediately. It
// shows what several runs cost compared with one. Run it with
//
//	go test -run '^$' -bench Runs ./dynamiccontroller
//
// The parts of the benchmark are:
//
//   - promotion: the time from the start of the runs until all objects are reconciled, and the goroutines that the runs
//     add to those of the watches.
//   - reconciles: an operation enqueues all objects and waits until they are reconciled.
//   - quiet: an operation is the reconcile of an object of a quiet type, from Enqueue until the handler is called. With
//     busy=true, another type always has 1,000 objects in the queue.
func BenchmarkRuns(b *testing.B) {
	for _, runs := range runCounts {
		b.Run(fmt.Sprintf("runs=%d", runs), func(b *testing.B) {
			b.Run("promotion", func(b *testing.B) { benchmarkRunsPromotion(b, runs) })
			b.Run("reconciles", func(b *testing.B) { benchmarkReconciles(b, runs) })
			for _, busy := range []bool{false, true} {
				b.Run(fmt.Sprintf("quiet/busy=%t", busy), func(b *testing.B) { benchmarkQuiet(b, runs, busy) })
			}
		})
	}
}

const runTypes, runObjects = 200, 50

// manyTypes is a controller of 200 types of 50 objects. The watches have synced.
type manyTypes struct {
	*dynamiccontroller.DynamicController
	ids     []dynamiccontroller.ObjectIdentifiers
	handler atomic.Pointer[func(dynamiccontroller.ObjectIdentifiers)] // called by the handlers of all types
}

func newManyTypes(b *testing.B) *manyTypes {
	types, cached := benchTypes(runTypes), map[schema.GroupVersionResource][]*objects.Record{}
	m := &manyTypes{}
	for _, gvr := range types {
		for n := range runObjects {
			id := benchID(gvr, n)
			m.ids = append(m.ids, id)
			cached[gvr] = append(cached[gvr], benchRecord(id, dynamiccontroller.ObjectIdentifiers{}, 1))
		}
	}
	m.DynamicController = benchController(memory{objects: cached})
	benchServe(b, m.DynamicController, types, func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		(*m.handler.Load())(id)
		return nil
	})
	benchWatches(b, m.DynamicController)
	return m
}

func (m *manyTypes) handle(f func(dynamiccontroller.ObjectIdentifiers)) { m.handler.Store(&f) }

// start starts the runs and waits until all objects have been reconciled.
func (m *manyTypes) start(b *testing.B, runs int) (stop func()) {
	reconciled := newCountdown(len(m.ids))
	m.handle(func(dynamiccontroller.ObjectIdentifiers) { reconciled.done() })
	stop = startRuns(b, m.DynamicController, runs)
	<-reconciled.zero
	return stop
}

func benchmarkRunsPromotion(b *testing.B, runs int) {
	m := newManyTypes(b)
	var cpu time.Duration
	promotions, goroutines := 0, 0
	for b.Loop() {
		promotions++
		watching, before := runtime.NumGoroutine(), cpuTime()
		stop := m.start(b, runs)
		cpu += cpuTime() - before
		b.StopTimer()
		time.Sleep(10 * time.Millisecond) // goroutines of the start end
		goroutines = runtime.NumGoroutine() - watching
		stop()
		b.StartTimer()
	}
	b.ReportMetric(float64(cpu)/float64(promotions), "cpu-ns/op")
	b.ReportMetric(float64(goroutines), "goroutines")
}

func benchmarkReconciles(b *testing.B, runs int) {
	m := newManyTypes(b)
	b.Cleanup(m.start(b, runs))
	rounds, before := 0, cpuTime()
	for b.Loop() {
		rounds++
		reconciled := newCountdown(len(m.ids))
		m.handle(func(dynamiccontroller.ObjectIdentifiers) { reconciled.done() })
		m.Enqueue(m.ids...)
		<-reconciled.zero
	}
	reconciles := float64(rounds * len(m.ids))
	b.ReportMetric(reconciles/b.Elapsed().Seconds(), "reconciles/s")
	b.ReportMetric(float64(cpuTime()-before)/reconciles, "cpu-ns/reconcile")
}

func benchmarkQuiet(b *testing.B, runs int, busy bool) {
	const busyObjects = 1000
	m := newManyTypes(b)
	b.Cleanup(m.start(b, runs))
	quiet, busyType := m.ids[0], m.ids[len(m.ids)-1].GVR
	called := make(chan time.Time)
	m.handle(func(id dynamiccontroller.ObjectIdentifiers) {
		if id == quiet {
			called <- time.Now()
		} else {
			m.Enqueue(id)
		}
	})
	if busy {
		for n := range busyObjects {
			m.Enqueue(benchID(busyType, n))
		}
	}
	var latencies []time.Duration
	for b.Loop() {
		began := time.Now()
		m.Enqueue(quiet)
		latencies = append(latencies, (<-called).Sub(began))
	}
	slices.Sort(latencies)
	b.ReportMetric(float64(latencies[len(latencies)/2]), "p50-ns")
	b.ReportMetric(float64(latencies[len(latencies)*99/100]), "p99-ns")
	b.ReportMetric(float64(latencies[len(latencies)*999/1000]), "p99.9-ns")
}
