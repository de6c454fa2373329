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
	// It says nothing about the object that was to be written. So that whoever counts failures can tell, the error's type
	// has the method Interrupted() bool, which is true; errors.As finds it with
	//
	//	var interrupted interface{ Interrupted() bool }
	//	if errors.As(err, &interrupted) && interrupted.Interrupted() { ... }
	ErrNotLeading error = notLeading{}
)

// notLeading is a type so that others can recognize it without importing this package.
type notLeading struct{}

func (notLeading) Error() string { return "this replica does not lead" }

// Interrupted tells that the work was not done because it is no longer this replica's, and that it did not fail.
func (notLeading) Interrupted() bool { return true }

var (
	errRunning = errors.New("it runs already")
	errEnded   = errors.New("it has run and ended, and a Replica runs once")
)
