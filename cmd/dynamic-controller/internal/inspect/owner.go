package inspect

import (
	"context"
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/acceptance"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/explain"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

var definitions = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")

// ownerOf returns the Blueprint of an object. It returns nil if the object is not an instance. If the Blueprint of the
// type is unknown, an object is an instance if the platform has marked it as one.
func (c *Client) ownerOf(
	ctx context.Context, gvr schema.GroupVersionResource, object *unstructured.Unstructured,
) *explain.Owner {
	owner := c.ownerOfType(ctx, gvr)
	if isUnknown(owner) && !instances.IsMarkedInstance(object) {
		return nil
	}
	return owner
}

// isUnknown reports whether the Blueprint of a type could not be determined.
func isUnknown(owner *explain.Owner) bool { return owner != nil && owner.Name == "" }

// ownerOfType returns the Blueprint of a type. It returns nil if the type belongs to no Blueprint.
func (c *Client) ownerOfType(ctx context.Context, gvr schema.GroupVersionResource) *explain.Owner {
	owner, has := c.owners[gvr.GroupResource()]
	if !has {
		owner = c.findOwner(ctx, gvr)
		c.owners[gvr.GroupResource()] = owner
	}
	return owner
}

// isBuiltIn reports whether a group belongs to Kubernetes. All other groups contain a dot.
func isBuiltIn(group string) bool {
	return !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io")
}

func (c *Client) findOwner(ctx context.Context, gvr schema.GroupVersionResource) *explain.Owner {
	if isBuiltIn(gvr.Group) {
		return nil
	}
	if err := c.spend(ctx); err != nil {
		return &explain.Owner{Unread: err.Error()}
	}
	name := gvr.GroupResource().String()
	crd, err := c.metadata.Resource(definitions).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return c.findOwnerByName(ctx, name)
	}
	blueprintName := acceptance.BlueprintOf(crd)
	if blueprintName == "" {
		return nil
	}
	owner := &explain.Owner{Name: blueprintName}
	if err := c.spend(ctx); err != nil {
		owner.Unread = err.Error()
		return owner
	}
	owner.Blueprint, err = c.dynamic.Resource(blueprint.GroupVersionResource).Get(ctx, blueprintName, metav1.GetOptions{})
	if err != nil {
		owner.Blueprint = nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		owner.Unread = err.Error()
	}
	return owner
}

// findOwnerByName finds the Blueprint of a type whose CustomResourceDefinition cannot be read. It prefers a Blueprint
// that is served. It returns an unserved one only if no other Blueprint defines the type.
func (c *Client) findOwnerByName(ctx context.Context, definition string) *explain.Owner {
	list, err := c.blueprints(ctx)
	var matches []*explain.Owner
	for i := range list {
		b, err := blueprint.FromUnstructured(&list[i])
		if err != nil || blueprint.DefinitionName(b) != definition {
			continue
		}
		owner := &explain.Owner{Name: b.Name, Blueprint: &list[i]}
		if b.Status.Served != nil {
			return owner
		}
		matches = append(matches, owner)
	}
	switch {
	case err != nil:
		return &explain.Owner{Unread: err.Error()}
	case len(matches) == 0:
		return nil
	case len(matches) == 1:
		return matches[0]
	}
	return &explain.Owner{Unread: fmt.Sprintf("%d Blueprints define the type, and none of them is served", len(matches))}
}

// blueprints returns all Blueprints. If it returns an error, the list is incomplete.
func (c *Client) blueprints(ctx context.Context) (all []unstructured.Unstructured, err error) {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		if err := c.spend(ctx); err != nil {
			return all, err
		}
		list, err := c.dynamic.Resource(blueprint.GroupVersionResource).List(ctx, options)
		if err != nil {
			return all, err
		}
		all = append(all, list.Items...)
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return all, nil
		}
	}
}

// blueprintDefining returns a Blueprint that defines a type that the API server does not serve, or nil.
func (c *Client) blueprintDefining(ctx context.Context, typeName string) *unstructured.Unstructured {
	list, _ := c.blueprints(ctx)
	name, group, _ := strings.Cut(strings.ToLower(typeName), ".")
	for i := range list {
		b, err := blueprint.FromUnstructured(&list[i])
		if err != nil {
			continue
		}
		t, definition := b.Spec.Type, schema.ParseGroupResource(blueprint.DefinitionName(b))
		names := append([]string{definition.Resource, t.Singular, strings.ToLower(t.Kind)}, t.ShortNames...)
		for _, candidate := range names {
			if candidate != "" && candidate == name &&
				(group == "" || group == definition.Group || group == t.Version+"."+t.Group) {
				return &list[i]
			}
		}
	}
	return nil
}
