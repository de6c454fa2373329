package listwatch

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Phase summarizes the state of a type's list and watch.
type Phase string

// For a description of the phases, see dynamiccontroller.TypeState.
const (
	Stopped   Phase = "Stopped"
	Syncing   Phase = "Syncing"
	Synced    Phase = "Synced"
	NotFound  Phase = "NotFound"
	Forbidden Phase = "Forbidden"
	Failing   Phase = "Failing"
)

const (
	// Tolerance is how long a type stays in its phase while its watch is not open, unless a request fails. It covers the
	// time between two watches, and between the first list of a run and its watch.
	Tolerance = 5 * time.Second
	// PollTolerance is the same for a type that is polled, counted from its last complete list.
	PollTolerance = 2 * PollInterval
	// steadyAfter is how long a watch must be open until it is trusted, if the previous one failed after it was opened. It
	// is shorter than Tolerance, so that a single failure followed by a quick relist does not change the phase.
	steadyAfter = 3 * time.Second
	// slowList is how long a type can be Syncing without a message.
	slowList = 10 * time.Second
)

// State is the state of a Loop.
type State struct {
	Phase   Phase
	Err     error     // the problem, if Phase reports one
	Message string    // the text of Err; in Syncing, after slowList, what the first list waits for
	Since   time.Time // when the phase began

	Open        time.Time // since when the watch is open; zero if it is not open
	LastEvent   time.Time // when the last event, bookmark or list arrived; zero if there was none
	NextAttempt time.Time // when the next request is due; zero if none is waiting
	LastProblem string    // the last problem, also if it is over
	ProblemAt   time.Time // when the last problem occurred

	ListingSince time.Time // when the current list began; zero if no list is in progress
	ListItems    int       // the items that it has received

	Lacks Lacks // what the server was found to lack
}

// problem is an outcome that can change the phase.
type problem struct {
	phase  Phase
	err    error
	soft   bool // see rule
	opened bool // it occurred after the watch was opened
}

// progress is that of the list that is in progress, or of the last one.
type progress struct {
	items     atomic.Int64
	answered  atomic.Bool // an item or a page has arrived
	throttled atomic.Bool // the client's rate limiter delays the list
	queued    atomic.Bool // the next request waits at the gate
}

func (p *progress) reset() {
	p.items.Store(0)
	p.answered.Store(false)
}

// health derives the State of a Loop. Its methods are safe for concurrent use.
type health struct {
	observe  func() // called without a lock when the phase or the message has changed
	progress progress

	mu        sync.Mutex // guards the fields below
	state     State
	running   bool
	began     time.Time // when the run began
	listed    bool      // a list is complete in this run
	good      time.Time // when the watch was last open, or the first list of the run was complete
	tolerance time.Duration
	problem   *problem
	request   string // the request that is waiting for a response
	waits     bool   // the message describes the progress of the request
	timer     *time.Timer
}

// errNotOpen is returned by deriveLocked if no request has failed.
var errNotOpen = errors.New("the watch is not open")

func newHealth(observe func()) *health {
	return &health{observe: observe, state: State{Phase: Stopped, Since: time.Now()}}
}

// State returns a snapshot of the state.
func (h *health) State() State {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.state
	if !s.ListingSince.IsZero() {
		s.ListItems = int(h.progress.items.Load())
	}
	if h.waits {
		s.Message = h.messageLocked(s.Err)
	}
	return s
}

// messageLocked returns the message for what deriveLocked has returned.
func (h *health) messageLocked(err error) string {
	switch {
	case err != nil && h.waits:
		return errNotOpen.Error() + "; " + h.waitsForLocked()
	case err != nil:
		return err.Error()
	case h.waits:
		return h.waitsForLocked()
	default:
		return ""
	}
}

// waitsForLocked describes what the current request waits for.
func (h *health) waitsForLocked() string {
	p := &h.progress
	switch {
	case p.queued.Load():
		return "the next request waits until those of other types have been answered"
	case h.state.ListingSince.IsZero():
	case p.throttled.Load():
		return fmt.Sprintf("the client's rate limiter delays the %s", h.request)
	case p.answered.Load():
		return fmt.Sprintf("the %s is not complete yet; items so far: %d", h.request, p.items.Load())
	}
	return fmt.Sprintf("no response to the %s request yet", h.request)
}

func (h *health) begin() {
	h.update(func(now time.Time) {
		h.running, h.listed, h.began = true, false, now
		h.good, h.tolerance, h.problem = now, Tolerance, nil
	})
}

