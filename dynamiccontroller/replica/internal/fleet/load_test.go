package fleet

import (
	"testing"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

func TestMeter(t *testing.T) {
	const period = loadPeriods * shardLeaseDuration
	before := plan.Load{Work: 7, Objects: 8}
	m := NewMeter(before)
	now := time.Now()
	var u Usage
	measure := func(busy time.Duration, changes int64, objects int, want plan.Load) {
		t.Helper()
		u = Usage{Objects: objects, Busy: u.Busy + busy, Changes: u.Changes + changes}
		if !m.IsDue(now, shardLeaseDuration) {
			t.Error("not due")
		}
		m.Measure(now, u, true)
		if got := m.Load(); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if m.IsDue(now.Add(period-1), shardLeaseDuration) {
			t.Error("due too early")
		}
		now = now.Add(period)
	}
	measure(time.Hour, 1_000_000, 5, before) // since when is unknown
	for range loadIntervals - 1 {
		measure(period/2, 0, 5, before)
	}
	half := plan.Load{Work: 501, Objects: 120}
	measure(period/2, 0, 123, half)
	measure(10*period, 0, 123, half) // a burst
	measure(10*period, 0, 123, half)
	measure(10*period, 0, 987_654, plan.Load{Work: 10_001, Objects: 990_000}) // is no longer one
	for range loadIntervals - 1 {                                             // changes keep a worker busy, too
		m.Measure(now, u, true)
		u.Changes += int64(period/changeCost) / 4
		now = now.Add(period)
	}
	measure(0, 0, 0, plan.Load{Work: 251})
	m.Measure(now, Usage{}, false) // between two terms
	now = now.Add(period)
	u = Usage{Busy: time.Hour}
	measure(0, 0, 3, m.Load())
	measure(period, 0, 3, plan.Load{Work: 251, Objects: 3})
	u = Usage{} // a type is no longer served: the totals are smaller
	measure(0, 0, 3, plan.Load{Work: 251, Objects: 3})
}

func TestMeter_IdleShardHasAKnownLoad(t *testing.T) {
	m, now := NewMeter(plan.Load{}), time.Now()
	for i := range loadIntervals + 1 {
		m.Measure(now.Add(time.Duration(i)*time.Minute), Usage{}, true)
	}
	if m.Load() == (plan.Load{}) {
		t.Error("the load is unknown")
	}
}

// The first measurement of a term must not count what happened in earlier ones.
func TestMeter_StartsAgainAfterAnUnknownUsage(t *testing.T) {
	m, now := NewMeter(plan.Load{}), time.Now()
	m.Measure(now, Usage{}, false)
	for i := 1; i <= loadIntervals+1; i++ {
		m.Measure(now.Add(time.Duration(i)*time.Minute), Usage{Busy: 1000 * time.Hour}, true)
	}
	if got := m.Load(); got != (plan.Load{Work: 1}) {
		t.Errorf("got %+v", got)
	}
}
