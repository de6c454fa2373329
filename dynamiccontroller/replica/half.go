package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Runnable is a part of a replica. Run blocks until ctx ends and all that it started has ended; then it returns nil or ctx's
// error. To return before ctx ended is a failure, with an error or without.
//
// That it returned is what says that nothing which it started runs any more: then the lease may be released. An error that it
// returns after ctx ended, other than ctx's or beside that, says that it did not end as it should, as a DynamicController's
// does that names handlers which still run. The lease is then not released but left to expire. The same applies if Run panics,
// calls runtime.Goexit, or returns an invalid error: a typed nil, or an error with a method that panics.
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
			e := exit{err: errGoexit, doubtful: true}
			defer func() { h.returned(n.name, e, ctx.Err() != nil) }()
			e = runToExit(ctx, n.runnable)
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

// returned records the exit of a runnable. Ended reports whether the half's context has ended.
func (h *half) returned(name string, e exit, ended bool) {
	failure := fmt.Errorf("runnable %q failed: %w", name, e.err)
	unclean := fmt.Errorf("runnable %q did not end as it should: %w", name, e.err)

	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = slices.DeleteFunc(h.running, func(r string) bool { return r == name })
	switch {
	case !ended && !h.ending:
		if e.doubtful {
			h.doubt = append(h.doubt, failure)
		}
		select {
		case h.failed <- failure:
		default: // one failure is enough to end the half
			h.unclean = append(h.unclean, failure)
		}
	case !e.clean:
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
