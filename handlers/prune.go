package handlers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// prune deletes what is the parent's and not wanted, and strikes off the inventory the kinds of which nothing is left and
// nothing is wanted later.
func (p *pass) prune(ctx context.Context) error {
	var errs []error
	var empty inventory
	followed, _ := p.inventoryOf(p.id, p.parent, p.follows)
	for _, entry := range followed {
		left, err := p.pruneKind(ctx, entry)
		switch _, wanted := p.plan.mappings[entry.kind]; {
		case err != nil:
			errs = append(errs, fmt.Errorf("prune the children of %s that are a %s: %w", p.id, entry.kind, err))
		case left && !wanted:
			p.waiting = true // until the kind can be struck off
		case !left && !wanted:
			empty = append(empty, entry)
		}
	}
	if len(errs) == 0 && len(empty) > 0 {
		errs = append(errs, p.strike(ctx, empty))
	}
	return errors.Join(errs...)
}

// pruneKind prunes the children of a kind, and reports whether the parent has, or may have, any children of the kind
// left.
func (p *pass) pruneKind(ctx context.Context, entry inventoryEntry) (left bool, err error) {
	var gvr schema.GroupVersionResource
	var children []*unstructured.Unstructured
	if mapping := p.plan.mappings[entry.kind]; mapping != nil {
		gvr = mapping.Resource
		children, err = p.list(ctx, childType{entry.kind, gvr, isClusterScoped(mapping)}, p.parent, true)
	} else {
		gvr, children, err = p.listLive(ctx, entry, p.parent)
	}
	if err != nil {
		return false, err
	}
	var errs []error
	for _, child := range children {
		id := identify(gvr, child)
		key := childKey{kind: entry.kind, key: id.NamespacedKey}
		if p.plan.wanted[key] {
			continue
		}
		left = true
		if p.deleted[key] {
			continue
		}
		errs = append(errs, p.remove(ctx, id, child))
	}
	return left, errors.Join(errs...)
}

// remove deletes a child that is not wanted, or releases it if it matches the selector no longer.
func (p *pass) remove(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, child *unstructured.Unstructured) error {
	if child.GetDeletionTimestamp() != nil {
		return nil
	}
	selector := p.config.Selector
	if selector != nil && metav1.GetControllerOfNoCopy(child) != nil && !selector.Matches(labels.Set(child.GetLabels())) {
		return p.release(ctx, id, child)
	}
	p.memory.forgetChild(p.id, id)
	return p.delete(ctx, id, p.parent, child)
}

// delete deletes a child if it still is the parent's.
func (c *Children) delete(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent, child *unstructured.Unstructured) error {
	objects := resource(c.config.Client, id.GVR, id.Namespace())
	err := onConflict(ctx, objects, child, func(current *unstructured.Unstructured) error {
		if !c.isOurs(current, parent) || current.GetDeletionTimestamp() != nil {
			return nil
		}
		return objects.Delete(ctx, id.Name(), metav1.DeleteOptions{
			Preconditions:     &metav1.Preconditions{UID: ptr.To(current.GetUID()), ResourceVersion: ptr.To(current.GetResourceVersion())},
			PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
		})
	})
	if err != nil && !isGoneOrReplaced(err) {
		return fmt.Errorf("delete %s: %w", id, err)
	}
	return nil
}

// release makes a child nobody's, unless it has changed: then it is looked at again the next time.
func (p *pass) release(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, child *unstructured.Unstructured) error {
	_, err := patchMetadata(ctx, resource(p.config.Client, id.GVR, id.Namespace()), child, p.config.Name, map[string]any{
		"ownerReferences": withoutOwner(child, p.parent),
		"labels":          map[string]any{p.parentLabel(): nil},
		"annotations":     map[string]any{p.appliedKey(): nil},
	})
	p.memory.forgetChild(p.id, id)
	if isGoneOrReplaced(err) {
		return nil
	}
	return err
}

