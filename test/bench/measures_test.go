package bench

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"
)

// measures are what a job found out, in the order of the tables' columns. A unit says what was measured, too, in the
// way that benchstat understands: it ends in -ns for times, in -B for bytes.
type measures []measure

type measure struct {
	Unit  string
	Value float64
}

func (m measure) String() string {
	switch {
	case strings.HasSuffix(m.Unit, "-ns"):
		d := time.Duration(m.Value)
		switch {
		case d >= 10*time.Second:
			return d.Round(100 * time.Millisecond).String()
		case d >= time.Second:
			return d.Round(10 * time.Millisecond).String()
		case d >= 10*time.Millisecond:
			return d.Round(time.Millisecond).String()
		default:
			return d.Round(10 * time.Microsecond).String()
		}
	case strings.HasSuffix(m.Unit, "-B"):
		return fmt.Sprintf("%.1f MB", m.Value/1e6)
	case math.Abs(m.Value) >= 100:
		return fmt.Sprintf("%.0f", m.Value)
	default:
		return fmt.Sprintf("%.3g", m.Value)
	}
}

// quantiles are p50 and p99 of the times.
func quantiles(prefix string, times []time.Duration) measures {
	return measures{
		{prefix + "-p50-ns", float64(quantile(times, 0.50))},
		{prefix + "-p99-ns", float64(quantile(times, 0.99))},
	}
}

// quantile is the smallest of the times that so many of them do not exceed.
func quantile(times []time.Duration, q float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(times))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// footprint is what this process takes.
type footprint struct {
	goroutines  int
	heap, stack uint64
}

// takeFootprint waits until the process has come to rest and takes its footprint.
func takeFootprint() footprint {
	const (
		still   = 500 * time.Millisecond
		pause   = 50 * time.Millisecond
		patient = 20 * time.Second
	)
	began, since, count := time.Now(), time.Now(), runtime.NumGoroutine()
	for time.Since(since) < still && time.Since(began) < patient {
		time.Sleep(pause)
		if now := runtime.NumGoroutine(); now != count {
			since, count = time.Now(), now
		}
	}
	// What pools hold goes with the second collection, what has a finalizer with the one after.
	for range 3 {
		runtime.GC()
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return footprint{goroutines: runtime.NumGoroutine(), heap: stats.HeapAlloc, stack: stats.StackInuse}
}

// since is what has been added to an earlier footprint.
func (f footprint) since(before footprint, prefix string) measures {
	return measures{
		{prefix + "goroutines", float64(f.goroutines - before.goroutines)},
		{prefix + "heap-B", float64(f.heap) - float64(before.heap)},
		{prefix + "stacks-B", float64(f.stack) - float64(before.stack)},
	}
}

// results are all measures of this run, by scenario, engine and unit.
type results struct{ tables []*table }

type table struct {
	scenario string
	units    []string
	engines  []string
	samples  map[string]map[string][]float64
}

var measured = &results{}

func (r *results) add(scenario, engine string, ms measures) {
	i := slices.IndexFunc(r.tables, func(t *table) bool { return t.scenario == scenario })
	if i < 0 {
		i = len(r.tables)
		r.tables = append(r.tables, &table{scenario: scenario, samples: map[string]map[string][]float64{}})
	}
	r.tables[i].add(engine, ms)
}

func (t *table) add(engine string, ms measures) {
	if t.samples[engine] == nil {
		t.engines = append(t.engines, engine)
		t.samples[engine] = map[string][]float64{}
	}
	for _, m := range ms {
		if !slices.Contains(t.units, m.Unit) {
			t.units = append(t.units, m.Unit)
		}
		t.samples[engine][m.Unit] = append(t.samples[engine][m.Unit], m.Value)
	}
}
