package handlers

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/internal/gonehook"
)

// ObjectHandler reconciles an existing object, which it can modify. Its error has the same meaning as that of a
// [dynamiccontroller.Handler].
type ObjectHandler func(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured,
) error

// Object returns a handler that reads the object and calls reconcile, or gone if the object does not exist. If gone is
// nil, missing objects are ignored. If the object cannot be read, the handler returns the error and calls neither
// function.
//
// A deletion that began before the finalizer of a [Finalizer] or a children.Reconciler was added can remove the object
// afterwards. For an object that does not exist, these parts then complete their cleanup before gone is called, if they
// were called with the context that Object passes to reconcile. While they return an error, so does the handler.
//
// Object itself writes nothing. With [Live], it needs get on the type.
func Object(reader Reader, reconcile ObjectHandler, gone dynamiccontroller.Handler) dynamiccontroller.Handler {
	hooks := &gonehook.Hooks{}
	return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		object, err := reader.Get(ctx, id.GVR, id.Namespace(), id.Name())
		switch {
		case apierrors.IsNotFound(err):
			if err := hooks.Call(ctx, id); err != nil || gone == nil {
				return err
			}
			return gone(ctx, id)
		case err != nil:
			return fmt.Errorf("read %s: %w", id, err)
		}
		return reconcile(hooks.With(ctx), id, object)
	}
}
