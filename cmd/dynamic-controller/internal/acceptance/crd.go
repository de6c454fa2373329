package acceptance

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// typedCRD is a cache transform. It returns a typed CustomResourceDefinition without the fields that the platform does
// not use.
func typedCRD(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, crd); err != nil {
		return nil, fmt.Errorf("decode the CustomResourceDefinition %s: %w", u.GetName(), err)
	}
	crd.ManagedFields = nil
	delete(crd.Annotations, corev1.LastAppliedConfigAnnotation) // it contains a copy of the schemas
	return crd, nil
}

// isOwnedBy reports whether crd was created for the Blueprint with the given UID. crd can be nil.
func isOwnedBy(crd *apiextensionsv1.CustomResourceDefinition, uid types.UID) bool {
	return crd != nil && crd.Annotations[ownerUIDAnnotation] == string(uid)
}

// isReservedFor reports whether the platform created the CustomResourceDefinition for this Blueprint or for an earlier
// Blueprint with the same name. If it was created for an earlier Blueprint, either that Blueprint was deleted and its
// type was retained, or this Blueprint was restored from a backup and has a new UID.
func isReservedFor(crd *apiextensionsv1.CustomResourceDefinition, b *blueprint.Blueprint) bool {
	return isOwnedBy(crd, b.UID) || crd.Annotations[ownerNameAnnotation] == b.Name
}

// isCreatedByPlatform reports whether the platform created the CustomResourceDefinition for any Blueprint.
func isCreatedByPlatform(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return crd.Annotations[ownerUIDAnnotation] != "" || crd.Annotations[ownerNameAnnotation] != ""
}

// allows reports whether an annotation on the CustomResourceDefinition allows the Blueprint to serve its type. It
// returns false if the platform created the CustomResourceDefinition.
func allows(crd *apiextensionsv1.CustomResourceDefinition, blueprintName string) bool {
	return !isCreatedByPlatform(crd) && crd.Annotations[allowedAnnotation] == blueprintName
}

// BlueprintOf returns the name of the Blueprint for which the platform created the CustomResourceDefinition. If the
// platform did not create it, BlueprintOf returns the name of the Blueprint that is allowed to serve the type, or "".
func BlueprintOf(crd metav1.Object) string {
	return cmp.Or(crd.GetAnnotations()[ownerNameAnnotation], crd.GetAnnotations()[allowedAnnotation])
}

// notEstablished returns a reason and a message if the API server does not serve the type, or serves it with earlier
// names. Otherwise, it returns empty strings.
func notEstablished(crd *apiextensionsv1.CustomResourceDefinition) (reason, message string) {
	switch {
	case crd.DeletionTimestamp != nil:
		return "Terminating", "the CustomResourceDefinition is being deleted"
	case apihelpers.IsCRDConditionFalse(crd, apiextensionsv1.NamesAccepted):
		return "NamesNotAccepted", apihelpers.FindCRDCondition(crd, apiextensionsv1.NamesAccepted).Message
	case apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established):
		return "", ""
	}
	return "Installing", "the API server has not established the type yet"
}

// gvrOf returns the GVR of the instances. Its version is the storage version if that version is served, and the first
// served version otherwise. The GVR is empty if no version is served.
func gvrOf(crd *apiextensionsv1.CustomResourceDefinition) schema.GroupVersionResource {
	version := blueprint.VersionOf(crd)
	if version == "" {
		return schema.GroupVersionResource{}
	}
	return schema.GroupVersionResource{Group: crd.Spec.Group, Version: version, Resource: crd.Spec.Names.Plural}
}
