package platform

import (
	"sync"
	"time"
)

// pace remembers when something was last done for each of many, so that it is not done more often than it is worth. It may
// be used concurrently.
type pace struct {
	mu   sync.Mutex // guards last
	last map[string]time.Time
}

// due tells whether it is time again, which counts as done now, or how long it takes until it is.
func (p *pace) due(name string, every time.Duration, now time.Time) (wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if wait = every - now.Sub(p.last[name]); wait > 0 {
		return wait
	}
	if p.last == nil {
		p.last = map[string]time.Time{}
	}
	p.last[name] = now
	return 0
}

func (p *pace) forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.last, name)
}
