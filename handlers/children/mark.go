package children

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
)

// MarkedUID returns the UID of the parent in the mark of an object, if the mark names a parent with the same kind,
// namespace and name as the given one, in a format that this version can read. Otherwise, and for a retained child, it
// returns "". Compare it with the UIDs of existing parents to find children that have outlived their parent. The name
// is the [Config].Name of the parent's [Reconciler]. Anyone who can create an object can forge a mark.
func MarkedUID(object, parent metav1.Object, kind schema.GroupKind, name string) types.UID {
	return decide.Names(name).MarkedUID(object, parent, kind)
}

// readNamespaceUID returns the UID of the parent's namespace. It cannot change during the life of the parent. The
// result is empty if the Reconciler cannot read the namespace. It is called at most once per call, see
// call.namespaceUID.
func (c *call) readNamespaceUID(ctx context.Context) (types.UID, error) {
	if c.cache.namespace.parent == c.parent.GetUID() {
		return c.cache.namespace.uid, nil
	}
	namespace, err := c.readNamespace(ctx)
	if err != nil || namespace == nil {
		return "", err
	}
	c.cache.namespace = namespaceOfParent{parent: c.parent.GetUID(), uid: namespace.GetUID()}
	return namespace.GetUID(), nil
}

// readNamespace reads the parent's namespace. It returns nil if the Reconciler cannot read it, and does not repeat the
// request in this call.
func (c *call) readNamespace(ctx context.Context) (*unstructured.Unstructured, error) {
	if c.noNamespace {
		return nil, nil
	}
	namespaces := c.config.Client.Resource(corev1.SchemeGroupVersion.WithResource("namespaces"))
	namespace, err := namespaces.Get(ctx, c.parent.GetNamespace(), metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		c.noNamespace = true
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the namespace of the parent: %w", err)
	}
	return namespace, nil
}
