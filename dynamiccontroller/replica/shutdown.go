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
	within  *shutdown // the shutdown of the replica, which limits this one once it has begun; can be nil

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
	if s.within != nil {
		if remaining, began := s.within.remaining(); began {
			return remaining, true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.began.IsZero() {
		return 0, false
	}
	return max(s.timeout-time.Since(s.began), minStepTimeout), true
}
