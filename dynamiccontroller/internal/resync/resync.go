// Package resync spreads the resyncs of a set of keys evenly over a period.
//
// A period is divided into slots. The hash of a key determines the slot in which the key is resynced, so that each key
// is resynced at about the same time in every period. Only the current slot's keys are kept in memory, in random order.
package resync

import (
	"hash/maphash"
	"math/rand/v2"
	"time"
)

const (
	slots = 64
	// ticksPerSlot is the recommended number of calls to Due per slot.
	ticksPerSlot = 100
	minTick      = 10 * time.Millisecond
)

// MinPeriod is the shortest period. A shorter period is most likely a mistake, such as a number without a unit.
const MinPeriod = time.Second

// Tick returns the interval at which [Schedule.Due] should be called.
func Tick(period time.Duration) time.Duration { return max(period/slots/ticksPerSlot, minTick) }

// Schedule is the schedule of one set of keys. The zero value must be started before it is used. It is not safe for
// concurrent use.
type Schedule struct {
	seed    maphash.Seed
	started bool
	slot    int
	began   time.Time // when the current slot began
	keys    []string  // keys of the current slot that Due has not returned yet
	total   int       // number of keys in the current slot
	listed  bool      // whether the keys of the current slot have been listed
}

// Start starts the schedule in a random slot, unless it has already been started with the same seed. Schedules with the
// same seed resync a key in the same slot.
func (s *Schedule) Start(seed maphash.Seed, now time.Time) {
	if !s.started || s.seed != seed {
		*s = Schedule{seed: seed, started: true, slot: rand.N(slots), began: now}
	}
}

// Due returns the keys that have become due since the last call. Once per slot, it calls list, which must return all
// keys of the set. Due can modify the slice that list returns.
func (s *Schedule) Due(now time.Time, period time.Duration, list func() []string) (due []string) {
	slot := period / slots
	if now.Sub(s.began) > period {
		s.began = now.Add(-slot) // the process was suspended: skip all missed slots except one
	}
	for {
		if !s.listed {
			s.keys = s.keysOfSlot(list())
			s.total, s.listed = len(s.keys), true
		}
		elapsed := now.Sub(s.began)
		if elapsed < slot {
			remaining := s.total - int(float64(s.total)*float64(elapsed)/float64(slot))
			n := max(len(s.keys)-remaining, 0)
			due = append(due, s.keys[:n]...)
			s.keys = s.keys[n:]
			return due
		}
		due = append(due, s.keys...)
		s.slot, s.began, s.keys, s.listed = (s.slot+1)%slots, s.began.Add(slot), nil, false
	}
}

// keysOfSlot returns the keys of the current slot in random order.
func (s *Schedule) keysOfSlot(keys []string) []string {
	of := keys[:0]
	for _, key := range keys {
		if maphash.String(s.seed, key)%slots == uint64(s.slot) {
			of = append(of, key)
		}
	}
	of = append([]string(nil), of...)
	rand.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
	return of
}
