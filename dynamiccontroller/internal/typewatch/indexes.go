package typewatch

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

// ErrNoIndex is returned for an index that is not declared.
var ErrNoIndex = errors.New("no such index")

// Indexes declares indexes. Its address identifies it: a view keeps the contents of its indexes while the watch and the
// Indexes of its options stay the same. It is immutable.
type Indexes struct {
	functions map[string]func(*Object) []string
}

// NewIndexes returns a declaration of indexes, by name. The functions can be user code: they can hang, panic or call
// runtime.Goexit, and they can read any subscription. They must be safe for concurrent use.
func NewIndexes(functions map[string]func(*Object) []string) *Indexes {
	return &Indexes{functions: maps.Clone(functions)}
}

// With returns the indexes of x and, in addition, those of other whose names x does not have. If x has all names, With
// returns x itself. Both can be nil.
func (x *Indexes) With(other *Indexes) *Indexes {
	if x == nil || other == nil {
		return cmp.Or(x, other)
	}
	for name := range other.functions {
		if x.functions[name] == nil {
			union := NewIndexes(other.functions)
			maps.Copy(union.functions, x.functions)
			return union
		}
	}
	return x
}

// viewIndexes holds the indexes of a view, by name. It is nil for a view without indexes.
type viewIndexes struct{ byName map[string]*objects.Index }

// newIndexes returns the indexes of a view. They cost nothing until they are used.
func newIndexes(view View, calls *calls) *viewIndexes {
	if view.options.Indexes == nil {
		return nil
	}
	indexes := map[string]*objects.Index{}
	for name, function := range view.options.Indexes.functions {
		f := &indexFunction{name: name, function: function, calls: calls, view: view}
		indexes[name] = view.Store().NewIndex(f.evaluate)
	}
	return &viewIndexes{indexes}
}

// drop drops the indexes of a view that is not used any longer.
func (x *viewIndexes) drop() {
	if x != nil {
		for _, i := range x.byName {
			i.Drop()
		}
	}
}

// ByIndex returns the objects for which the function of the index returns the value. It calls the function, in its own
// goroutine, for objects that have changed since the last call. If the subscription has been closed, or has moved to
// other indexes or another watch, each call evaluates all objects. The error is [ErrNoIndex].
func (v View) ByIndex(name, value string) ([]*objects.Record, error) {
	if v.indexes == nil {
		return nil, fmt.Errorf("%w: %q; declare it with WithIndex or AddIndex", ErrNoIndex, name)
	}
	i, known := v.indexes.byName[name]
	if !known {
		names := slices.Sorted(maps.Keys(v.indexes.byName))
		return nil, fmt.Errorf("%w: %q; declare it with WithIndex or AddIndex, or use one of %q", ErrNoIndex, name, names)
	}
	return i.Find(value), nil
}

// indexFunction is the function of an index. Its methods are safe for concurrent use.
type indexFunction struct {
	name     string
	function func(*Object) []string
	calls    *calls
	view     View
	panicked atomic.Bool // whether a panic has been logged as an error
}

// evaluate calls the function. It returns nil if the function panics.
func (f *indexFunction) evaluate(r *objects.Record) (values []string) {
	panicked := f.calls.call("function of index "+f.name, func() { values = f.function(NewObject(r, f.view)) })
	if panicked == nil {
		return values
	}
	const message = "Index function panicked, the object has no values"
	log := f.view.contents.log.WithValues("index", f.name, "object", r.Key())
	if f.panicked.Swap(true) {
		log.V(1).Info(message, "error", panicked.Error())
	} else {
		log.Error(panicked, message, "stack", string(panicked.Stack))
	}
	return nil
}
