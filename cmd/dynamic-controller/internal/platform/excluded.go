package platform

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// absent returns the objects that must not be children because their resources are excluded: objects with the names of
// these resources, and children whose annotation names such a resource. The annotation alone is not sufficient, because
// users who can update a child can change it. Everything is read from the caches.
func (p *present) absent(ctx context.Context, excluded []blueprint.Excluded) (all []*unstructured.Unstructured) {
	for _, e := range excluded {
		if e.Name != "" {
			object := &unstructured.Unstructured{}
			object.SetGroupVersionKind(e.GVK)
			object.SetNamespace(e.Namespace)
			object.SetName(e.Name)
			all = append(all, object)
		}
		// The name can have changed since the child was created.
		for _, child := range slices.Concat(p.owned, p.elsewhere(ctx, e)) {
			if child.GetAnnotations()[resourceKey] == e.ID && child.GroupVersionKind().GroupKind() == e.GVK.GroupKind() {
				all = append(all, child)
			}
		}
	}
	return all
}

// elsewhere lists the children of an excluded resource that are missing in the index by owner, because an owner
// reference has no effect on them. Children that cannot be read now are found once their cache has synced.
func (p *present) elsewhere(ctx context.Context, e blueprint.Excluded) []*unstructured.Unstructured {
	i := slices.IndexFunc(p.kinds, func(kind childKind) bool { return kind.gvk == e.GVK })
	if i < 0 || !p.kinds[i].foreign {
		return nil
	}
	marked := labels.SelectorFromSet(labels.Set{parentKey: string(p.self.GetUID())})
	children, _ := p.reader.List(ctx, p.kinds[i].gvr, "", marked)
	return children
}
