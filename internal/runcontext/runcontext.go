// Package runcontext gives other packages of this module a context that is cancelled when a run of the controller
// begins to end. The context that dynamiccontroller.RunContext returns is cancelled later, when all handlers have
// returned.
package runcontext

import "context"

// key is the context key for a function that returns the context.
type key struct{}

// WithEnding returns a context derived from ctx, for which Ending returns the result of ending.
func WithEnding(ctx context.Context, ending func() context.Context) context.Context {
	return context.WithValue(ctx, key{}, ending)
}

// Ending takes the context of a handler or of a run, and returns the context that is cancelled when no more handlers
// start. For all other contexts, it returns context.Background.
func Ending(ctx context.Context) context.Context {
	if ending, ok := ctx.Value(key{}).(func() context.Context); ok {
		return ending()
	}
	return context.Background()
}
