package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Runnable is a component of a replica.
//
// Run blocks until ctx is cancelled and everything that it started has ended. Returning earlier counts as a failure,
// with or without an error.
//
// After ctx is cancelled, Run ends cleanly if it returns nil or one of these errors: ctx.Err(), context.Cause(ctx),
// [context.DeadlineExceeded], [net/http.ErrServerClosed] or [ErrNotLeading]. They can be wrapped, and joined with each
// other. A clean end asserts that nothing that Run started is still running, so that the lease can be released. Run
// must return another error if it cannot assert this. For example, the error of a DynamicController lists the handlers
// that are still running, and Run must not wrap the DeadlineExceeded that http.Server.Shutdown returns while
// connections are active. The lease is then left to expire. The same applies if Run panics, calls runtime.Goexit, or
// returns an invalid error: a typed nil, or an error with a method that panics.
//
// An error can report when the work that is still running has returned, as that of a DynamicController does. It, or an
// error that it wraps, is then a [StillRunning]. Before the work has returned, the replica does not campaign for the
// lease. After another error, the replica does not campaign until another one could have acquired the lease.
type Runnable interface {
	Run(ctx context.Context) error
}

// RunFunc is a function that implements [Runnable].
type RunFunc func(ctx context.Context) error

// Run calls f.
func (f RunFunc) Run(ctx context.Context) error { return f(ctx) }

// namedRunnable is a registered runnable.
type namedRunnable struct {
	name     string
	runnable Runnable
}

// runnableGroup runs a set of runnables under one context, and waits until they have returned after the context is
// cancelled.
type runnableGroup struct {
	launch    func(namedRunnable) // runs a runnable in a goroutine
	cancelled func() bool         // reports whether the context is cancelled
	failed    chan error          // receives a failure before the context is cancelled; has a buffer of one
	joined    chan struct{}       // closed when stop has been called and no runnable is running

	mu       sync.Mutex // guards the fields below
	running  []string
	stopped  bool    // no further runnable is started
	errs     []error // all exit errors except those sent to failed
	unjoined []error // the exit errors after which goroutines may still be running
	left     []leftWork
}

func newRunnableGroup(ctx context.Context) *runnableGroup {
	cancelled := func() bool { return ctx.Err() != nil }
	g := &runnableGroup{failed: make(chan error, 1), joined: make(chan struct{}), cancelled: cancelled}
	g.launch = func(n namedRunnable) {
		go func() {
			e := exit{err: errGoexit, unjoined: true, left: []<-chan struct{}{nil}}
			defer func() { g.returned(n.name, e, cancelled()) }()
			e = runToExit(ctx, n.runnable)
		}()
	}
	return g
}

// start starts a runnable unless the group is stopped or its context is cancelled.
func (g *runnableGroup) start(n namedRunnable) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped || g.cancelled() {
		return
	}
	g.running = append(g.running, n.name)
	g.launch(n)
}

// stop prevents further starts. It does not cancel the context. The channel joined is closed when all runnables have
// returned.
func (g *runnableGroup) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.stopped {
		g.stopped = true
		g.closeIfJoinedLocked()
	}
}

func (g *runnableGroup) closeIfJoinedLocked() {
	if g.stopped && len(g.running) == 0 {
		close(g.joined)
	}
}

// returned records the exit of a runnable. The parameter cancelled reports whether the context was cancelled before the
// runnable returned.
func (g *runnableGroup) returned(name string, e exit, cancelled bool) {
	failure := fmt.Errorf("runnable %q failed: %w", name, e.err)
	unclean := fmt.Errorf("runnable %q did not stop cleanly: %w", name, e.err)

	g.mu.Lock()
	defer g.mu.Unlock()
	g.running = slices.DeleteFunc(g.running, func(r string) bool { return r == name })
	switch {
	case !cancelled && !g.stopped:
		if e.unjoined {
			g.unjoined = append(g.unjoined, failure)
			g.addLeftLocked(name, e)
		}
		select {
		case g.failed <- failure:
		default: // one failure stops the group
			g.errs = append(g.errs, failure)
		}
	case !e.clean:
		g.errs, g.unjoined = append(g.errs, unclean), append(g.unjoined, unclean)
		g.addLeftLocked(name, e)
	}
	g.closeIfJoinedLocked()
}

// remaining lists the runnables that have not returned.
func (g *runnableGroup) remaining() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(g.running, ", ")
}

// exitErrors returns two joined errors. The first contains all exit errors except those sent to failed. The second
// contains the exit errors after which goroutines of a runnable may still be running.
func (g *runnableGroup) exitErrors() (errs, unjoined error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return errors.Join(g.errs...), errors.Join(g.unjoined...)
}

func (g *runnableGroup) addLeftLocked(name string, e exit) {
	for _, returned := range e.left {
		g.left = append(g.left, leftWork{name, returned})
	}
}

// leftRunning returns the work that may still be running: that of runnables that have returned, and the runnables
// themselves.
func (g *runnableGroup) leftRunning() []leftWork {
	g.mu.Lock()
	defer g.mu.Unlock()
	left := slices.Clone(g.left)
	for _, name := range g.running {
		left = append(left, leftWork{name, g.joined})
	}
	return left
}