func (h *health) end() {
	h.update(func(time.Time) {
		h.running, h.listed, h.problem = false, false, nil
		h.state.Open, h.state.NextAttempt, h.state.ListingSince = time.Time{}, time.Time{}, time.Time{}
		if h.timer != nil {
			h.timer.Stop()
		}
	})
}

// sent records that a request is sent.
func (h *health) sent(r request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.request, h.state.NextAttempt = r.String(), time.Time{}
	if r != watchRequest {
		h.state.ListingSince = time.Now()
		h.progress.reset()
	}
}

// relisting records that a list next to an open watch has begun or ended.
func (h *health) relisting(began bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state.ListingSince = time.Time{}
	if began {
		h.state.ListingSince = time.Now()
		h.progress.reset()
	}
}

// ended records that a request has ended, and when the next one is due.
func (h *health) ended(delay time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state.NextAttempt, h.state.ListingSince = time.Now().Add(delay), time.Time{}
}

// completed records that the store holds a complete list. For a streaming list, the watch is open.
func (h *health) completed(streaming, polled bool, lacks Lacks) {
	h.update(func(now time.Time) {
		if !h.listed {
			h.listed, h.good = true, now
		}
		h.state.Lacks, h.state.ListingSince = lacks, time.Time{}
		if streaming {
			h.state.Open = now
		}
		if h.tolerance = Tolerance; polled {
			h.problem, h.good, h.tolerance = nil, now, PollTolerance
		}
	})
}

// opened records that a watch is open.
func (h *health) opened() { h.update(func(now time.Time) { h.state.Open = now }) }

// closed records that no watch is open.
func (h *health) closed() {
	h.update(func(now time.Time) {
		if !h.state.Open.IsZero() && h.problem == nil {
			h.good = now
		}
		h.state.Open = time.Time{}
	})
}

// failed records a problem. If it has no phase, it is only kept as the last problem.
func (h *health) failed(p problem) {
	h.update(func(now time.Time) {
		if p.phase != "" {
			h.problem = &p
		}
		h.state.LastProblem, h.state.ProblemAt = p.err.Error(), now
	})
}

// vanish records that the type is gone. It returns false if the Loop is not running.
func (h *health) vanish(err error) (running bool) {
	h.update(func(now time.Time) {
		if running = h.running; running {
			h.problem, h.state.Open = &problem{phase: NotFound, err: err}, time.Time{}
			h.state.LastProblem, h.state.ProblemAt = err.Error(), now
		}
	})
	return running
}

// update applies a change, and derives the phase from it.
func (h *health) update(change func(now time.Time)) {
	if h.updated(change) {
		h.observe()
	}
}

func (h *health) updated(change func(now time.Time)) (differs bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	change(now)
	phase, until, err := h.deriveLocked(now)
	h.waits = errors.Is(err, errNotOpen) || phase == Syncing && !now.Before(h.began.Add(slowList))
	message := h.messageLocked(err)
	if errors.Is(err, errNotOpen) {
		err = errors.New(message)
	}
	if !until.IsZero() {
		h.checkLocked(until.Sub(now))
	}
	differs = phase != h.state.Phase || message != h.state.Message
	if phase != h.state.Phase {
		h.state.Since = now
	}
	h.state.Phase, h.state.Err, h.state.Message = phase, err, message
	return differs
}

// deriveLocked returns the phase, the time at which it has to be derived again, or zero, and the problem.
func (h *health) deriveLocked(now time.Time) (phase Phase, until time.Time, err error) {
	open := !h.state.Open.IsZero()
	steady := h.state.Open.Add(steadyAfter)
	if p := h.problem; p != nil && open && (!p.opened || !now.Before(steady)) {
		h.problem = nil
	}
	limit := h.good.Add(h.tolerance)
	tolerated := now.Before(limit)
	switch p := h.problem; {
	case !h.running:
		return Stopped, time.Time{}, nil
	case p != nil && (!p.soft || !tolerated):
		if open {
			until = steady
		}
		return p.phase, until, p.err
	case open && p == nil:
		return Synced, time.Time{}, nil
	case h.listed && tolerated:
		return Synced, limit, nil
	case !h.listed && p != nil:
		return Syncing, limit, nil
	case !h.listed && now.Before(h.began.Add(slowList)):
		return Syncing, h.began.Add(slowList), nil
	case !h.listed:
		return Syncing, time.Time{}, nil
	default:
		return Failing, time.Time{}, errNotOpen
	}
}

// checkLocked sets the timer after which the phase is derived again.
func (h *health) checkLocked(delay time.Duration) {
	if h.timer == nil {
		h.timer = time.AfterFunc(delay, func() { h.update(func(time.Time) {}) })
		return
	}
	h.timer.Reset(delay)
}
