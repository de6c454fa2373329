package act

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/internal/live"
)

// Child performs the operations about the child itself. Those about its parent are the caller's.
type Child struct {
	Client dynamic.Interface
	ID     dynamiccontroller.ObjectIdentifiers
	// DryRun makes all writes dry runs.
	DryRun bool
}

// Do performs an operation. It waits for the delay of the operation first, unless ctx ends.
func (c Child) Do(ctx context.Context, operation decide.Operation) (answer decide.Answer) {
	if err := wait(ctx, operation.After); err != nil {
		return decide.Answer{Err: err}
	}
	objects, name := live.Resource(c.Client, c.ID.GVR, c.ID.Namespace()), c.ID.Name()
	var dryRun []string
	if c.DryRun || operation.Kind == decide.TryApply || operation.Kind == decide.TryCreate {
		dryRun = []string{metav1.DryRunAll}
	}
	switch operation.Kind {
	case decide.Read:
		answer.Object, answer.Err = live.Get(ctx, c.Client, c.ID)
		if apierrors.IsNotFound(answer.Err) {
			return decide.Answer{}
		}
	case decide.Create, decide.Apply, decide.TryApply:
		options := metav1.ApplyOptions{FieldManager: operation.Manager, Force: operation.Force, DryRun: dryRun}
		answer.Object, answer.Err = objects.Apply(ctx, name, operation.Object, options)
	case decide.TryCreate:
		answer.Object, answer.Err = objects.Create(ctx, operation.Object, metav1.CreateOptions{
			DryRun: dryRun, FieldManager: operation.Manager, FieldValidation: metav1.FieldValidationStrict,
		})
	case decide.SetManagedFields, decide.HandOver, decide.RemoveOwnerReference, decide.RemoveConfirmation,
		decide.RemoveMark:
		answer.Object, answer.Err = c.patch(ctx, objects, operation, dryRun)
	case decide.Delete:
		answer.Err = objects.Delete(ctx, name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{
				UID: ptr.To(operation.UID), ResourceVersion: ptr.To(operation.ResourceVersion),
			},
			PropagationPolicy: ptr.To(metav1.DeletePropagationBackground), DryRun: dryRun,
		})
	default:
		answer.Err = fmt.Errorf("the operation %s is not about the child", operation.Kind)
	}
	return answer
}

// patch sends a merge patch, which the API server rejects with a conflict if the object has changed.
func (c Child) patch(
	ctx context.Context, objects dynamic.ResourceInterface, operation decide.Operation, dryRun []string,
) (*unstructured.Unstructured, error) {
	metadata := map[string]any{"uid": string(operation.UID), "resourceVersion": operation.ResourceVersion}
	if changed, has := operation.Patch["metadata"].(map[string]any); has {
		maps.Copy(metadata, changed)
	}
	content := maps.Clone(operation.Patch)
	content["metadata"] = metadata
	data, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	options := metav1.PatchOptions{FieldManager: operation.Manager, DryRun: dryRun}
	return objects.Patch(ctx, c.ID.Name(), types.MergePatchType, data, options)
}

// wait waits for a delay.
func wait(ctx context.Context, delay time.Duration) error {
	if delay <= 0 {
		return nil
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
