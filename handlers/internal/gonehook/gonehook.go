// Package gonehook calls the parts of a handler for objects that no longer exist.
package gonehook

import (
	"context"
	"errors"
	"sync"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/internal/perrun"
)

// Hooks are the functions to call when objects are gone. The zero value has none. Hooks are dropped at the end of the
// run in which they were added.
type Hooks struct {
	runs perrun.State[hooks]
}

// hooks are the functions of a run, by object and by the part that added them.
type hooks struct {
	mu    sync.Mutex // guards parts
	parts map[dynamiccontroller.ObjectIdentifiers]map[any]dynamiccontroller.Handler
}

type contextKey struct{}

// With returns a context in which parts can add functions.
func (h *Hooks) With(ctx context.Context) context.Context {
	return context.WithValue(ctx, contextKey{}, h)
}

// Add makes the handler of ctx call f when the object is gone. A part has at most one function for each object. Without
// a context from With, Add has no effect.
func Add(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, part any, f dynamiccontroller.Handler) {
	h, _ := ctx.Value(contextKey{}).(*Hooks)
	if h == nil {
		return
	}
	run := h.runs.For(ctx)
	run.mu.Lock()
	defer run.mu.Unlock()
	if run.parts == nil {
		run.parts = map[dynamiccontroller.ObjectIdentifiers]map[any]dynamiccontroller.Handler{}
	}
	if run.parts[id] == nil {
		run.parts[id] = map[any]dynamiccontroller.Handler{}
	}
	run.parts[id][part] = f
}

// Call calls the functions for an object. It drops those that return nil.
func (h *Hooks) Call(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	run := h.runs.For(ctx)
	run.mu.Lock()
	all := run.parts[id]
	delete(run.parts, id)
	run.mu.Unlock()
	var errs []error
	for part, f := range all {
		if err := f(ctx, id); err != nil {
			errs = append(errs, err)
			Add(h.With(ctx), id, part, f)
		}
	}
	return errors.Join(errs...)
}
