// Package patch changes objects with optimistic concurrency: the API server rejects a change computed from an outdated
// object.
package patch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"
)

// ErrReplaced is returned if an object has been deleted and recreated with the same name.
var ErrReplaced = errors.New("it has been deleted and recreated")

// IsGone reports whether err means that the object no longer exists or has been replaced by another object with the
// same name.
func IsGone(err error) bool {
	return errors.Is(err, ErrReplaced) || apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}

// RetryOnConflict calls write with the object. If write returns a conflict, RetryOnConflict reads the object and tries
// again. If the object no longer exists, it returns an error for which IsGone is true.
func RetryOnConflict(
	ctx context.Context, client dynamic.ResourceInterface, object *unstructured.Unstructured,
	write func(current *unstructured.Unstructured) error,
) error {
	current, stale := object, false
	return retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		if stale {
			if current, err = Read(ctx, client, object); err != nil {
				return err
			}
		}
		stale = true
		return write(current)
	})
}

// Read reads the object from the API server. If the object no longer exists, it returns an error for which IsGone is
// true.
func Read(
	ctx context.Context, client dynamic.ResourceInterface, object *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	now, err := client.Get(ctx, object.GetName(), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if now.GetUID() != object.GetUID() {
		return nil, fmt.Errorf("%s: %w", object.GetName(), ErrReplaced)
	}
	return now, nil
}

// Metadata changes metadata fields of an object with a JSON merge patch. If the object has changed, the API server
// rejects the patch with a conflict. A list in the patch therefore replaces exactly the list that was read.
func Metadata(
	ctx context.Context, client dynamic.ResourceInterface, object *unstructured.Unstructured, manager string,
	changes map[string]any,
) (*unstructured.Unstructured, error) {
	return Merge(ctx, client, object, manager, map[string]any{"metadata": changes})
}

// Merge changes an object with a JSON merge patch. If the object has changed, the API server rejects the patch with a
// conflict.
func Merge(
	ctx context.Context, client dynamic.ResourceInterface, object *unstructured.Unstructured, manager string,
	changes map[string]any, subresources ...string,
) (*unstructured.Unstructured, error) {
	metadata := map[string]any{"uid": string(object.GetUID()), "resourceVersion": object.GetResourceVersion()}
	if changed, ok := changes["metadata"].(map[string]any); ok {
		maps.Copy(metadata, changed)
	}
	content := maps.Clone(changes)
	content["metadata"] = metadata
	patch, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	options := metav1.PatchOptions{FieldManager: manager}
	return client.Patch(ctx, object.GetName(), types.MergePatchType, patch, options, subresources...)
}

// AddFinalizer adds a finalizer to an object that is not being deleted. It returns the latest known version of the
// object.
func AddFinalizer(
	ctx context.Context, client dynamic.ResourceInterface, object *unstructured.Unstructured, name string,
) (*unstructured.Unstructured, error) {
	now := object
	err := RetryOnConflict(ctx, client, object, func(current *unstructured.Unstructured) (err error) {
		finalizers := current.GetFinalizers()
		if current.GetDeletionTimestamp() != nil || slices.Contains(finalizers, name) {
			now = current
			return nil
		}
		changes := map[string]any{"finalizers": append(finalizers, name)}
		now, err = Metadata(ctx, client, current, name, changes)
		return err
	})
	return now, err
}

// RemoveFinalizer removes a finalizer from an object. It returns nil if the object no longer exists.
func RemoveFinalizer(
	ctx context.Context, client dynamic.ResourceInterface, object *unstructured.Unstructured, name string,
) error {
	err := RetryOnConflict(ctx, client, object, func(current *unstructured.Unstructured) error {
		finalizers := current.GetFinalizers()
		if !slices.Contains(finalizers, name) {
			return nil
		}
		left := slices.DeleteFunc(finalizers, func(f string) bool { return f == name })
		_, err := Metadata(ctx, client, current, name, map[string]any{"finalizers": left})
		return err
	})
	if IsGone(err) {
		return nil
	}
	return err
}
