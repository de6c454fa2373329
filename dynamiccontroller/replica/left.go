package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// StillRunning is implemented by errors of a [Runnable] that has returned while some of its work is still running.
type StillRunning interface {
	error
	// Returned returns a channel that is closed when all the work has returned.
	Returned() <-chan struct{}
}

// leftWork is work that a runnable has left running when it returned.
type leftWork struct {
	runnable string
	returned <-chan struct{} // closed when the work has returned; nil if this is not known
}

// leftIn returns a channel for each branch of the error's tree that reports work that is still running. The channel is
// closed when the work has returned. It is nil for an unclean branch that is not a StillRunning.
func leftIn(ctx context.Context, err error) (left []<-chan struct{}) {
	running, ok := err.(StillRunning) //nolint:errorlint // each error of the tree is compared
	if ok {
		return []<-chan struct{}{running.Returned()}
	}
	if isCleanExit(ctx, err) && !hasReturned(err) {
		return nil
	}
	switch wrapper := err.(type) { //nolint:errorlint // each error of the tree is compared
	case interface{ Unwrap() error }:
		if inner := wrapper.Unwrap(); inner != nil {
			return leftIn(ctx, inner)
		}
	case interface{ Unwrap() []error }:
		for _, branch := range wrapper.Unwrap() {
			if branch != nil {
				left = append(left, leftIn(ctx, branch)...)
			}
		}
		return left
	}
	return []<-chan struct{}{nil}
}

// hasReturned reports whether the error, or one that it wraps, is a StillRunning.
func hasReturned(err error) bool {
	var running StillRunning
	return errors.As(err, &running)
}

// leftovers is the work that the runnables of the last term have left running.
type leftovers struct {
	mu    sync.Mutex // guards the fields below
	work  []leftWork
	until time.Time // when work counts as returned if it is not known when it returns
}

func (l *leftovers) set(work []leftWork, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.work, l.until = work, until
}

// get returns the work that has not returned, and the time from which on nothing else is waited for than work that is
// known to be running.
func (l *leftovers) get() (work []leftWork, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.work = slices.DeleteFunc(slices.Clone(l.work), func(w leftWork) bool {
		if w.returned == nil {
			return !time.Now().Before(l.until)
		}
		select {
		case <-w.returned:
			return true
		default:
			return false
		}
	})
	return l.work, l.until
}

// known returns the names of the runnables whose work is known to be running.
func (l *leftovers) known() string {
	work, _ := l.get()
	var names []string
	for _, w := range work {
		if w.returned != nil {
			names = append(names, w.runnable)
		}
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

// wait waits until the work has returned. It returns an error that names the runnables if ctx is cancelled first, and
// nil otherwise, also if stop is closed.
func (l *leftovers) wait(ctx context.Context, stop <-chan struct{}) error {
	for {
		work, until := l.get()
		if len(work) == 0 {
			return nil
		}
		var expired <-chan time.Time
		if work[0].returned == nil {
			expired = time.After(time.Until(until))
		}
		select {
		case <-work[0].returned:
		case <-expired:
		case <-stop:
			return nil
		case <-ctx.Done():
			if names := l.known(); names != "" {
				return fmt.Errorf("work of an earlier term has not returned: %s", names)
			}
			return nil
		}
	}
}
