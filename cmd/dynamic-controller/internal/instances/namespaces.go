package instances

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/handlers/children"
)

// NamespacesOf returns the namespaces in which objects of a type are watched and listed. An empty result means all
// namespaces. It is always empty for a cluster-scoped type, whose instances can only be cleaned up.
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

// explain adds to an error what to do if a namespace is missing in Clients.Namespaces.
func explain(err error) error {
	if errors.Is(err, children.ErrNamespaceNotListed) {
		return fmt.Errorf("%w; add the namespace to --namespaces", err)
	}
	return err
}
