package instances

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// absent returns the objects that must not be children because their resources are excluded: the objects with the names
// that the excluded resources specify, and the children whose annotation contains the id of an excluded resource. The
// annotation alone is not sufficient to find them, because users who can update a child can change it. Children in
// other namespaces are included only if the inventory contains the namespace, because users there can forge the parent
// label. Only the caches are read.
func (o *observed) absent(ctx context.Context, excluded []blueprint.Excluded) (all []*unstructured.Unstructured) {
	if len(excluded) == 0 {
		return nil
	}
	owned := map[string][]*unstructured.Unstructured{} // by resource id
	for _, child := range o.owned {
		id := child.GetAnnotations()[resourceAnnotation]
		owned[id] = append(owned[id], child)
	}
	for _, e := range excluded {
		if e.Reference {
			continue
		}
		for _, name := range e.Names {
			object := &unstructured.Unstructured{}
			object.SetGroupVersionKind(e.GVK)
			object.SetNamespace(name.Namespace)
			object.SetName(name.Name)
			all = append(all, object)
		}
		// The name can have changed since the child was created.
		for _, child := range owned[e.ID] {
			if child.GroupVersionKind().GroupKind() == e.GVK.GroupKind() {
				all = append(all, child)
			}
		}
		all = append(all, o.crossNamespace(ctx, e)...)
	}
	return all
}

// newlyExcluded returns the resources that are excluded now but were not before.
func newlyExcluded(before, now []blueprint.Excluded) []blueprint.Excluded {
	return slices.DeleteFunc(slices.Clone(now), func(e blueprint.Excluded) bool {
		return slices.ContainsFunc(before, func(b blueprint.Excluded) bool { return b.ID == e.ID })
	})
}

// crossNamespace returns the metadata of the cached children of an excluded resource's kind if the kind can have
// children on which owner references have no effect. If the cache has not synced, a later reconcile finds these
// children.
func (o *observed) crossNamespace(ctx context.Context, e blueprint.Excluded) (children []*unstructured.Unstructured) {
	i := slices.IndexFunc(o.kinds, func(kind Child) bool { return kind.GVK == e.GVK })
	if i < 0 || !o.kinds[i].CrossNamespace {
		return nil
	}
	lister, err := o.lister(o.kinds[i].GVR)
	if err != nil {
		return nil
	}
	found, _ := lister.Objects("", ChildSelector(o.self))
	for j, child := range found {
		found[j] = nil // holds its decoded metadata
		isOfResource := child.GetAnnotations()[resourceAnnotation] == e.ID
		if !isOfResource || !o.recorded(e.GVK.GroupKind(), child.GetNamespace()) {
			continue
		}
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(e.GVK)
		object.SetNamespace(child.GetNamespace())
		object.SetName(child.GetName())
		if reserve(ctx, object) != nil {
			return nil // ctx is cancelled
		}
		children = append(children, object)
	}
	return children
}
