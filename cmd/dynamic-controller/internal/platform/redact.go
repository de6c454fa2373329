package platform

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// redactor is a client for the children of a Blueprint's instances. The API server, and admission webhooks and
// policies, quote values in their messages. Messages about the objects of sensitive resources are replaced as soon as
// they are received, so that they never reach a status, an error or the log. Warnings about them are dropped.
type redactor struct {
	dynamic.Interface
	compiled *blueprint.Compiled
}

func (c redactor) Resource(gvr schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return redactedResource{c.Interface.Resource(gvr), c.compiled, gvr.GroupResource() == secrets}
}

var secrets = schema.GroupResource{Resource: "secrets"}

type redactedResource struct {
	dynamic.NamespaceableResourceInterface
	compiled  *blueprint.Compiled
	isSecrets bool
}

func (r redactedResource) Namespace(namespace string) dynamic.ResourceInterface {
	return redactedObjects{r.NamespaceableResourceInterface.Namespace(namespace), r.compiled, r.isSecrets}
}

func (r redactedResource) Apply(ctx context.Context, name string, object *unstructured.Unstructured, opts metav1.ApplyOptions, subresources ...string) (*unstructured.Unstructured, error) {
	return redactedObjects{r.NamespaceableResourceInterface, r.compiled, r.isSecrets}.Apply(ctx, name, object, opts, subresources...)
}

func (r redactedResource) Patch(ctx context.Context, name string, patchType types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*unstructured.Unstructured, error) {
	return redactedObjects{r.NamespaceableResourceInterface, r.compiled, r.isSecrets}.Patch(ctx, name, patchType, data, opts, subresources...)
}

func (r redactedResource) Delete(ctx context.Context, name string, opts metav1.DeleteOptions, subresources ...string) error {
	return redactedObjects{r.NamespaceableResourceInterface, r.compiled, r.isSecrets}.Delete(ctx, name, opts, subresources...)
}

type redactedObjects struct {
	dynamic.ResourceInterface
	compiled  *blueprint.Compiled
	isSecrets bool
}

// Patch sends no data, but admission can quote the Secret that is patched.
func (o redactedObjects) Patch(ctx context.Context, name string, patchType types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*unstructured.Unstructured, error) {
	if !o.isSecrets {
		return o.ResourceInterface.Patch(ctx, name, patchType, data, opts, subresources...)
	}
	now, err := o.ResourceInterface.Patch(logr.NewContext(ctx, logr.Discard()), name, patchType, data, opts, subresources...)
	return now, redacted(err, noField)
}

// Delete sends no data either, but admission can quote the Secret that is deleted.
func (o redactedObjects) Delete(ctx context.Context, name string, opts metav1.DeleteOptions, subresources ...string) error {
	if !o.isSecrets {
		return o.ResourceInterface.Delete(ctx, name, opts, subresources...)
	}
	return redacted(o.ResourceInterface.Delete(logr.NewContext(ctx, logr.Discard()), name, opts, subresources...), noField)
}

func noField(string) string { return "" }

// Apply is the only request that sends the result of a template.
func (o redactedObjects) Apply(ctx context.Context, name string, object *unstructured.Unstructured, opts metav1.ApplyOptions, subresources ...string) (*unstructured.Unstructured, error) {
	id := object.GetAnnotations()[resourceKey]
	if !o.compiled.IsSensitive(id) {
		return o.ResourceInterface.Apply(ctx, name, object, opts, subresources...)
	}
	// The handler of warnings, and client-go, log with the context's logger.
	now, err := o.ResourceInterface.Apply(logr.NewContext(ctx, logr.Discard()), name, object, opts, subresources...)
	return now, redacted(err, func(field string) string { return o.compiled.KnownField(id, field) })
}

// redacted returns the API server's error with its code and reason, and with the fields that it names, but without its
// messages. Field returns as much of a field's path as can be shown. Other errors come from the client and quote no values.
func redacted(err error, field func(string) string) error {
	var api apierrors.APIStatus
	if !errors.As(err, &api) {
		return err
	}
	status := api.Status()
	out := metav1.Status{TypeMeta: status.TypeMeta, Status: status.Status, Code: status.Code, Reason: status.Reason}
	var fields []string
	if d := status.Details; d != nil {
		out.Details = &metav1.StatusDetails{Name: d.Name, Group: d.Group, Kind: d.Kind, UID: d.UID, RetryAfterSeconds: d.RetryAfterSeconds}
		for _, cause := range d.Causes {
			known := metav1.StatusCause{Type: cause.Type, Field: field(cause.Field)}
			out.Details.Causes = append(out.Details.Causes, known)
			if known.Field != "" {
				fields = append(fields, fmt.Sprintf("%s: %s", known.Field, known.Type))
			}
		}
	}
	out.Message = fmt.Sprintf("the API server rejected the request with %d %s; its message is not shown, because the object can contain data of a Secret",
		status.Code, cmp.Or(string(status.Reason), "Unknown"))
	if len(fields) > 0 {
		out.Message += " (" + strings.Join(slices.Compact(fields), ", ") + ")"
	}
	return &apierrors.StatusError{ErrStatus: out}
}
