package replica

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
)

// Runnable is a part of a replica. Run blocks until ctx ends and all that it started has ended; then it returns nil or ctx's
// error. To return before ctx ended is a failure, with an error or without.
//
// That it returned is what says that nothing which it started runs any more: then the lease may be released. An error that it
// returns after ctx ended, other than ctx's or beside that, says that it did not end as it should, as a DynamicController's
// does that names handlers which still run. That, and a panic, and the end of its goroutine, which say nothing of what it
// started, keep the lease from being released: it is left to expire.
type Runnable interface {
	Run(ctx context.Context) error
}

// RunFunc makes a Runnable of a function.
type RunFunc func(ctx context.Context) error

// Run calls the function.
func (f RunFunc) Run(ctx context.Context) error { return f(ctx) }

// named is a runnable as it was registered.
type named struct {
	name     string
	runnable Runnable
}

// half is one life of a set of runnables: they are started under one context, and joined when that ended.
type half struct {
	launch func(named)   // starts one under the half's context
	over   func() bool   // whether that context has ended
	failed chan error    // the first failure, before the context ended
	joined chan struct{} // closed when nothing runs any more and nothing will start

	mu      sync.Mutex // guards what follows
	running []string
	ending  bool    // nothing starts any more
	unclean []error // what went wrong but for the first failure
	doubt   []error // the part of all that which leaves open whether all has ended that was started
}

func newHalf(ctx context.Context) *half {
	h := &half{failed: make(chan error, 1), joined: make(chan struct{}), over: func() bool { return ctx.Err() != nil }}
	h.launch = func(n named) {
		go func() {
			err := errGoexit
			defer func() { h.returned(ctx, n.name, err) }()
			err = protect(ctx, n.runnable)
		}()
	}
	return h
}

// start starts a runnable, unless the half is about to end or its context has ended.
func (h *half) start(n named) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ending || h.over() {
		return
	}
	h.running = append(h.running, n.name)
	h.launch(n)
}

// end lets nothing start any more. The half is joined when what runs has returned, for which its context must end.
func (h *half) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ending {
		h.ending = true
		h.joinLocked()
	}
}

func (h *half) joinLocked() {
	if h.ending && len(h.running) == 0 {
		close(h.joined)
	}
}

// returned records how a runnable ended. It calls the methods of err, which are the caller's, before it locks mu.
func (h *half) returned(ctx context.Context, name string, err error) {
	ended, clean := ctx.Err() != nil, saysThatItEnded(ctx, err)
	if err == nil {
		err = errors.New("returned before its context was cancelled")
	}
	failure := fmt.Errorf("runnable %q failed: %w", name, err)
	unclean := fmt.Errorf("runnable %q did not end as it should: %w", name, err)
	var panicked *panicError
	doubtful := errors.As(err, &panicked)

	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = slices.DeleteFunc(h.running, func(r string) bool { return r == name })
	switch {
	case !ended && !h.ending:
		if doubtful {
			h.doubt = append(h.doubt, failure)
		}
		select {
		case h.failed <- failure:
		default: // one failure is enough to end the half
			h.unclean = append(h.unclean, failure)
		}
	case !clean:
		h.unclean, h.doubt = append(h.unclean, unclean), append(h.doubt, unclean)
	}
	h.joinLocked()
}

// left lists what has not returned.
func (h *half) left() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.running, ", ")
}

// complaints is what went wrong but for the first failure, and the doubts that it leaves.
func (h *half) complaints() (unclean, doubt error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return errors.Join(h.unclean...), errors.Join(h.doubt...)
}

// saysThatItEnded tells an error that says no more than that ctx ended, on every branch of it.
func saysThatItEnded(ctx context.Context, err error) bool {
	if err == nil {
		return true
	}
	if err == ctx.Err() || err == context.Cause(ctx) { //nolint:errorlint // each link is looked at here
		return true
	}
	switch wrapper := err.(type) { //nolint:errorlint // each link is looked at here
	case interface{ Unwrap() error }:
		inner := wrapper.Unwrap()
		return inner != nil && saysThatItEnded(ctx, inner)
	case interface{ Unwrap() []error }:
		branches := wrapper.Unwrap()
		return len(branches) > 0 && !slices.ContainsFunc(branches, func(b error) bool { return !saysThatItEnded(ctx, b) })
	}
	return false
}

// panicError is what a runnable's panic counts as.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string {
	if e.stack == nil {
		return fmt.Sprintf("panic: %v", e.value)
	}
	return fmt.Sprintf("panic: %v\n%s", e.value, e.stack)
}

// errGoexit is what is left of a runnable that called runtime.Goexit, as a test's FailNow does.
var errGoexit error = &panicError{value: "it ended its goroutine"}

func protect(ctx context.Context, r Runnable) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &panicError{value: value, stack: debug.Stack()}
		}
	}()
	return r.Run(ctx)
}
