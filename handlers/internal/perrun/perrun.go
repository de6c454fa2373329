// Package perrun stores state that must not outlive a run of the controller.
package perrun

import (
	"context"
	"maps"
	"slices"
	"sync"
	"weak"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// State stores one T per run. The zero value is an empty State, and the zero value of T must be ready to use. A State
// is safe for concurrent use and must not be copied.
type State[T any] struct {
	mu   sync.Mutex // guards runs
	runs map[context.Context]*T
}

// For returns the T of the run that called the handler with ctx. The T is created on first use, and removed once the
// run has ended and all of its handlers have returned. If ctx is not derived from a handler's context, For returns a T
// that is shared by all such contexts and never removed.
func (s *State[T]) For(ctx context.Context) *T {
	run := dynamiccontroller.RunContext(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.runs[run]
	if state == nil {
		state = new(T)
		if s.runs == nil {
			s.runs = map[context.Context]*T{}
		}
		s.runs[run] = state
		// The run must not keep an unused State alive.
		reference := weak.Make(s)
		context.AfterFunc(run, func() {
			if s := reference.Value(); s != nil {
				s.remove(run)
			}
		})
	}
	return state
}

// All returns all T that have not been removed.
func (s *State[T]) All() []*T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.runs))
}

func (s *State[T]) remove(run context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.runs, run)
}
