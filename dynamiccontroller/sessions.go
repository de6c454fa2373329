package dynamiccontroller

import (
	"context"
	"sync"
)

// session is a period during which the watches are running, because RunWatches or a run is. It can span many runs.
type session struct {
	users int
	stop  chan func() // once the watches have started, receives a function that stops them
}

// sessions holds the current session.
type sessions struct {
	start func() (stop func()) // starts the watches; stop waits for them to end

	mu      sync.Mutex // guards current and its users
	current *session   // nil while no watches are running
}

// acquire starts the watches, unless they are already running. Before starting them, it waits until the given channels
// are closed or ctx is cancelled. The caller must call release once. When the last user releases the watches, release
// stops them and waits for them to end.
func (s *sessions) acquire(ctx context.Context, ready []<-chan struct{}) (release func()) {
	s.mu.Lock()
	used := s.current
	first := used == nil
	if first {
		used = &session{stop: make(chan func(), 1)}
		s.current = used
	}
	used.users++
	s.mu.Unlock()
	if first {
		limit, cancel := context.WithTimeout(ctx, maxHold) // user code that hangs must not keep all types from being watched
		for _, done := range ready {
			await(limit, done)
		}
		cancel()
		used.stop <- s.start()
	}
	return func() {
		if s.release(used) {
			stop := <-used.stop
			stop()
		}
	}
}

// release removes a user from a session. It reports whether that was the last one.
func (s *sessions) release(used *session) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if used.users--; used.users > 0 {
		return false
	}
	s.current = nil
	return true
}
