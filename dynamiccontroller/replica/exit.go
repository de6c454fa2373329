package replica

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/dynamic-controller/engine/internal/protect"
)

// exit describes how a runnable returned. Code that uses an exit calls no methods of the error that the runnable
// returned, except through errors.Is and errors.As.
type exit struct {
	clean    bool              // the error is one that Runnable permits after the context is cancelled
	unjoined bool              // goroutines of the runnable may still be running
	err      error             // never nil
	left     []<-chan struct{} // of work that is still running; see leftIn
}

// runToExit runs the runnable and classifies the error that it returns. If the runnable, or a method of the error,
// calls runtime.Goexit, runToExit does not return.
func runToExit(ctx context.Context, r Runnable) exit {
	var err error
	if panicked := protect.Call(func() { err = r.Run(ctx) }); panicked != nil {
		return invalidExit(panicked)
	}
	if err == nil {
		return exit{clean: true, err: errors.New("returned before its context was cancelled")}
	}
	var e exit
	text, mistake := protect.Error("runnable", err, func() {
		var invalid *invalidExitError
		e.clean, e.unjoined = isCleanExit(ctx, err), errors.As(err, &invalid)
		if e.left = leftIn(ctx, err); hasReturned(err) {
			e.clean, e.unjoined = false, true
		}
	})
	if mistake != nil {
		return invalidExit(mistake)
	}
	e.err = &returnedError{text: text, err: err}
	return e
}

func invalidExit(mistake *protect.Mistake) exit {
	text := mistake.Error()
	if mistake.Stack != nil {
		text = fmt.Sprintf("%s\n%s", text, mistake.Stack)
	}
	return exit{err: &invalidExitError{text}, unjoined: true, left: []<-chan struct{}{nil}}
}

// isCleanExit reports whether every branch of err's tree contains an error that Runnable permits after its context is
// cancelled.
func isCleanExit(ctx context.Context, err error) bool {
	permitted := []error{
		nil, ctx.Err(), context.Cause(ctx), context.DeadlineExceeded, http.ErrServerClosed, ErrNotLeading,
	}
	if slices.Contains(permitted, err) {
		return true
	}
	switch wrapper := err.(type) { //nolint:errorlint // each error of the tree is compared
	case *refusalError:
		return true // the reason only explains why the write failed
	case interface{ Unwrap() error }:
		inner := wrapper.Unwrap()
		return inner != nil && isCleanExit(ctx, inner)
	case interface{ Unwrap() []error }:
		branches := wrapper.Unwrap()
		return len(branches) > 0 && !slices.ContainsFunc(branches, func(b error) bool { return !isCleanExit(ctx, b) })
	}
	return false
}

// returnedError wraps the error from a runnable and has a fixed text, so that logging it calls no method of the wrapped
// error.
type returnedError struct {
	text string
	err  error
}

func (e *returnedError) Error() string { return e.text }
func (e *returnedError) Unwrap() error { return e.err }

// invalidExitError is the error for a runnable that panicked, called runtime.Goexit or returned an invalid error.
type invalidExitError struct{ text string }

func (e *invalidExitError) Error() string { return e.text }

// errGoexit is the error for a runnable that called runtime.Goexit, as FailNow in package testing does.
var errGoexit error = &invalidExitError{"the runnable called runtime.Goexit"}
