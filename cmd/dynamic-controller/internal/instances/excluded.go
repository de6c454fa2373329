package instances

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// absent returns the objects that must not be children because their resources are excluded: objects with the names of
// these resources, and children whose annotation names such a resource. The annotation alone is not sufficient, because
// users who can update a child can change it. Nor is the mark of a child, because users who can create objects in other
// namespaces can forge it. Everything is read from the caches.
func (o *observed) absent(ctx context.Context, excluded []blueprint.Excluded) (all []*unstructured.Unstructured) {
	for _, e := range excluded {
		if e.Name != "" {
			object := &unstructured.Unstructured{}
			object.SetGroupVersionKind(e.GVK)
			object.SetNamespace(e.Namespace)
			object.SetName(e.Name)
			all = append(all, object)
		}
		// The name can have changed since the child was created.
		for _, child := range slices.Concat(o.owned, o.crossNamespace(ctx, e)) {
			if child.GetAnnotations()[resourceAnnotation] == e.ID && child.GroupVersionKind().GroupKind() == e.GVK.GroupKind() {
				all = append(all, child)
			}
		}
	}
	return all
}

// crossNamespace returns the children of an excluded resource on which an owner reference has no effect. If the cache
// has not synced, a later reconcile finds them.
func (o *observed) crossNamespace(ctx context.Context, e blueprint.Excluded) []*unstructured.Unstructured {
	i := slices.IndexFunc(o.kinds, func(kind Child) bool { return kind.GVK == e.GVK })
	if i < 0 || !o.kinds[i].CrossNamespace {
		return nil
	}
	labelled := labels.SelectorFromSet(labels.Set{parentLabel: string(o.self.GetUID())})
	children, _ := o.reader.List(ctx, o.kinds[i].GVR, "", labelled)
	return slices.DeleteFunc(children, func(child *unstructured.Unstructured) bool {
		return !o.recorded(e.GVK.GroupKind(), child.GetNamespace())
	})
}
