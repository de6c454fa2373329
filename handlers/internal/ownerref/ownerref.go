// Package ownerref computes owner references of children.
package ownerref

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// CanReach reports whether an object in the namespace can have an owner reference to the owner. For a cluster-scoped
// object, the namespace is empty.
func CanReach(owner metav1.Object, namespace string) bool {
	return owner.GetNamespace() == "" || owner.GetNamespace() == namespace
}

// WithController returns the owner references of an object with the owner added as controller, for use in an
// unstructured object.
func WithController(object metav1.Object, owner *unstructured.Unstructured) ([]any, error) {
	refs := append(Without(object, owner), *metav1.NewControllerRef(owner, owner.GroupVersionKind()))
	list := make([]any, len(refs))
	for i := range refs {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&refs[i])
		if err != nil {
			return nil, err
		}
		list[i] = content
	}
	return list, nil
}

// Without returns the owner references of an object except those to the owner. It never returns nil because null in a
// merge patch does not mean an empty list.
func Without(object, owner metav1.Object) []metav1.OwnerReference {
	left := []metav1.OwnerReference{}
	for _, ref := range object.GetOwnerReferences() {
		if ref.UID != owner.GetUID() {
			left = append(left, ref)
		}
	}
	return left
}

// Refers reports whether an object has an owner reference to the owner.
func Refers(object, owner metav1.Object) bool {
	return len(Without(object, owner)) < len(object.GetOwnerReferences())
}
