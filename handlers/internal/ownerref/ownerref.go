// Package ownerref computes owner references of children and decides which objects an owner can adopt.
package ownerref

import (
	"context"
	"errors"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/internal/live"
	"github.com/dynamic-controller/engine/handlers/internal/patch"
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

// CanAdoptFunc returns a function that returns an error if the owner cannot adopt objects. On its first call, the
// function reads the owner from the API server.
func CanAdoptFunc(
	ctx context.Context, client dynamic.Interface, id dynamiccontroller.ObjectIdentifiers,
	owner *unstructured.Unstructured,
) func() error {
	return sync.OnceValue(func() error { return canAdopt(ctx, client, id, owner) })
}

// canAdopt does not wrap errors about the owner because callers would otherwise mistake them for errors about the
// child.
func canAdopt(
	ctx context.Context, client dynamic.Interface, id dynamiccontroller.ObjectIdentifiers,
	owner *unstructured.Unstructured,
) error {
	now, err := live.Get(ctx, client, id)
	switch {
	case err != nil:
		return fmt.Errorf("read the owner before adopting: %s", err.Error())
	case now.GetUID() != owner.GetUID():
		return fmt.Errorf("the owner cannot adopt: %s: its UID is %s, not %s",
			patch.ErrReplaced.Error(), now.GetUID(), owner.GetUID())
	case now.GetDeletionTimestamp() != nil:
		return errors.New("the owner cannot adopt: it is being deleted")
	}
	return nil
}
