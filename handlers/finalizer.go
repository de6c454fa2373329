package handlers

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Finalizer returns a handler that makes sure that an object's cleanup ran before the object is gone:
//
//   - An object that is not being deleted has the finalizer, which is written first if need be, before next is called
//     with it. One that began to be deleted meanwhile never gets it.
//   - An object that is being deleted and has the finalizer is given to cleanup. When cleanup returned nil the finalizer
//     is removed. Its error, RequeueAfter included, is returned, and the finalizer stays.
//   - An object that is being deleted without the finalizer, and with others than Kubernetes' own, is given to cleanup too:
//     another part in it, [Children] for instance, may have one there that only it removes.
//   - An object that is being deleted without any needs nothing: neither is called.
//
// Cleanup must be idempotent: it is called again when its effect or the removal of the finalizer was not seen, because
// the process died or the cache lags. It may find that there is nothing to clean up, because next never ran. After any
// crash, the next call goes on where the last one ended, for all that is remembered is the finalizer itself.
//
// What next makes outside the API server, and only cleanup removes, is safe with an object that was read with [Fresh] or
// [Live]. A cache that lags behind the leader before may show an object that this one has cleaned up and let go.
//
// The name must have a domain: "platform.example.com/cleanup". It writes metadata.finalizers, once to add and once to
// remove the name, by a patch that the API server refuses if the object changed since it was read (it is then read anew):
// no finalizer of others is ever lost. It needs get and patch on the type; where
// OwnerReferencesPermissionEnforcement is on, no more than that.
func Finalizer(client dynamic.Interface, name string, cleanup, next ObjectHandler) ObjectHandler {
	return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured) error {
		objects := resource(client, id.GVR, id.Namespace())
		if object.GetDeletionTimestamp() == nil {
			object, err := addFinalizer(ctx, objects, object, name)
			switch {
			case err != nil && !isGoneOrReplaced(err):
				return fmt.Errorf("add finalizer %s to %s: %w", name, id, err)
			case err != nil || object.GetDeletionTimestamp() != nil:
				return nil // the deletion's event brings it back
			}
			return next(ctx, id, object)
		}
		if !slices.ContainsFunc(object.GetFinalizers(), isOfAController) {
			return nil
		}
		if err := cleanup(ctx, id, object); err != nil {
			return err
		}
		if err := removeFinalizer(ctx, objects, object, name); err != nil {
			return fmt.Errorf("remove finalizer %s from %s: %w", name, id, err)
		}
		return nil
	}
}

// isOfAController tells a finalizer from those of Kubernetes' garbage collector.
func isOfAController(finalizer string) bool {
	return finalizer != metav1.FinalizerDeleteDependents && finalizer != metav1.FinalizerOrphanDependents
}

// addFinalizer returns the object with the finalizer, or without if it is being deleted.
func addFinalizer(ctx context.Context, client dynamic.ResourceInterface, object *unstructured.Unstructured, name string) (*unstructured.Unstructured, error) {
	now := object
	err := onConflict(ctx, client, object, func(current *unstructured.Unstructured) (err error) {
		finalizers := current.GetFinalizers()
		if current.GetDeletionTimestamp() != nil || slices.Contains(finalizers, name) {
			now = current
			return nil
		}
		now, err = patchMetadata(ctx, client, current, name, map[string]any{"finalizers": append(finalizers, name)})
		return err
	})
	return now, err
}

// removeFinalizer is done, too, if the object is gone.
func removeFinalizer(ctx context.Context, client dynamic.ResourceInterface, object *unstructured.Unstructured, name string) error {
	err := onConflict(ctx, client, object, func(current *unstructured.Unstructured) error {
		finalizers := current.GetFinalizers()
		if !slices.Contains(finalizers, name) {
			return nil
		}
		left := slices.DeleteFunc(finalizers, func(f string) bool { return f == name })
		_, err := patchMetadata(ctx, client, current, name, map[string]any{"finalizers": left})
		return err
	})
	if isGoneOrReplaced(err) {
		return nil
	}
	return err
}
