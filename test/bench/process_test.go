package bench

import (
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// usage contains the CPU time and the allocations of this process since its start.
type usage struct {
	at         time.Time
	cpu        time.Duration // User and system time.
	allocs     uint64
	allocBytes uint64
}

func takeUsage() usage {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err) // The call fails only for invalid arguments.
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return usage{
		at:         time.Now(),
		cpu:        time.Duration(r.Utime.Nano() + r.Stime.Nano()),
		allocs:     stats.Mallocs,
		allocBytes: stats.TotalAlloc,
	}
}

// residentMemory returns the resident memory of a process and its peak, in bytes. The process is a PID or "self". Both
// values are zero on systems without /proc.
func residentMemory(process string) (now, peak uint64) {
	status, _ := os.ReadFile("/proc/" + process + "/status")
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		kilobytes, _ := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "VmRSS":
			now = kilobytes << 10
		case "VmHWM":
			peak = kilobytes << 10
		}
	}
	return now, peak
}

// heapPeaks samples the heap of this process.
type heapPeaks struct {
	live    uint64 // The largest live heap found by a GC cycle.
	objects uint64 // The largest heap, including garbage.
	done    chan struct{}
	running sync.WaitGroup
}

// sampleHeap starts sampling the heap. It does not start GC cycles.
func sampleHeap() *heapPeaks {
	const interval = 3 * time.Millisecond
	p := &heapPeaks{done: make(chan struct{})}
	p.running.Go(func() {
		samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}}
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for stopped := false; !stopped; {
			select {
			case <-ticker.C:
			case <-p.done:
				stopped = true
			}
			metrics.Read(samples)
			p.live = max(p.live, samples[0].Value.Uint64())
			p.objects = max(p.objects, samples[1].Value.Uint64())
		}
	})
	return p
}

// stop takes a last sample. The peaks can be read after it has returned.
func (p *heapPeaks) stop() {
	close(p.done)
	p.running.Wait()
}
