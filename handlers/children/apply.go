package children

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/retry"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/internal/applied"
	"github.com/dynamic-controller/engine/handlers/internal/live"
	"github.com/dynamic-controller/engine/handlers/internal/ownerref"
	"github.com/dynamic-controller/engine/handlers/internal/patch"
)

// applyStages applies the stages in order and stops after an incomplete stage. It returns the desired children that
// exist.
func (c *call) applyStages(ctx context.Context) (children []*unstructured.Unstructured, err error) {
	for _, stage := range c.desired.stages {
		var errs []error
		for _, child := range stage {
			if child.err != nil {
				errs = append(errs, c.childError(child, child.err))
				continue
			}
			now, err := c.apply(ctx, child)
			if errors.Is(err, errParentGone) {
				return children, err
			}
			if err != nil {
				errs = append(errs, c.childError(child, err))
			}
			if now != nil {
				children = append(children, now)
			}
		}
		if len(errs) > 0 || c.waiting {
			return children, errors.Join(errs...)
		}
	}
	return children, nil
}

// apply creates or updates a child if necessary, and returns it. If the API server rejects the write because the child
// has been changed or created in the meantime, apply reads the child from the API server and tries again.
func (c *call) apply(ctx context.Context, child *child) (now *unstructured.Unstructured, err error) {
	read := c.read
	err = retry.OnError(retry.DefaultRetry, apierrors.IsConflict, func() error {
		current, err := read(ctx, child)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		read = c.readLive
		now, err = c.applyTo(ctx, child, current)
		return err
	})
	return now, err
}

// applyTo applies a child on top of the current object. If current is nil, it creates the object.
func (c *call) applyTo(
	ctx context.Context, child *child, current *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	if current == nil {
		return c.create(ctx, child)
	}
	if current.GetDeletionTimestamp() != nil {
		c.waiting = true
		c.pending = append(c.pending, c.newPending(inventoryEntry{kind: child.kind}, child.id.GVR, current))
		if !isDeletionStuck(current) {
			return current, nil
		}
		return current, c.delete(ctx, child.id, current)
	}
	owned, err := c.isOwned(child, current)
	if err == nil && !owned {
		err = c.canAdopt()
	}
	switch {
	case err != nil:
		return nil, err
	case child.Retain && ownerref.Refers(current, c.parent):
		objects := live.Resource(c.as.Client, child.id.GVR, child.id.Namespace())
		changes := map[string]any{"ownerReferences": ownerref.Without(current, c.parent)}
		if current, err = patch.Metadata(ctx, objects, current, c.config.Name, changes); err != nil {
			return nil, err
		}
	case owned && c.isUpToDate(child, current):
		return current, nil
	}
	// The UID prevents an outdated write from recreating a deleted child. The resourceVersion prevents it from taking back
	// a child that has been released or orphaned. If an orphaned child got an owner reference to a parent that no longer
	// exists, Kubernetes would garbage-collect the child.
	return c.write(ctx, child, true, map[string]any{
		"uid": string(current.GetUID()), "resourceVersion": current.GetResourceVersion(),
	})
}

// read returns the child from the cache, or nil if it does not exist. It reads from the API server in two cases: the
// cache does not serve the type, or it lacks a child that this run has applied or failed to create. In the second case,
// either the cache lags behind, or the existing object is not a child and therefore not in the cache. All other
// children that the cache lacks are assumed not to exist; if one exists, creating it fails.
func (c *call) read(ctx context.Context, child *child) (*unstructured.Unstructured, error) {
	current, err := c.readCached(ctx, child.id)
	_, wasWritten := c.cache.children[child.id]
	switch {
	case isUncached(err), apierrors.IsNotFound(err) && wasWritten:
		return c.readLive(ctx, child)
	case apierrors.IsNotFound(err):
		return nil, nil
	}
	return current, err
}

func (c *call) readLive(ctx context.Context, child *child) (*unstructured.Unstructured, error) {
	current, err := live.Get(ctx, c.as.Client, child.id)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return current, err
}

func (c *call) readCached(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers,
) (*unstructured.Unstructured, error) {
	if c.as.Cache == nil {
		return nil, dynamiccontroller.ErrNotServed
	}
	return c.as.Cache.Get(ctx, id.GVR, id.Namespace(), id.Name())
}

// isUncached reports whether the error means that the cache does not serve the type, or does not serve it yet.
func isUncached(err error) bool {
	return errors.Is(err, dynamiccontroller.ErrNotServed) || errors.Is(err, dynamiccontroller.ErrNotSynced)
}

// isUpToDate reports whether the child need not be applied.
func (c *call) isUpToDate(child *child, current *unstructured.Unstructured) bool {
	last := c.cache.children[child.id]
	if last.written.isAfter(current) {
		return last.hash == child.hash // the cached object predates the last apply
	}
	if applied.Covers(child.config.Object, current.Object) && c.ownsFields(child, current) {
		return true
	}
	if last.hash != child.hash || last.written.uid != current.GetUID() {
		return false
	}
	now, err := c.signatureOf(child, current)
	return err == nil && now.values == last.signature.values &&
		(now.owned == "" || now.owned == last.signature.owned)
}

// ownsFields reports whether this controller owns all fields that it applied, according to the managed fields.
func (c *call) ownsFields(child *child, current *unstructured.Unstructured) bool {
	fields, ok := applied.FieldsOf(current, c.config.Name)
	if !ok {
		return true
	}
	for name, value := range child.config.Object {
		switch name {
		case "apiVersion", "kind":
		case "metadata":
			for name, value := range value.(map[string]any) {
				if name != "name" && name != "namespace" && !fields["f:metadata"].Owns(map[string]any{name: value}) {
					return false
				}
			}
		default:
			if !fields.Owns(map[string]any{name: value}) {
				return false
			}
		}
	}
	return true
}

// signature contains two digests of the fields that were applied to an object: one of their stored values, and one of
// their ownership. If the object has no managed fields, owned is empty.
type signature struct{ values, owned string }

func (c *call) signatureOf(child *child, current *unstructured.Unstructured) (s signature, err error) {
	if s.values, err = applied.Digest(applied.Projection(child.config.Object, current.Object)); err != nil {
		return signature{}, err
	}
	if fields, ok := applied.FieldsOf(current, c.config.Name); ok {
		s.owned, err = applied.Digest(fields)
	}
	return s, err
}

// write applies the child with additional metadata.
func (c *call) write(
	ctx context.Context, child *child, force bool, metadata map[string]any,
) (*unstructured.Unstructured, error) {
	config := child.config.DeepCopy()
	for field, value := range metadata {
		if err := unstructured.SetNestedField(config.Object, value, "metadata", field); err != nil {
			return nil, err
		}
	}
	objects := live.Resource(c.as.Client, child.id.GVR, child.id.Namespace())
	options := metav1.ApplyOptions{FieldManager: c.config.Name, Force: force}
	now, err := objects.Apply(ctx, child.id.Name(), config, options)
	if err != nil {
		return nil, fmt.Errorf("apply: %w", err)
	}
	signature, err := c.signatureOf(child, now)
	if err != nil {
		return nil, err
	}
	c.cache.children[child.id] = appliedChild{hash: child.hash, written: versionOf(now), signature: signature}
	return now, nil
}
