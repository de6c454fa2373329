package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/dynamic-controller/engine/internal/protect"
)

// exit describes how a runnable returned. Using it calls no method of the error that the runnable returned, except through
// errors.Is and errors.As.
type exit struct {
	clean    bool  // the error reports only the end of the context
	doubtful bool  // nothing is known about the goroutines that the runnable started
	err      error // never nil
}

// runToExit runs the runnable and classifies the error that it returns. The runnable, or a method of its error, can call
// runtime.Goexit; runToExit does not return then.
func runToExit(ctx context.Context, r Runnable) exit {
	var err error
	if panicked := protect.Call(func() { err = r.Run(ctx) }); panicked != nil {
		return mistaken(panicked)
	}
	if err == nil {
		return exit{clean: true, err: errors.New("returned before its context was cancelled")}
	}
	var e exit
	text, mistake := protect.Error("runnable", err, func() {
		var wrapped *mistakeError
		e.clean, e.doubtful = saysThatItEnded(ctx, err), errors.As(err, &wrapped)
	})
	if mistake != nil {
		return mistaken(mistake)
	}
	e.err = &returnedError{text: text, err: err}
	return e
}

func mistaken(mistake *protect.Mistake) exit {
	text := mistake.Error()
	if mistake.Stack != nil {
		text = fmt.Sprintf("%s\n%s", text, mistake.Stack)
	}
	return exit{err: &mistakeError{text}, doubtful: true}
}

// saysThatItEnded reports whether every branch of err's tree is an error of ctx or its cause.
func saysThatItEnded(ctx context.Context, err error) bool {
	if err == nil {
		return true
	}
	if err == ctx.Err() || err == context.Cause(ctx) { //nolint:errorlint // each link is compared
		return true
	}
	switch wrapper := err.(type) { //nolint:errorlint // each link is compared
	case interface{ Unwrap() error }:
		inner := wrapper.Unwrap()
		return inner != nil && saysThatItEnded(ctx, inner)
	case interface{ Unwrap() []error }:
		branches := wrapper.Unwrap()
		return len(branches) > 0 && !slices.ContainsFunc(branches, func(b error) bool { return !saysThatItEnded(ctx, b) })
	}
	return false
}

// returnedError is the error of a runnable with a fixed text, so that logging it calls no method of the runnable's error.
type returnedError struct {
	text string
	err  error
}

func (e *returnedError) Error() string { return e.text }
func (e *returnedError) Unwrap() error { return e.err }

// mistakeError stands for a panic, for runtime.Goexit and for an invalid error.
type mistakeError struct{ text string }

func (e *mistakeError) Error() string { return e.text }

// errGoexit stands for runtime.Goexit, which a test's FailNow calls, for example.
var errGoexit error = &mistakeError{"panic: it ended its goroutine"}
