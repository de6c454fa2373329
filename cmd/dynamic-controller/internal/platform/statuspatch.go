package platform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// cannotBeApplied reports whether a status was refused because of the object rather than because of its version or the
// platform's rights. An object that does not fit its schema, which has changed since, cannot be applied to at all: the API
// server returns "failed to create typed live object" with code 500 and no reason.
func cannotBeApplied(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch status.Status().Code {
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusInternalServerError:
		return true
	}
	return false
}

// patch writes a status that cannot be applied by a JSON merge patch. The API server does not require that the rest of the
// object fits the schema then: it validates only the values that a request changes. Conditions of others stay as they are
// in current, which must be the newest version.
func (w statusWriter) patch(ctx context.Context, objects dynamic.ResourceInterface, current, next *unstructured.Unstructured, want wantedStatus) error {
	status, _, _ := unstructured.NestedMap(next.Object, "status")
	list, _ := status["conditions"].([]any)
	if want.mergesConditions {
		there, _ := current.Object["status"].(map[string]any)
		_, others := conditionsOf(there, want.conditions)
		list = append(others, list...)
	}
	status["conditions"] = list
	for name, value := range want.fields {
		if value == nil {
			status[name] = nil
		}
	}
	data, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": current.GetUID(), "resourceVersion": current.GetResourceVersion()}, "status": status,
	})
	if err != nil {
		return fmt.Errorf("make a patch of the status: %w", err)
	}
	_, err = objects.Patch(ctx, current.GetName(), types.MergePatchType, data, metav1.PatchOptions{FieldManager: statusManager}, "status")
	return err
}
