package dynamiccontroller

import (
	"context"
	"errors"
	"fmt"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// AddIndex declares an index of the cache that a lister reads, as [WithIndex] does, while the watch is running. It
// works for the listers of a served type, of a watch that was added by [Owns] or [Watches], and of a
// [StandaloneWatch]. The watch is not replaced, and sends no requests. All listers of the watch can use the index as
// soon as AddIndex has returned nil. Like any index, it is built by the first call to ByIndex. If the name is new, the
// other indexes of the watch are built again by the next calls to ByIndex.
//
// If an index with this name exists, it is kept, and AddIndex returns nil. Later calls to StartServingGVK replace all
// indexes, and so does AddWatches if it replaces the watch. They do not keep the indexes from AddIndex.
//
// AddIndex returns [ErrInvalidOptions] if the name is empty or f is nil, and [ErrNotServed] if the type or the watch is
// no longer served. It waits for earlier changes to the type's watches, such as a RemoveWatches that waits for a
// MapFunc. If ctx is cancelled in the meantime, it returns the cause, and the index is added in the background.
// AddIndex is safe for concurrent use, also with readers. It can be called by handlers, but not by predicates, MapFuncs
// and the functions of indexes.
func AddIndex(ctx context.Context, to Lister, name string, f func(Object) []string) error {
	if err := addIndex(ctx, to, name, f); err != nil {
		return fmt.Errorf("add the index %q: %w", name, err)
	}
	return nil
}

func addIndex(ctx context.Context, to Lister, name string, f func(Object) []string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var o watchOptions
	WithIndex(name, f).applyTo(&o)
	if err := invalid(errors.Join(o.errs...)); err != nil {
		return err
	}
	l, ok := listerOf(to)
	if !ok {
		return fmt.Errorf("a %T is not a lister of a DynamicController", to)
	}
	done, err := l.addIndexes(newIndexes(o.indexes))
	if err != nil {
		return err
	}
	if !await(ctx, done) {
		return context.Cause(ctx)
	}
	return nil
}

// newIndexes returns the declaration of indexes for typewatch.
func newIndexes(declared map[string]func(Object) []string) *typewatch.Indexes {
	functions := map[string]func(*typewatch.Object) []string{}
	for name, f := range declared {
		functions[name] = func(object *typewatch.Object) []string { return f(newObject(object)) }
	}
	return typewatch.NewIndexes(functions)
}
