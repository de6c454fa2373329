package dynamiccontroller

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

// DecodeInto decodes an object into the value to which into points: a Go type such as corev1.Pod, a struct with the few
// fields that the caller needs, an unstructured.Unstructured or a metav1.PartialObjectMetadata. An object from a
// [Lister], or one that is passed to a predicate or MapFunc, is decoded directly from its cached form. This is faster
// than converting the result of object.Object(). Any other Object, for example that of a test, is converted by way of
// JSON.
//
// The value is replaced, and shares no memory with the cache. Fields that the object does not have, or that the cache
// mode of its watch does not include, are zero afterwards. As with [NewTypedLister], the names of JSON fields are
// case-sensitive, and object fields that do not exist in the Go type are ignored. DecodeInto returns an error if into
// is not a pointer, or if a value cannot be decoded into its field. In the latter case, the value to which into points
// is zero afterwards.
func DecodeInto(object Object, into any) error {
	switch o := object.(type) {
	case nil:
		return fmt.Errorf("decode as %T: the object is nil", into)
	case storedObject:
		return replace(into, o.DecodeInto)
	default:
		return convert(o.Object(), into)
	}
}

// GetInto reads the object with the given key (see [ObjectIdentifiers].NamespacedKey) from a lister, and decodes it as
// [DecodeInto] does. It returns the errors of the lister's method Get, such as NotFound and [ErrNotSynced], and leaves
// the value to which into points unchanged then. For several objects, use DecodeInto with the results of
// [Lister].Objects or [Lister].ByIndex. If the Go type is known at compile time, [NewTypedLister] is an alternative.
//
// The lister can be any lister, for example one from client-go. The objects of a lister that does not belong to a
// DynamicController are converted by way of JSON.
func GetInto(from cache.GenericLister, key string, into any) error {
	if from == nil {
		return errors.New("the lister is nil")
	}
	if l, ok := listerOf(from); ok {
		view, r, err := l.record(key)
		if err != nil {
			return err
		}
		return replace(into, func(into any) error { return view.DecodeInto(r, into) })
	}
	object, err := from.Get(key)
	if err != nil {
		return err
	}
	return convert(object, into)
}

// listerOf returns the lister of a DynamicController. It returns false for any other lister.
func listerOf(from cache.GenericLister) (l lister, ok bool) {
	switch from := from.(type) {
	case lister:
		return from, true
	case secondaryLister:
		return from.lister, true
	default:
		return lister{}, false
	}
}

// replace resets the value to which into points, and calls decode. If decode fails, the value is reset again, because
// it can contain a part of the object.
func replace(into any, decode func(into any) error) error {
	value := reflect.ValueOf(into)
	if value.Kind() != reflect.Pointer || value.IsNil() {
		return fmt.Errorf("decode as %T: must be a pointer that is not nil", into)
	}
	value.Elem().SetZero()
	if err := decode(into); err != nil {
		value.Elem().SetZero()
		return fmt.Errorf("decode as %T: %w", into, err)
	}
	return nil
}

// convert decodes an object that is not in a cache of a DynamicController.
func convert(object runtime.Object, into any) error {
	return replace(into, func(into any) error {
		if object == nil {
			return errors.New("the object is nil")
		}
		data, err := json.Marshal(object)
		if err != nil {
			return err
		}
		return objects.Unmarshal(data, into)
	})
}
