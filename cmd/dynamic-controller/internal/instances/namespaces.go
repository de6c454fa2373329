package instances

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// NamespacesOf returns the namespaces in which objects of a type are watched and listed. An empty result means all
// namespaces. It is always empty for a cluster-scoped type, so that instances that were created before Namespaces was
// set can be cleaned up.
func (c Clients) NamespacesOf(gvr schema.GroupVersionResource) []string {
	kind, err := c.Mapper.KindFor(gvr)
	if err != nil {
		return c.Namespaces
	}
	mapping, err := c.Mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err == nil && mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return nil
	}
	return c.Namespaces
}
