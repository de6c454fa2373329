package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"
)

// errReplaced tells that an object of the same name is another one by now.
var errReplaced = errors.New("it has been deleted and made anew")

// onConflict calls write with the object and, as long as that ends in a conflict, with the object as it then is: a cache
// may lag, and others write too. The object is as it was last seen when onConflict returns. One that is gone, or another
// one of the name, is an error.
func onConflict(ctx context.Context, client dynamic.ResourceInterface, object *unstructured.Unstructured, write func(current *unstructured.Unstructured) error) error {
	current, stale := object, false
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if stale {
			now, err := client.Get(ctx, object.GetName(), metav1.GetOptions{})
			if err != nil {
				return err
			}
			if now.GetUID() != object.GetUID() {
				return fmt.Errorf("%s: %w", object.GetName(), errReplaced)
			}
			current = now
		}
		stale = true
		return write(current)
	})
}

// patchMetadata changes fields of an object's metadata by a JSON merge patch that the API server refuses with a conflict
// unless the object is exactly the one that was looked at. A list in such a patch replaces the whole list, which is
// right because nobody else can have changed it since.
func patchMetadata(ctx context.Context, client dynamic.ResourceInterface, object *unstructured.Unstructured, manager string, changes map[string]any) (*unstructured.Unstructured, error) {
	metadata := map[string]any{"uid": string(object.GetUID()), "resourceVersion": object.GetResourceVersion()}
	for field, value := range changes {
		metadata[field] = value
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return nil, err
	}
	return client.Patch(ctx, object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager})
}

// isGoneOrReplaced tells whether the object that was meant exists no more.
func isGoneOrReplaced(err error) bool {
	return errors.Is(err, errReplaced) || apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}
