package typewatch

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/dynamic-controller/engine/internal/listwatch"
)

// Phase summarizes the state of a watch. For a description of the phases, see dynamiccontroller.TypeState.
type Phase = listwatch.Phase

const (
	Stopped   = listwatch.Stopped
	Syncing   = listwatch.Syncing
	Synced    = listwatch.Synced
	NotFound  = listwatch.NotFound
	Forbidden = listwatch.Forbidden
	Failing   = listwatch.Failing
)

// State is the state of a watch. If the watch has several loops, one for each namespace, the state is that of the first
// loop that has a problem.
type State = listwatch.State

// watchState summarizes the states of a watch's loops, and passes type events to them.
type watchState struct {
	observe func(State)           // must not be nil
	loops   []*listwatch.Loop     // none if the watch is idle
	current atomic.Pointer[State] // the newest state that was observed

	mu       sync.Mutex // held while observe is called
	unsynced time.Time  // when the watch started or was last synced, if it is not synced now; guarded by mu
}

func newWatchState(observe func(State)) *watchState {
	s := &watchState{observe: observe}
	s.current.Store(&State{Phase: Stopped, Since: time.Now()})
	return s
}

// markVanished sets a running watch to NotFound until its next request fails or a watch is open again. If a loop has
// sent a request in this session, it removes its objects from the store. Otherwise, the result of its first list
// determines the phase.
func (s *watchState) markVanished() {
	for _, l := range s.loops {
		l.Vanish()
	}
}

// endBackoff ends the current delay of each loop. If a request is in progress, there is no delay after it. The request
// can still fail, because NotFound is returned for a few milliseconds after a CRD becomes established.
func (s *watchState) endBackoff() {
	for _, l := range s.loops {
		l.Wake()
	}
}

// relist ends all current requests, so that the loops relist.
func (s *watchState) relist() {
	for _, l := range s.loops {
		l.Relist()
	}
}

// notify calls observe with the current state. The state does not change during the call.
func (s *watchState) notify(observe func(State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	observe(*s.current.Load())
}

// snapshot returns the current state, including the times that are not observed.
func (s *watchState) snapshot() State {
	summary, observed := s.summary(), s.current.Load()
	if summary.Phase != observed.Phase { // otherwise, its message is newer
		summary.Message = observed.Message
	}
	summary.Phase, summary.Since = observed.Phase, observed.Since
	return summary
}

// update is called when the state of a loop has changed.
func (s *watchState) update() {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, last := s.summary(), s.current.Load()
	next.Since = time.Now()
	if next.Phase == last.Phase {
		next.Since = last.Since
		s.current.Store(&next)
		return
	}
	if last.Phase == Stopped || last.Phase == Synced {
		s.unsynced = next.Since
	}
	s.current.Store(&next)
	s.observe(next)
}

// summary returns the state of the loop that determines the state of the watch. The watch has synced when all loops
// have.
func (s *watchState) summary() State {
	if len(s.loops) == 0 {
		return State{}
	}
	order := map[Phase]int{Stopped: 0, NotFound: 1, Forbidden: 1, Failing: 1, Syncing: 2, Synced: 3}
	first := s.loops[0].State()
	for _, l := range s.loops[1:] {
		if state := l.State(); order[state.Phase] < order[first.Phase] {
			first = state
		}
	}
	return first
}
