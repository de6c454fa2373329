package inspect

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// Types returns completions for the beginning of an argument: "blueprints/" and the types that Blueprints define, as
// far as they can be read.
func (c *Client) Types(ctx context.Context) []string {
	types := []string{blueprint.GroupVersionResource.Resource + "/"}
	list, _ := c.blueprints(ctx)
	for i := range list {
		if b, err := blueprint.FromUnstructured(&list[i]); err == nil {
			types = append(types, blueprint.DefinitionName(b)+"/")
		}
	}
	slices.Sort(types)
	return slices.Compact(types)
}

// Names returns the names of the objects of a type in a namespace. It returns nil if they cannot be read.
func (c *Client) Names(ctx context.Context, typeName, namespace string) (names []string) {
	mapping, err := c.mappingFor(ctx, typeName)
	if err != nil {
		return nil
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		namespace = ""
	}
	list, err := c.metadata.Resource(mapping.Resource).Namespace(namespace).List(ctx,
		metav1.ListOptions{Limit: pageSize})
	if err != nil {
		return nil
	}
	for _, item := range list.Items {
		names = append(names, item.Name)
	}
	return names
}
