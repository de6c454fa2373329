package handlers

import (
	"context"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// TypedHandler reconciles an existing object that was decoded into the Go type T. object is the same object as typed,
// in the form that the other parts of this package accept. The handler can modify both; they share no memory. The
// returned error has the same meaning as that of a [dynamiccontroller.Handler].
type TypedHandler[T any] func(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, typed *T, object *unstructured.Unstructured,
) error

// Typed returns an ObjectHandler that decodes the object into a T and calls handle. It composes with the other parts
// that accept an ObjectHandler. [Object] reads the object, and calls its gone handler if the object does not exist:
//
//	handlers.Object(reader, handlers.Typed(reconcileWidget), gone)
//
// T is usually a struct, for example corev1.Pod or a struct with the few fields that the handler needs. Objects are
// decoded as in typed clients: the names of JSON fields are case-sensitive, fields that T does not have are ignored,
// and a number that overflows its field is an error.
//
// If the object cannot be decoded, handle is not called. The error names the object and the field. It is
// [dynamiccontroller.Terminal], because a retry would decode the same object: the object is parked until it changes. A
// cleanup that must succeed even for invalid objects, such as that of a [Finalizer], should not use Typed, or should
// use a T with only the fields that it needs.
//
// The returned handler is safe for concurrent use if handle is. It sends no requests.
//
// A handler that does not need the other parts can avoid the intermediate object:
// [dynamiccontroller.NewTypedLister] decodes cached objects directly into a T.
func Typed[T any](handle TypedHandler[T]) ObjectHandler {
	return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured) error {
		typed := new(T)
		if err := decode(object.Object, typed); err != nil {
			err = explain(object.Object, err, func(v any) error { return decode(v, new(T)) })
			return dynamiccontroller.Terminal(fmt.Errorf("decode %s: %w", id, err))
		}
		return handle(ctx, id, typed, object)
	}
}

// decode decodes a value of an unstructured object. It uses JSON instead of runtime.DefaultUnstructuredConverter, which
// truncates numbers that overflow and shares memory with the object.
func decode(value, into any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// explain adds the path of the rejected field to a decoding error.
func explain(object map[string]any, err error, decode func(any) error) error {
	path, cause := rejectedField(nil, object, func(value any) error {
		if alone := decode(value); alone != nil && alone.Error() == err.Error() {
			return alone
		}
		return nil
	})
	if cause == nil {
		return err // the error is not caused by a single field
	}
	var mismatch *stdjson.UnmarshalTypeError
	if errors.As(cause, &mismatch) {
		return fmt.Errorf("%s: got %s, want %s", path, mismatch.Value, mismatch.Type)
	}
	return fmt.Errorf("%s: %w", path, cause)
}

// rejectedField returns the path and the error of the first field that decode rejects when it is the only field of the
// object. If there is no such field, it returns no error. The path is needed because errors from custom JSON decoders,
// such as those of resource.Quantity, do not name the field.
func rejectedField(path *field.Path, value any, decode func(any) error) (*field.Path, error) {
	switch value := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			alone := func(v any) error { return decode(map[string]any{key: v}) }
			if child, err := rejectedField(path.Child(key), value[key], alone); err != nil {
				return child, err
			}
		}
	case []any:
		for i, item := range value {
			alone := func(v any) error { return decode([]any{v}) }
			if child, err := rejectedField(path.Index(i), item, alone); err != nil {
				return child, err
			}
		}
	}
	return path, decode(value)
}