// listLive returns all of the parent's children of a kind, and their resource. An unknown kind does not mean that there
// are no children: a mapper lags, and does not know the kinds of a group whose discovery has failed since it started.
// Children of a kind that the mapper does not know are listed with the resource in the inventory. If the API server
// does not serve that resource, the children are gone.
func (c *Children) listLive(ctx context.Context, entry inventoryEntry, parent *unstructured.Unstructured) (schema.GroupVersionResource, []*unstructured.Unstructured, error) {
	of := childType{kind: entry.kind, gvr: entry.gvr()}
	mapping, err := c.config.Mapper.RESTMapping(entry.kind)
	switch {
	case err == nil:
		of.gvr, of.clusterScoped = mapping.Resource, isClusterScoped(mapping)
	case !meta.IsNoMatchError(err) || entry.resource == "":
		return of.gvr, nil, fmt.Errorf("find its resource: %w", err)
	}
	children, listErr := c.list(ctx, of, parent, false)
	if err != nil && apierrors.IsNotFound(listErr) {
		return of.gvr, nil, nil
	}
	return of.gvr, children, listErr
}

// childType is a kind of children, and the resource that they are served as.
type childType struct {
	kind          schema.GroupKind
	gvr           schema.GroupVersionResource
	clusterScoped bool // false if unknown
}

func isClusterScoped(mapping *meta.RESTMapping) bool {
	return mapping.Scope.Name() == meta.RESTScopeNameRoot
}

// canBeElsewhere reports whether children of a kind can be outside the namespace of a namespaced parent. The author
// must have declared the kind with Elsewhere, and the parent must have the finalizer, which it is given before the
// first such child is written.
func (c *Children) canBeElsewhere(kind schema.GroupKind, parent *unstructured.Unstructured) bool {
	return c.kinds[kind] && parent.GetNamespace() != "" && slices.Contains(parent.GetFinalizers(), c.finalizer())
}

// list returns the parent's children of a type, from the cache only where a stale answer does no harm.
func (c *Children) list(ctx context.Context, of childType, parent *unstructured.Unstructured, mayBeStale bool) ([]*unstructured.Unstructured, error) {
	gvr, namespace := of.gvr, parent.GetNamespace()
	elsewhere := c.canBeElsewhere(of.kind, parent)
	switch {
	case elsewhere:
		namespace = ""
	case namespace != "" && of.clusterScoped:
		return nil, nil
	}
	marked := labels.SelectorFromSet(labels.Set{c.parentLabel(): string(parent.GetUID())})
	var children []*unstructured.Unstructured
	err := dynamiccontroller.ErrNotServed
	switch {
	case !mayBeStale:
	case c.config.Owned != nil && !elsewhere:
		children, err = c.owned(gvr, parent)
	case c.config.Cache != nil:
		children, err = c.config.Cache.List(ctx, gvr, namespace, marked)
	}
	if isUncached(err) {
		children, err = Live(c.config.Client).List(ctx, gvr, namespace, marked)
	}
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(children), func(child *unstructured.Unstructured) bool { return !c.isOurs(child, parent) }), nil
}

// owned asks the index by owner. Metadata is all that it takes to delete or release a child.
func (c *Children) owned(gvr schema.GroupVersionResource, parent *unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	objects, err := c.config.Owned(gvr, parent.GetUID())
	if err != nil {
		return nil, err
	}
	children := make([]*unstructured.Unstructured, len(objects))
	for i, object := range objects {
		if whole, ok := object.(*unstructured.Unstructured); ok {
			children[i] = whole
			continue
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return nil, err
		}
		children[i] = &unstructured.Unstructured{Object: content}
	}
	return children, nil
}

// cleanUp deletes the children of a deleted parent that Kubernetes does not delete, and removes the finalizer when they are
// gone.
func (c *Children) cleanUp(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured) error {
	if !slices.Contains(parent.GetFinalizers(), c.finalizer()) {
		c.Forget(id)
		return nil
	}
	left := false
	var errs []error
	followed, _ := c.inventoryOf(id, parent, c.kinds.follows)
	for _, entry := range followed {
		if !c.canBeElsewhere(entry.kind, parent) {
			continue
		}
		gvr, children, err := c.listLive(ctx, entry, parent)
		if err != nil {
			errs = append(errs, fmt.Errorf("clean up the children of %s that are a %s: %w", id, entry.kind, err))
		}
		for _, child := range children {
			if canOwn(parent, child.GetNamespace()) {
				continue
			}
			left = true
			errs = append(errs, c.delete(ctx, identify(gvr, child), parent, child))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if left {
		return dynamiccontroller.RequeueAfter(c.memory.waits(id))
	}
	if err := removeFinalizer(ctx, c.parents(id), parent, c.finalizer()); err != nil {
		return fmt.Errorf("remove finalizer %s from %s: %w", c.finalizer(), id, err)
	}
	c.Forget(id)
	return nil
}
