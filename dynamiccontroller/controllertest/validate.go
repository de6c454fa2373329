package controllertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxRequestSize = 3 << 20 // of kube-apiserver, for the body of a request
	maxStoredSize  = 3 << 19 // of etcd, for an object
)

// unknownError returns the error of an API server for an error that is not a Status.
func unknownError(format string, args ...any) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: fmt.Sprintf(format, args...),
	}}
}

// asStatus returns err if it is a Status, and the error of an API server with its message otherwise.
func asStatus(err error) error {
	var status apierrors.APIStatus
	if err == nil || errors.As(err, &status) {
		return err
	}
	return unknownError("%s", err.Error())
}

// checkOptions returns an error if the options of a write are invalid.
func checkOptions(kind string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
}

// checkSize returns an error if an object is too large for the body of a request.
func checkSize(object *unstructured.Unstructured) error {
	data, err := json.Marshal(object.Object)
	if err != nil {
		return err
	}
	return checkBody(data)
}

func checkBody(data []byte) error {
	if len(data) > maxRequestSize {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxRequestSize))
	}
	return nil
}

// decode reduces the metadata of a received object to its known fields. It returns an error if an API server could not
// decode the object.
func (w write) decode(object *unstructured.Unstructured) error {
	switch gvk := object.GroupVersionKind(); {
	case gvk.Kind == "":
		return apierrors.NewBadRequest("Object 'Kind' is missing")
	case gvk.GroupVersion() != w.table.GVR.GroupVersion():
		return apierrors.NewBadRequest(fmt.Sprintf(
			"the API version in the data (%s) does not match the expected API version (%s)",
			gvk.GroupVersion(), w.table.GVR.GroupVersion()))
	case w.table.rules.builtIn && gvk.Kind != w.table.Kind:
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s",
			gvk.Kind, gvk.Version, w.table.Kind))
	}
	metadata, found := object.Object["metadata"]
	if !found {
		return nil
	}
	data, err := json.Marshal(metadata)
	if err != nil {
		return err
	}
	decoded := &metav1.ObjectMeta{}
	if err := json.Unmarshal(data, decoded); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v",
			object.GetKind(), w.table.GVR.Version, w.table.Kind, err))
	}
	object.Object["metadata"], err = runtime.DefaultUnstructuredConverter.ToUnstructured(decoded)
	return err
}

// address sets the namespace of an object to that of the request. It returns an error if the object does not belong to
// the request.
func (w write) address(object *unstructured.Unstructured) error {
	if object.GetNamespace() == "" || w.key.Namespace == "" {
		object.SetNamespace(w.key.Namespace)
	}
	if object.GetNamespace() != w.key.Namespace {
		return apierrors.NewBadRequest(
			"the namespace of the provided object does not match the namespace sent on the request")
	}
	if w.key.Name != "" && object.GetName() != w.key.Name {
		return apierrors.NewBadRequest(fmt.Sprintf(
			"the name of the object (%s) does not match the name on the URL (%s)", object.GetName(), w.key.Name))
	}
	return nil
}

// checkVersion returns an error if an object with the given resourceVersion cannot replace another. It can set the
// resourceVersion of the object.
func (w write) checkVersion(before, next *unstructured.Unstructured) error {
	version, err := versionOf(next)
	switch {
	case err != nil:
		return unknownError("%v", err)
	case version == 0 && w.table.rules.unconditional:
		next.SetResourceVersion(before.GetResourceVersion())
	case version == 0:
		return apierrors.NewInvalid(w.table.resourceKind(), w.key.Name, field.ErrorList{field.Invalid(
			field.NewPath("metadata", "resourceVersion"), version, "must be specified for an update")})
	case next.GetResourceVersion() != before.GetResourceVersion():
		return w.conflict("%s", modified)
	}
	return nil
}

const modified = "the object has been modified; please apply your changes to the latest version and try again"

// versionOf returns the resourceVersion of an object, or 0 if it has none.
func versionOf(object *unstructured.Unstructured) (uint64, error) {
	if object.GetResourceVersion() == "" {
		return 0, nil
	}
	return strconv.ParseUint(object.GetResourceVersion(), 10, 64)
}

// validate returns an error if the kind or the metadata of an object is invalid. The argument before is nil for a new
// object. The rules are those of kube-apiserver, in apimachinery.
func (w write) validate(before, next *unstructured.Unstructured) error {
	path, namespaced := field.NewPath("metadata"), !w.table.ClusterScoped
	metadata, err := objectMeta(next)
	if err != nil {
		return unknownError("%v", err)
	}
	var errs field.ErrorList
	op, old := operation.Create, (*metav1.ObjectMeta)(nil)
	if before != nil {
		if old, err = objectMeta(before); err != nil {
			return unknownError("%v", err)
		}
		op = operation.Update
		errs = append(errs, validation.ValidateObjectMetaAccessor(metadata, namespaced, isPathSegment, path)...)
		errs = append(errs, validation.ValidateObjectMetaAccessorUpdate(metadata, old, path)...)
	}
	if next.GetKind() != w.table.Kind {
		errs = append(errs, field.Invalid(field.NewPath("kind"), next.GetKind(), "must be "+w.table.Kind))
	} else {
		errs = append(errs, validation.ValidateObjectMetaDeclaratively(context.Background(), op, metadata, old, namespaced,
			w.table.rules.validName, path, true)...)
	}
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(w.table.gvk().GroupKind(), next.GetName(), errs)
}

func objectMeta(object *unstructured.Unstructured) (*metav1.ObjectMeta, error) {
	metadata, _, err := unstructured.NestedMap(object.Object, "metadata")
	if err != nil {
		return nil, err
	}
	decoded := &metav1.ObjectMeta{}
	return decoded, runtime.DefaultUnstructuredConverter.FromUnstructured(metadata, decoded)
}

// checkStored returns an error if an object is too large for etcd.
func checkStored(object *unstructured.Unstructured) error {
	data, err := json.Marshal(object.Object)
	if err != nil {
		return err
	}
	if len(data) > maxStoredSize {
		return unknownError("etcdserver: request is too large")
	}
	return nil
}

// withoutDuplicates removes equal ownerReferences.
func withoutDuplicates(object *unstructured.Unstructured) {
	owners := object.GetOwnerReferences()
	var kept []metav1.OwnerReference
	for _, owner := range owners {
		if !slices.ContainsFunc(kept, func(k metav1.OwnerReference) bool { return equality.Semantic.DeepEqual(k, owner) }) {
			kept = append(kept, owner)
		}
	}
	if len(kept) < len(owners) {
		object.SetOwnerReferences(kept)
	}
}

// checkDelete returns an error if the options of a deletion are invalid.
func checkDelete(opts metav1.DeleteOptions) error {
	return checkOptions("DeleteOptions", metav1validation.ValidateDeleteOptions(&opts))
}
