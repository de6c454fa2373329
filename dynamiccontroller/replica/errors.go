package replica

import "errors"

var (
	// ErrLeaseLost is the cancellation cause of a term's contexts if the lease was lost: another replica holds the lease,
	// somebody deleted or emptied it, or it was not renewed in time, so that another replica can lead.
	ErrLeaseLost = errors.New("lease lost")

	// ErrNotLeading is returned for a write through a fenced config (see [Replica.Fence]) that was not sent, because the
	// replica does not lead or can no longer be certain that it leads, or because the request's context is from an earlier
	// term. It is also returned for a write that was in flight when the term ended and that failed, even if the term's own
	// context cancelled the write. Such a write may have taken effect. Clients wrap the error, so use errors.Is. A request
	// that was still waiting for client-go's rate limiter, or to be retried, returns the error of its context. See
	// [Replica.FenceOnServer] for a write that the API server rejects.
	//
	// It does not indicate a problem with the object. It implements dynamiccontroller.Interrupted, so that callers can
	// avoid counting it as a failure:
	//
	//	var interrupted dynamiccontroller.Interrupted
	//	if errors.As(err, &interrupted) && interrupted.Interrupted() { ... }
	ErrNotLeading error = notLeadingError{}
)

// notLeadingError is a type with a method, so that other packages can recognize it without importing this one.
type notLeadingError struct{}

func (notLeadingError) Error() string { return "this replica is not the leader" }

// Interrupted returns true. The write was abandoned because leadership ended; it did not fail.
func (notLeadingError) Interrupted() bool { return true }

// refusalError is ErrNotLeading with the reason. It is a type, so that isCleanExit can recognize it.
type refusalError struct{ reason error }

func notLeading(reason error) error { return &refusalError{reason} }

func (e *refusalError) Error() string   { return ErrNotLeading.Error() + ": " + e.reason.Error() }
func (e *refusalError) Unwrap() []error { return []error{ErrNotLeading, e.reason} }

var (
	errRunning = errors.New("the replica is already running")
	errStopped = errors.New("the replica has stopped and cannot be used again")
)
