package typewatch

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Phase summarizes the state of a watch. For a description of the phases, see dynamiccontroller.TypeState.
type Phase string

const (
	Stopped   Phase = "Stopped"
	Syncing   Phase = "Syncing"
	Synced    Phase = "Synced"
	NotFound  Phase = "NotFound"
	Forbidden Phase = "Forbidden"
	Failing   Phase = "Failing"
)

// State is the state of a watch.
type State struct {
	Phase   Phase
	Message string    // the latest error, if any
	Since   time.Time // when the phase began
}

// watchState derives a State from the results of requests and passes type events to the reflectors of a watch.
type watchState struct {
	observe    func(State) // must not be nil
	current    atomic.Pointer[State]
	reflectors []*reflectorState

	mu sync.Mutex // guards the states of the reflectors; held while observe is called
}

// reflectorState holds the results of one reflector's requests. Its fields are guarded by the watchState's lock.
type reflectorState struct {
	*watchState
	wake          chan struct{} // wakes the reflector from its backoff; holds one value; not guarded
	running       bool
	synced        bool
	listErr       error
	watchErr      error
	listErrNewest bool // whether listErr is newer than watchErr
	attempted     bool // whether the first attempt of the run has begun
	gone          bool // whether the type has vanished since the reflector last checked
	endAttempt    context.CancelFunc
}

func newWatchState(reflectors int, observe func(State)) *watchState {
	s := &watchState{observe: observe}
	for range reflectors {
		s.reflectors = append(s.reflectors,
			&reflectorState{watchState: s, wake: make(chan struct{}, 1), endAttempt: func() {}})
	}
	s.current.Store(&State{Phase: Stopped, Since: time.Now()})
	return s
}

func (s *reflectorState) begin() { s.update(func() { s.running = true }) }

func (s *reflectorState) end() {
	s.update(func() {
		s.running, s.synced, s.listErr, s.watchErr = false, false, nil, nil
		s.attempted, s.gone = false, false
	})
}

// listFailed records the error from a list. Only completing a list or opening a watch clears the error.
func (s *reflectorState) listFailed(err error) {
	s.update(func() { s.listErr, s.listErrNewest = err, true })
}

// watchResult records whether a watch was opened. If it was refused, err is the reason.
func (s *reflectorState) watchResult(err error) {
	s.update(func() {
		s.watchErr, s.listErrNewest = err, false
		if err == nil {
			s.listErr = nil
		}
	})
}

// listed records that the store holds a complete list. If watching is true, the list was a streaming list that
// continues as a watch. Otherwise, an earlier watch error is kept until a watch is opened.
func (s *reflectorState) listed(watching bool) {
	s.update(func() {
		s.synced, s.listErr = true, nil
		if watching {
			s.watchErr = nil
		}
	})
}

// errVanished is the error that is recorded when a type event reports that the type is gone.
var errVanished = &apierrors.StatusError{ErrStatus: metav1.Status{
	Reason: metav1.StatusReasonNotFound, Message: "a type event reported that the type is gone",
}}

// markVanished sets a running watch to NotFound until its next request fails or its next list completes. If a reflector
// has started an attempt in this run, the attempt is cancelled and the reflector removes its objects from the store.
// Otherwise, the result of the reflector's first list determines the phase.
func (s *watchState) markVanished() {
	s.update(func() {
		for _, r := range s.reflectors {
			if r.running {
				r.listErr, r.watchErr, r.listErrNewest = errVanished, nil, true
				r.gone = r.attempted
				r.endAttempt()
			}
		}
	})
	s.endBackoff()
}

// endBackoff ends the current backoff of each reflector. If an attempt is in progress, there is no backoff after it.
// The attempt can still fail, because NotFound is returned for a few milliseconds after a CRD becomes established.
func (s *watchState) endBackoff() {
	for _, r := range s.reflectors {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// beginAttempt returns the context for an attempt (one call to ListAndWatch). markVanished cancels this context.
func (s *reflectorState) beginAttempt(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempted, s.endAttempt = true, cancel
	if s.gone {
		cancel()
	}
	return ctx, cancel
}

// relist cancels all current attempts, so that the reflectors relist.
func (s *watchState) relist() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.reflectors {
		r.endAttempt()
	}
}

// takeVanished reports whether the type has vanished since the last call.
func (s *reflectorState) takeVanished() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	gone := s.gone
	s.gone = false
	return gone
}

// notify calls observe with the current state. The state does not change during the call.
func (s *watchState) notify(observe func(State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	observe(*s.current.Load())
}

// err returns the error that determines the phase, or nil.
func (s *reflectorState) err() error {
	if s.listErr != nil && (s.watchErr == nil || s.listErrNewest) {
		return s.listErr
	}
	return s.watchErr
}

// update applies a change to the state. It preserves Since unless the phase changes.
func (s *watchState) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	running, synced, err := true, true, error(nil)
	for _, r := range s.reflectors {
		running, synced, err = running && r.running, synced && r.synced, cmp.Or(err, r.err())
	}
	next := State{Phase: Stopped, Since: time.Now()}
	switch {
	case !running:
	case err != nil:
		next.Phase, next.Message = phaseOf(err), err.Error()
	case synced:
		next.Phase = Synced
	default:
		next.Phase = Syncing
	}
	last := s.current.Load()
	if next.Phase == last.Phase {
		if next.Message != last.Message {
			next.Since = last.Since
			s.current.Store(&next)
		}
		return
	}
	s.current.Store(&next)
	s.observe(next)
}

// phaseOf returns the phase of a watch whose latest request failed with err.
func phaseOf(err error) Phase {
	switch {
	case apierrors.IsNotFound(err):
		return NotFound
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return Forbidden
	default:
		return Failing
	}
}
