package instances

import (
	"sync"
	"time"
)

// Throttle limits how often an action is performed per name. It is safe for concurrent use.
type Throttle struct {
	mu   sync.Mutex // guards last
	last map[string]time.Time
}

// Wait returns 0 if the interval has passed since it last returned 0 for this name. Otherwise, it returns the remaining
// time.
func (t *Throttle) Wait(name string, interval time.Duration) (remaining time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if remaining = interval - now.Sub(t.last[name]); remaining > 0 {
		return remaining
	}
	if t.last == nil {
		t.last = map[string]time.Time{}
	}
	t.last[name] = now
	return 0
}

// Forget resets a name.
func (t *Throttle) Forget(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.last, name)
}
