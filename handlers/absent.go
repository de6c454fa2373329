package handlers

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// deleteAbsent deletes the children in Desired.Absent. If one deletion fails, it continues with the others.
func (p *pass) deleteAbsent(ctx context.Context, desired Desired) error {
	if len(desired.Absent) == 0 {
		return nil
	}
	wanted := map[childKey]bool{}
	for _, stage := range desired.Stages {
		for _, object := range stage {
			wanted[p.keyOf(object)] = true
		}
	}
	var errs []error
	for _, object := range desired.Absent {
		key := p.keyOf(object)
		if wanted[key] || p.deleted[key] {
			continue
		}
		if err := p.deleteOne(ctx, key, object); err != nil {
			errs = append(errs, fmt.Errorf("delete the unwanted child %s %s of %s: %w", key.kind, key.key, p.id, err))
		}
	}
	return errors.Join(errs...)
}

// keyOf returns the key of a desired object. An object without a namespace gets its parent's, so that a cluster-scoped
// object has the same key in Stages and in Absent.
func (p *pass) keyOf(object *unstructured.Unstructured) childKey {
	name := cache.MetaObjectToName(object)
	if name.Namespace == "" {
		name.Namespace = p.parent.GetNamespace()
	}
	return childKey{kind: object.GroupVersionKind().GroupKind(), key: name.String()}
}

// deleteOne deletes an object if it is the parent's child. It does nothing if the mapper does not know the kind.
func (p *pass) deleteOne(ctx context.Context, key childKey, object *unstructured.Unstructured) error {
	mapping, err := p.config.Mapper.RESTMapping(key.kind, object.GroupVersionKind().Version)
	switch {
	case meta.IsNoMatchError(err):
		return nil
	case err != nil:
		return fmt.Errorf("find its resource: %w", err)
	}
	name := cache.MetaObjectToName(object)
	if name.Namespace == "" && !isClusterScoped(mapping) {
		name.Namespace = p.parent.GetNamespace()
	}
	id := dynamiccontroller.ObjectIdentifiers{GVR: mapping.Resource, NamespacedKey: name.String()}
	current, err := p.peek(ctx, id)
	if err != nil {
		return fmt.Errorf("read it: %w", err)
	}
	if current == nil || current.GetDeletionTimestamp() != nil || !p.isOurs(current, p.parent) {
		return nil
	}
	if p.deleted == nil {
		p.deleted = map[childKey]bool{}
	}
	p.deleted[childKey{kind: key.kind, key: id.NamespacedKey}] = true
	return p.remove(ctx, id, current)
}

// peek returns the object in the cache, or nil. It makes a request only if the cache cannot answer.
func (p *pass) peek(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) (*unstructured.Unstructured, error) {
	reader := Live(p.config.Client)
	if p.config.Cache != nil {
		reader = p.config.Cache
	}
	current, err := reader.Get(ctx, id.GVR, id.Namespace(), id.Name())
	if isUncached(err) {
		current, err = Live(p.config.Client).Get(ctx, id.GVR, id.Namespace(), id.Name())
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return current, err
}
