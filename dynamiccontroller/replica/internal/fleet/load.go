package fleet

import (
	"math"
	"slices"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/plan"
)

const (
	// loadPeriods is the interval at which the leader of a shard measures its load, in multiples of LeaseDuration.
	loadPeriods = 2
	// loadIntervals is the number of the last intervals of which the median is the load. A burst that is shorter than half
	// of them, such as after a list, does not change it.
	loadIntervals = 5
	// changeCost is the time that a change of an object counts as, in addition to the handler's time: it is decoded,
	// stored and mapped.
	changeCost = 100 * time.Microsecond
)

// Usage is what a shard has cost its leader since the term began.
type Usage struct {
	Objects int           // in the caches
	Busy    time.Duration // of the handlers
	Changes int64         // of objects
}

// Meter measures the load of a shard that this member leads. It reads no clocks, and is not safe for concurrent use.
type Meter struct {
	at    time.Time // of the last measurement, zero if the next one has nothing to be compared with
	tried time.Time
	last  Usage
	works []int // of the last intervals, in thousandths of a busy worker
	load  plan.Load
}

// NewMeter returns a Meter. The load is the given one until it has been measured.
func NewMeter(load plan.Load) *Meter { return &Meter{load: load} }

// IsDue reports whether the load must be measured now.
func (m *Meter) IsDue(now time.Time, leaseDuration time.Duration) bool {
	return m.tried.IsZero() || now.Sub(m.tried) >= loadPeriods*leaseDuration
}

// Measure records the usage, or that it is unknown.
func (m *Meter) Measure(now time.Time, u Usage, known bool) {
	before, took := m.last, now.Sub(m.at)
	usable := known && !m.at.IsZero() && took > 0 && u.Busy >= before.Busy && u.Changes >= before.Changes
	m.tried, m.at, m.last = now, now, u
	if !known {
		m.at = time.Time{}
	}
	if !usable {
		return
	}
	busy := u.Busy - before.Busy + time.Duration(u.Changes-before.Changes)*changeCost
	m.works = append(m.works, int(1000*float64(busy)/float64(took)))
	if len(m.works) < loadIntervals {
		return
	}
	m.works = m.works[len(m.works)-loadIntervals:]
	median := slices.Sorted(slices.Values(m.works))[loadIntervals/2]
	m.load = plan.Load{Work: rounded(median) + 1, Objects: rounded(u.Objects)} // never the zero value, which is unknown
}

// Load returns the load, or the zero value if it is unknown.
func (m *Meter) Load() plan.Load { return m.load }

// rounded rounds to two significant digits, so that the published state rarely changes.
func rounded(n int) int {
	x, unit := min(float64(n), plan.MaxLoad), 1.0
	for x/unit >= 100 {
		unit *= 10
	}
	return int(math.Round(x/unit) * unit)
}
