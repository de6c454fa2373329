package handlers

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// ObjectHandler reconciles an object that is there. The object is its own to change, and as old as where it was read
// from. Its error means what a dynamiccontroller.Handler's does.
type ObjectHandler func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured) error

// Object reads the object and calls present with it, or gone if there is none; a nil gone does nothing. An error in
// reading it is a failure and calls neither.
//
// It writes nothing. With [Live] it needs get on the type.
func Object(from Reader, present ObjectHandler, gone dynamiccontroller.Handler) dynamiccontroller.Handler {
	return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		object, err := from.Get(ctx, id.GVR, id.Namespace(), id.Name())
		switch {
		case apierrors.IsNotFound(err) && gone == nil:
			return nil
		case apierrors.IsNotFound(err):
			return gone(ctx, id)
		case err != nil:
			return fmt.Errorf("read %s: %w", id, err)
		}
		return present(ctx, id, object)
	}
}

// Typed calls handle with the object as a T, by its JSON names. Fields that T lacks are ignored. An object that is not a
// T is parked (dynamiccontroller.Terminal) until it changes. Object is the same object, for parts that want it so.
func Typed[T any](handle func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, typed *T, object *unstructured.Unstructured) error) ObjectHandler {
	return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured) error {
		typed := new(T)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
			return dynamiccontroller.Terminal(fmt.Errorf("decode %s as a %T: %w", id, *typed, err))
		}
		return handle(ctx, id, typed, object)
	}
}
