package replica

import (
	"sync"
	"time"
)

// minStepTimeout is the minimum time for each of two shutdown steps, even if ShutdownTimeout is used up: releasing the
// lease, and stopping the per-replica runnables. See Options.ShutdownTimeout.
const minStepTimeout = time.Second

// shutdown is the time budget for shutting down. All steps of a shutdown share one ShutdownTimeout.
type shutdown struct {
	timeout time.Duration
	// within is the shutdown that this one is a part of, or nil. This one ends earlier by reserve.
	within  *shutdown
	reserve time.Duration

	mu    sync.Mutex // guards began
	began time.Time  // zero before the shutdown
}

// begin starts the budget. Further calls have no effect.
func (s *shutdown) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.began.IsZero() {
		s.began = time.Now()
	}
}

// remaining returns the time for the next step, and reports whether the shutdown has begun.
func (s *shutdown) remaining() (time.Duration, bool) {
	left, began := s.left()
	if s.within != nil {
		if whole, ending := s.within.left(); ending {
			left, began = whole, true
		}
		left -= s.reserve
	}
	if !began {
		return 0, false
	}
	return max(left, minStepTimeout), true
}

// left returns the time until the end of the shutdown, which can be negative, and reports whether it has begun.
func (s *shutdown) left() (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.began.IsZero() {
		return 0, false
	}
	return s.timeout - time.Since(s.began), true
}
