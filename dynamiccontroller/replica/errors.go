package replica

import "errors"

var (
	// ErrLeaseLost is the cause with which the contexts of a term end when the lease was lost: someone else holds it,
	// it was deleted or emptied, or it was not renewed in time, so that another replica may lead.
	ErrLeaseLost = errors.New("the lease was lost")

	// ErrNotLeading is what a write through [Replica.FencedConfig] fails with, before it was sent, when this replica
	// does not lead, can no longer be sure that it does, or when the request comes from an earlier term; and what a
	// write in flight fails with when the fence closes. errors.Is finds it in what a client returns.
	//
	// It does not mean that the object is at fault. So that callers which count failures can recognize it, it implements
	// dynamiccontroller.Interrupted, and its method Interrupted returns true:
	//
	//	var interrupted dynamiccontroller.Interrupted
	//	if errors.As(err, &interrupted) && interrupted.Interrupted() { ... }
	ErrNotLeading error = notLeading{}
)

// notLeading is a type so that others can recognize it without importing this package.
type notLeading struct{}

func (notLeading) Error() string { return "this replica does not lead" }

// Interrupted returns true: the write was not done because this replica no longer leads, and it did not fail.
func (notLeading) Interrupted() bool { return true }

var (
	errRunning = errors.New("it runs already")
	errEnded   = errors.New("it has run and ended, and a Replica runs once")
)
