package replica

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// startCounter is a runnable that counts its runs and keeps nothing else.
type startCounter struct{ starts, running int }

func (c *startCounter) Run(ctx context.Context) error {
	c.starts++
	c.running++
	<-ctx.Done()
	c.running--
	return nil
}

// TestL4_TermLeavesNothingBehind wins and loses the lease 1000 times. synctest reports goroutines that remain after
// Run.
func TestL4_TermLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeServer{}
		r := newRig(t, s, "a", func(o *Options) { o.log = (&logBuffer{}).logger().V(9) }) // the buffer keeps no lines
		work, perReplica := &startCounter{}, &startCounter{}
		r.register("work", work)
		r.registerPerReplica("per-replica", perReplica)
		r.start()
		winAndLose := func(times int) (goroutines int, heap uint64) {
			for range times {
				time.Sleep(time.Second)
				wantNoError(t, r.write(t.Context()))
				s.release()
				time.Sleep(maxReacquire + time.Second)
			}
			synctest.Wait()
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return runtime.NumGoroutine(), m.HeapAlloc
		}
		goroutines, heap := winAndLose(50)
		goroutinesAfter, heapAfter := winAndLose(1000)
		if goroutinesAfter > goroutines { // there can be fewer, because a goroutine of an earlier test may have ended
			t.Errorf("%d goroutines before the terms, %d afterwards; want no more than before", goroutines, goroutinesAfter)
		}
		if growth := int64(heapAfter) - int64(heap); growth > 256<<10 {
			t.Errorf("the heap grew by %d bytes, which indicates a leak", growth)
		}
		if work.starts != 1051 || work.running != 1 || perReplica.starts != 1 {
			t.Errorf("leader-gated: %d starts, %d running; per-replica: %d starts", work.starts, work.running, perReplica.starts)
		}
		if n := len(r.leadership.fence.latest().inFlight); n != 0 {
			t.Errorf("%d writes are in flight, want none", n)
		}
		wantNoError(t, r.stop())
		if r.leadership.group != nil {
			t.Error("the replica still holds the runnables of the last term")
		}
	})
}
