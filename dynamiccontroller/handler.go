package dynamiccontroller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dynamic-controller/engine/internal/protect"
)

// Handler reconciles one object. It is told which, not what happened: the object may be new, changed or gone, or
// nothing may have happened to it at all.
//
// It is never called twice at once for the same ObjectIdentifiers. Its context ends when the type is no longer served
// ([ErrServingStopped]), when Run ends ([ErrRunEnded]) and when it takes too long ([ErrReconcileTimeout]);
// [context.Cause] tells which. A handler should return soon then: its object is not reconciled again before it did.
//
// The error says what is to happen next:
//
//   - nil: nothing, until something happens to the object.
//   - [RequeueAfter]: no failure, but call again then.
//   - [Terminal]: a failure that retrying cannot mend; the object is parked until something happens to it.
//   - a NotFound for the object itself while the cache does not hold it either, or a refusal to create something
//     because the object's own namespace is terminating: nothing, because nothing is left to do. For a type that is not
//     served, the API server returns a NotFound that names no object. Such an error counts as a NotFound for the object
//     itself while the state of the handler's type is [TypeNotFound]. While the type is served it counts as a failure,
//     because it can be about an unknown type of child.
//   - an error after the context ended because Run did, or the type is no longer served: nothing; the next run calls
//     again.
//   - an error in whose chain is one with a method Interrupted() bool that says true, as that of a write which was refused
//     because this replica may not lead any more: no failure either, call again within a second.
//   - any other error, and a panic: a failure. It is retried with exponential backoff between Config's MinRetryDelay and
//     MaxRetryDelay, and after Config's QueueMaxRetries failures in a row the object is parked.
//
// Errors are matched with errors.As and errors.Is, so they can be wrapped. Their methods are called only before the
// call counts as finished; status and log keep the text. A nil pointer returned as an error, and an error with a method
// that panics, count as a panic.
type Handler func(ctx context.Context, id ObjectIdentifiers) error

// Causes with which a handler's context ends.
var (
	ErrServingStopped   = errors.New("the type is no longer served")
	ErrRunEnded         = errors.New("the controller's run ended")
	ErrReconcileTimeout = errors.New("the reconcile took longer than its timeout")
)

// RequeueAfter asks for another call after d. It is no failure and forgets the failures before. Without a positive d
// the call comes after the backoff of a failure, so that a handler that always asks for it does no harm.
func RequeueAfter(d time.Duration) error { return &requeueError{after: d} }

type requeueError struct{ after time.Duration }

// RequeueDelay tells what [RequeueAfter] was given, and whether the error is one, or wraps one: who writes into a status
// what came of a reconcile will not call it a failure.
func RequeueDelay(err error) (after time.Duration, ok bool) {
	var requeue *requeueError
	if errors.As(err, &requeue) {
		return requeue.after, true
	}
	return 0, false
}

func (e *requeueError) Error() string { return fmt.Sprintf("requeue after %s", e.after) }

// Terminal marks a failure that a retry cannot fix: the object is parked at once. It is reconciled again on its next
// event, at its resync, by Enqueue and in the next run. If err is nil, or a nil pointer in an error variable, the
// object is parked with an error that names this mistake.
func Terminal(err error) error {
	switch {
	case err == nil:
		err = errors.New("Terminal was called with a nil error")
	case protect.IsNil(err):
		err = fmt.Errorf("Terminal was called with a nil %T", err)
	}
	return &terminalError{err: err}
}

type terminalError struct{ err error }

func (e *terminalError) Error() string { return "terminal: " + e.err.Error() }
func (e *terminalError) Unwrap() error { return e.err }
