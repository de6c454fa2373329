package dynamiccontroller

import (
	"context"

	"github.com/dynamic-controller/engine/internal/writes"
)

// call is a call to a handler, and the parent of the context of the call.
type call struct {
	context.Context // of the run and the registration

	core    *core
	reg     *registration
	options *serveOptions // in effect when the handler was called
	key     string
	cause   Cause
	writes  writes.Recorder
}

// Value returns the call itself for its key, and the recorder of its writes. The key of the call includes the
// controller, because a handler can pass its context to another controller.
func (c *call) Value(key any) any {
	switch key {
	case callKey{c.core}:
		return c
	case writes.Key{}:
		return &c.writes
	}
	return c.Context.Value(key)
}

type callKey struct{ core *core }

// callOf returns the call to a handler of a controller to which a context belongs, or nil.
func callOf(ctx context.Context, c *core) *call {
	made, _ := ctx.Value(callKey{c}).(*call)
	return made
}
