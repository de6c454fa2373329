package children

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/handlers/internal/live"
)

// The API server refuses most invalid objects with 422 or 400. It responds with 500 and no reason if a configuration
// cannot be merged, for example because a list has two items with the same key, a field has a value of another type, or
// a field is unknown. Errors of its storage, and of managedFields that it cannot process, look the same.

// judgementPeriod limits how often dry runs find out why the API server cannot apply the same desired state.
const judgementPeriod = time.Minute

// contentError is an error of the API server that only another desired state can avoid, although its code does not say
// so.
type contentError struct {
	error
	reason string // a value of ChildResult.Reason
}

func (e *contentError) Unwrap() error { return e.error }

func isContentError(err error) bool {
	var content *contentError
	return errors.As(err, &content)
}

// isRefusal reports whether the API server refused to apply an object because of its content.
func isRefusal(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || isContentError(err)
}

// isUnexplained reports whether the API server responded with 500 and no reason. Errors of admission webhooks have a
// reason.
func isUnexplained(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code == http.StatusInternalServerError &&
		status.Status().Reason != metav1.StatusReasonInternalError
}

// isTooLarge reports whether an object exceeds a limit of the API server or of etcd. The API server passes on the
// errors of etcd as text.
func isTooLarge(err error) bool {
	if apierrors.IsRequestEntityTooLargeError(err) {
		return true
	}
	var status apierrors.APIStatus
	if !isUnexplained(err) || !errors.As(err, &status) {
		return false
	}
	message := status.Status().Message
	return strings.HasSuffix(message, "etcdserver: request is too large") ||
		strings.Contains(message, "code = ResourceExhausted") && strings.Contains(message, "message larger than max")
}

// judgement is what dry runs have shown about a desired child that the API server could not apply.
type judgement struct {
	hash    string // of the desired child
	refuses bool   // whether its content is the cause
	made    time.Time
}

// judge returns a contentError if the API server could not apply a child because of its content, and err otherwise.
// current is nil if the object does not exist.
func (c *call) judge(ctx context.Context, child *child, current *unstructured.Unstructured, err error) error {
	switch {
	case isTooLarge(err):
		return &contentError{err, ReasonTooLarge}
	case !isUnexplained(err) || isContentError(err):
		return err
	}
	last := &child.entry.judgement
	if last.hash != child.hash || time.Since(last.made) > judgementPeriod {
		refuses, known := c.refusesContent(ctx, child, current)
		if !known {
			return err
		}
		*last = judgement{child.hash, refuses, time.Now()}
	}
	if last.refuses {
		return &contentError{err, ReasonInvalid}
	}
	return err
}

// refusesContent reports whether the API server can apply the metadata of a child, but not the whole child, in dry
// runs. The first dry run shows that the storage is not the cause, and the second one that the managedFields of the
// object are not. known is false if they do not show the cause.
func (c *call) refusesContent(
	ctx context.Context, child *child, current *unstructured.Unstructured,
) (refuses, known bool) {
	if !isUnexplained(c.dryRun(ctx, child, current, child.config)) {
		return false, false
	}
	metadata := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": child.config.GetAPIVersion(), "kind": child.config.GetKind(),
		"metadata": child.config.Object["metadata"],
	}}
	err := c.dryRun(ctx, child, current, metadata)
	refuses = err == nil || isRejection(err) // the metadata alone can be invalid
	return refuses, refuses || isUnexplained(err)
}

// dryRun applies a configuration of the child in a dry run, under the conditions under which the child is applied.
func (c *call) dryRun(
	ctx context.Context, child *child, current, config *unstructured.Unstructured,
) error {
	config = config.DeepCopy()
	if current == nil {
		config.SetResourceVersion(createOnlyVersion)
	} else {
		config.SetUID(current.GetUID())
		config.SetResourceVersion(current.GetResourceVersion())
	}
	objects := live.Resource(c.as.Client, child.id.GVR, child.id.Namespace())
	_, err := objects.Apply(ctx, child.id.Name(), config, metav1.ApplyOptions{
		FieldManager: c.config.Name, Force: current != nil, DryRun: []string{metav1.DryRunAll},
	})
	return err
}
