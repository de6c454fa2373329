package bench

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"
)

// measures are the results of a job, in the order of the columns in the tables. The name of a measure is part of its
// unit. As benchstat expects, units of times end in -ns and units of sizes end in -B.
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

// value returns the value of the unit, or zero.
func (m measures) value(unit string) float64 {
	for _, each := range m {
		if each.Unit == unit {
			return each.Value
		}
	}
	return 0
}

// quantiles returns p50 and p99 of the times.
func quantiles(prefix string, times []time.Duration) measures {
	return measures{
		{prefix + "-p50-ns", float64(quantile(times, 0.50))},
		{prefix + "-p99-ns", float64(quantile(times, 0.99))},
	}
}

// quantile returns the smallest time t such that at least the fraction q of the times is at most t.
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

// footprint contains the number of goroutines and the memory of this process.
type footprint struct {
	goroutines   int
	heap, stack  uint64
	rss, peakRSS uint64 // Before GC was forced.
}

// takeFootprint waits until the process is idle and returns its footprint.
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
	return collectGarbage()
}

// collectGarbage returns the footprint of a process that can be active.
func collectGarbage() footprint {
	f := footprint{goroutines: runtime.NumGoroutine()}
	f.rss, f.peakRSS = residentMemory("self")
	// The second collection frees the contents of pools, and the third one frees objects with finalizers.
	for range 3 {
		runtime.GC()
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	f.heap, f.stack = stats.HeapAlloc, stats.StackInuse
	return f
}

// since returns the difference from an earlier footprint.
func (f footprint) since(before footprint, prefix string) measures {
	return measures{
		{prefix + "goroutines", float64(f.goroutines - before.goroutines)},
		{prefix + "heap-B", float64(f.heap) - float64(before.heap)},
		{prefix + "stacks-B", float64(f.stack) - float64(before.stack)},
	}
}
