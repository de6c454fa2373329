package tracing

import (
	"sync"
	"time"
)

// limiter limits events to one per interval.
type limiter struct {
	interval time.Duration
	mu       sync.Mutex
	last     time.Time // guarded by mu
}

func newLimiter(interval time.Duration) *limiter { return &limiter{interval: interval} }

func (l *limiter) allow() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); l.last.IsZero() || now.Sub(l.last) >= l.interval {
		l.last = now
		return true
	}
	return false
}
