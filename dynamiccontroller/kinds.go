package dynamiccontroller

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ResourceFor returns the GVR of a kind, for callers of StartServingGVK who have a GVK. The mapper may be any; its own
// errors are wrapped, so that meta.IsNoMatchError tells a kind that there is not.
func ResourceFor(mapper meta.RESTMapper, gvk schema.GroupVersionKind) (schema.GroupVersionResource, error) {
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return schema.GroupVersionResource{}, fmt.Errorf("find the resource of %s: %w", gvk, err)
	}
	return mapping.Resource, nil
}
