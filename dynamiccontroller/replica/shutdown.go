package replica

import (
	"sync"
	"time"
)

// leastGrace is what is left for a step of a shutdown whose time is used up. There are two such steps, the release and the
// end of the per-replica half: see Options.ShutdownTimeout.
const leastGrace = time.Second

// shutdown is the end of a Run: all its steps share one ShutdownTimeout.
type shutdown struct {
	timeout time.Duration

	mu    sync.Mutex // guards began
	began time.Time  // zero before
}

// begin notes that Run ends from now on. It is called wherever that is decided or seen; the first call counts.
func (s *shutdown) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.began.IsZero() {
		s.began = time.Now()
	}
}

// left is the time that the next step has, and whether the shutdown has begun.
func (s *shutdown) left() (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.began.IsZero() {
		return 0, false
	}
	return max(s.timeout-time.Since(s.began), leastGrace), true
}
