package dynamiccontroller

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// settling holds the objects that wait for own writes. A goroutine of the crew checks them after each change of a
// cache. The check of an object whose cache has received nothing takes less than 0.1 microseconds.
type settling struct {
	woken chan struct{} // its capacity is one
	count atomic.Int64  // number of objects that wait

	checks sync.Mutex // held during a check, because the goroutine of a crew can end after that of the next has begun

	mu      sync.Mutex // guards waiting
	waiting []*ownWrites
}

func newSettling() *settling { return &settling{woken: make(chan struct{}, 1)} }

// wake causes a check. It does not block.
func (s *settling) wake() {
	if s.count.Load() == 0 {
		return
	}
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// add adds an object. If its run or its type has ended, add ends the wait and returns false.
func (s *settling) add(w *ownWrites) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.run.hasEnded() || typewatch.IsClosed(w.reg.stopped) {
		w.end()
		return false
	}
	s.waiting = append(s.waiting, w)
	s.count.Add(1)
	s.wake() // something can have arrived before the object was added
	return true
}

// endOf ends the waits of a run or a type that has ended.
func (s *settling) endOf(hasEnded func(*ownWrites) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.waiting {
		if hasEnded(w) {
			w.end()
		}
	}
	s.removeLocked()
}

// removeLocked removes the objects that wait no more.
func (s *settling) removeLocked() {
	before := len(s.waiting)
	// In a new slice, because a check can be reading the former one.
	kept := slices.DeleteFunc(slices.Clone(s.waiting), func(w *ownWrites) bool { return w.over.Load() })
	s.waiting = kept
	s.count.Add(int64(len(kept) - before))
}

// work checks the waits until stop is closed.
func (s *settling) work(stop <-chan struct{}) {
	limit := time.NewTimer(0)
	defer limit.Stop()
	for {
		select {
		case <-s.woken:
		case <-limit.C:
		case <-stop:
			s.wake() // the goroutine of the next crew, which does not know the limits of this one
			return
		}
		if next, waiting := s.check(time.Now()); waiting {
			limit.Reset(time.Until(next))
		} else {
			limit.Stop()
		}
	}
}

// check checks all waits, and returns the earliest limit of the remaining ones.
func (s *settling) check(now time.Time) (limit time.Time, waiting bool) {
	s.checks.Lock()
	defer s.checks.Unlock()
	s.mu.Lock()
	all := s.waiting
	s.mu.Unlock()
	ended, lags := false, map[*registration]int{}
	for _, w := range all { // without the lock, because workers add others
		if w.check(now) {
			lags[w.reg]++
			w.reg.countWriteLag(w)
		}
		ended = ended || w.over.Load()
	}
	for reg, n := range lags {
		go reg.reportWriteLags(n) // because other objects wait
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ended {
		s.removeLocked()
	}
	if len(s.waiting) == 0 {
		return limit, false
	}
	byLimit := func(a, b *ownWrites) int { return a.limit.Compare(b.limit) }
	return slices.MinFunc(s.waiting, byLimit).limit, true
}
