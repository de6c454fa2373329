package typewatch

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Phase is how a watch stands, in a word.
type Phase string

const (
	// Stopped: nothing runs the watch.
	Stopped Phase = "Stopped"
	// Syncing: the first list is on its way.
	Syncing Phase = "Syncing"
	// Synced: the store holds the objects and a watch is open, or was when last heard of.
	Synced Phase = "Synced"
	// NotFound: the API server does not serve the type (404), or a type event reported it gone.
	NotFound Phase = "NotFound"
	// Forbidden: the client may not list or watch the type (401, 403).
	Forbidden Phase = "Forbidden"
	// Failing: requests fail for another reason.
	Failing Phase = "Failing"
)

// State is a phase, since when, and for a failure the server's own words.
type State struct {
	Phase   Phase
	Message string
	Since   time.Time
}

// health makes a state of how the requests end.
type health struct {
	observe func(State)

	mu       sync.Mutex // guards what follows, and the order of observe's calls
	running  bool
	listErr  error
	watchErr error
	isSynced bool
	current  State
}

func newHealth(observe func(State)) *health {
	return &health{observe: observe, current: State{Phase: Stopped, Since: time.Now()}}
}

func (h *health) state() State {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.current
}

func (h *health) start() { h.update(func() { h.running = true }) }

func (h *health) stop() {
	h.update(func() {
		h.running, h.isSynced, h.listErr, h.watchErr = false, false, nil, nil
	})
}

// filled says that the store holds a whole list, which its readers see.
func (h *health) filled() {
	h.update(func() { h.isSynced = true })
}

// listed and watching say how a request ended. One that ended because its context did says nothing.
func (h *health) listed(ctx context.Context, err error) {
	if ctx.Err() == nil {
		h.update(func() { h.listErr = err })
	}
}

func (h *health) watching(ctx context.Context, err error) {
	if ctx.Err() == nil {
		h.update(func() {
			h.watchErr = err
			if err == nil {
				h.listErr = nil
			}
		})
	}
}

// vanished sets the state of a running watch to NotFound until its next request completes.
func (h *health) vanished() {
	h.update(func() {
		if h.running {
			h.listErr, h.watchErr = errVanished, nil
		}
	})
}

// errVanished is the error of a type that is gone according to a type event.
var errVanished = &apierrors.StatusError{ErrStatus: metav1.Status{
	Reason: metav1.StatusReasonNotFound, Message: "a type event reported that the type is gone",
}}

func (h *health) update(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
	phase, message := Stopped, ""
	switch {
	case !h.running:
	case h.watchErr != nil:
		phase, message = phaseOf(h.watchErr), h.watchErr.Error()
	case h.listErr != nil:
		phase, message = phaseOf(h.listErr), h.listErr.Error()
	case h.isSynced:
		phase = Synced
	default:
		phase = Syncing
	}
	if phase == h.current.Phase && message == h.current.Message {
		return
	}
	if phase == h.current.Phase {
		h.current.Message = message
		return
	}
	h.current = State{Phase: phase, Message: message, Since: time.Now()}
	if h.observe != nil {
		h.observe(h.current)
	}
}

// phaseOf is the one place that makes a phase of an error.
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
