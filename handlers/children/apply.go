package children

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/retry"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/internal/applied"
	"github.com/dynamic-controller/engine/handlers/internal/live"
	"github.com/dynamic-controller/engine/handlers/internal/ownerref"
	"github.com/dynamic-controller/engine/handlers/internal/ownership"
	"github.com/dynamic-controller/engine/handlers/internal/patch"
)

// applyStages applies the stages in order. After a stage with a child that blocks later stages, the other children
// wait.
func (c *call) applyStages(ctx context.Context) error {
	blocked := -1
	for n, stage := range c.desired.stages {
		if blocked >= 0 {
			for _, child := range stage {
				child.await(ReasonEarlierStage, fmt.Sprintf("waits until stage %d of %d is complete",
					blocked+1, len(c.desired.stages)))
			}
			continue
		}
		if err := c.applyStage(ctx, stage); err != nil {
			return err
		}
		if slices.ContainsFunc(stage, (*child).blocks) {
			blocked = n
		}
	}
	return nil
}

// applyStage applies the children in a stage that do not have their desired state, according to the cache. It returns
// errParentGone if the parent is gone.
func (c *call) applyStage(ctx context.Context, stage []*child) error {
	var groups [3][]*child
	for _, child := range stage {
		switch err := cmp.Or(child.err, c.checkRecorded(child)); {
		case err != nil:
			child.settle(nil, err)
		case c.isSettled(ctx, child):
		default:
			n := groupOf(child.kind)
			groups[n] = append(groups[n], child)
		}
	}
	for _, group := range groups {
		c.remember(ctx, group)
		if err := c.applyAll(ctx, group); err != nil {
			return err
		}
	}
	return nil
}

// groupOf returns 0 for namespaces, 1 for kinds whose objects the API server looks up when it creates others, and 2 for
// all other kinds. Groups are applied one after another: a Pod is rejected while its ServiceAccount does not exist.
func groupOf(kind schema.GroupKind) int {
	switch kind {
	case schema.GroupKind{Kind: "Namespace"}:
		return 0
	case schema.GroupKind{Kind: "ServiceAccount"},
		schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "Role"},
		schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole"},
		schema.GroupKind{Group: "scheduling.k8s.io", Kind: "PriorityClass"},
		schema.GroupKind{Group: "node.k8s.io", Kind: "RuntimeClass"},
		schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}:
		return 1
	}
	return 2
}

// isSettled reports whether a child has its desired state, according to the cache.
func (c *call) isSettled(ctx context.Context, child *child) bool {
	current, err := c.readCached(ctx, child.id)
	child.uncached = errors.Is(err, dynamiccontroller.ErrNotServed)
	if err == nil {
		child.found = &found{current}
	}
	if err != nil || current.GetDeletionTimestamp() != nil || current.GetAnnotations()[c.restoredKey()] != "" ||
		child.Retain && ownerref.Refers(current, c.parent) {
		return false
	}
	if owned, err := c.isOwned(ctx, child, current); err != nil || !owned ||
		c.isRetained(current) && c.checkWitness(child) != nil || !c.isUpToDate(child, current) {
		return false
	}
	child.settle(current, nil)
	return true
}

// applyAll applies children concurrently. Those that do not exist are created after the parent has been read.
func (c *call) applyAll(ctx context.Context, children []*child) error {
	for len(children) > 0 {
		c.inParallel(ctx, children, func(child *child) {
			now, err := c.apply(ctx, child)
			if now != nil {
				now = c.written(child, now)
			}
			child.settle(now, err)
		})
		if slices.ContainsFunc(children, func(child *child) bool { return errors.Is(child.result.Err, errParentGone) }) {
			return errParentGone
		}
		children = slices.DeleteFunc(slices.Clone(children), func(child *child) bool {
			return !errors.Is(child.result.Err, errParentUnread)
		})
		if len(children) == 0 {
			return nil
		}
		switch err := c.checkParent(ctx); {
		case errors.Is(err, errParentGone):
			return err
		case err != nil:
			for _, child := range children {
				child.settle(nil, err)
			}
			return nil
		}
	}
	return nil
}

// apply creates or updates a child if necessary, and returns it. If the API server rejects the write because the child
// has been changed or created in the meantime, apply reads the child from the API server and tries again. Children are
// applied concurrently: apply changes nothing but the child.
func (c *call) apply(ctx context.Context, child *child) (now *unstructured.Unstructured, err error) {
	child.result, child.pending = child.newResult(), nil
	read := c.read
	err = retry.OnError(retry.DefaultRetry, apierrors.IsConflict, func() error {
		if child.pending != nil { // the object is gone
			child.result, child.pending = child.newResult(), nil
		}
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

// applyTo applies a child on top of the current object. If current is nil, it creates the object. An object that is
// being deleted is not changed: a new one is created once it is gone. If an owned object cannot be changed, applyTo
// returns it together with the error.
func (c *call) applyTo(
	ctx context.Context, child *child, current *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	if current == nil {
		return c.create(ctx, child)
	}
	owned, err := c.isOwned(ctx, child, current)
	if err == nil && current.GetDeletionTimestamp() != nil {
		return c.waitUntilDeleted(ctx, child, current, owned)
	}
	if err == nil && (!owned || c.isRetained(current)) {
		err = c.checkWitness(child)
	}
	if err == nil && !owned {
		err = c.canAdopt()
	}
	switch {
	case err != nil:
		return nil, err
	case child.Retain && ownerref.Refers(current, c.parent):
		if err := child.entry.fights.protect("metadata.ownerReferences"); err != nil {
			return current, err
		}
		changes := map[string]any{"ownerReferences": ownerref.Without(current, c.parent)}
		if current, err = c.patchChild(ctx, child, current, changes); err != nil {
			return nil, err
		}
	case owned && c.isUpToDate(child, current):
		return c.removeConfirmation(ctx, child, current)
	case child.entry.applied.lacksOwners(current), child.needsOwners(current):
		if current, err = c.readOwners(ctx, child, current); err != nil {
			return nil, err
		}
		if owned && c.isUpToDate(child, current) {
			return c.removeConfirmation(ctx, child, current)
		}
	}
	now, err := c.correct(ctx, child, current)
	if owned && apierrors.IsInvalid(err) {
		return c.recreate(ctx, child, current, err)
	}
	if err != nil {
		if owned {
			return current, err
		}
		return nil, err
	}
	return c.removeConfirmation(ctx, child, now)
}

// removeConfirmation removes the annotation with which someone has confirmed that the parent was restored.
func (c *call) removeConfirmation(
	ctx context.Context, child *child, now *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	if now.GetAnnotations()[c.restoredKey()] == "" {
		return now, nil
	}
	if err := child.entry.fights.protect("metadata.annotations"); err != nil {
		return now, err
	}
	return c.patchChild(ctx, child, now, map[string]any{"annotations": map[string]any{c.restoredKey(): nil}})
}

// waitUntilDeleted records that the child waits until an object with its name is gone. It returns the object only if
// the parent owns it: another object can contain data that the parent must not read.
func (c *call) waitUntilDeleted(
	ctx context.Context, child *child, current *unstructured.Unstructured, owned bool,
) (*unstructured.Unstructured, error) {
	child.await(ReasonBeingDeleted, "waits until an object with its name is deleted")
	pending := c.newPending(inventoryEntry{kind: child.kind}, child.id.GVR, current)
	child.pending = &pending
	if !owned {
		pending.Annotations = child.config.GetAnnotations()
		return nil, nil
	}
	if !isDeletionStuck(current) {
		return current, nil
	}
	return current, c.delete(ctx, child.id, current)
}

// read returns the child from the cache, or nil if it does not exist. It reads from the API server in two cases: the
// cache does not serve the type, or it lacks a child that this run has applied or failed to create. In the second case,
// either the cache lags behind, or the existing object is not a child and therefore not in the cache. All other
// children that the cache lacks are assumed not to exist; if one exists, creating it fails.
func (c *call) read(ctx context.Context, child *child) (*unstructured.Unstructured, error) {
	if known := child.found; known != nil {
		child.found = nil
		return known.object, nil
	}
	current, err := c.readCached(ctx, child.id)
	switch {
	case isUncached(err), apierrors.IsNotFound(err) && child.entry.known:
		return c.readLive(ctx, child)
	case apierrors.IsNotFound(err):
		return nil, nil
	}
	return current, err
}

func (c *call) readLive(ctx context.Context, child *child) (*unstructured.Unstructured, error) {
	current, err := live.Get(ctx, c.as.Client, child.id)
	if apierrors.IsNotFound(err) {
		c.own.recordGone(child.id)
		return nil, nil
	}
	return current, err
}

// readCached returns the latest known version of an object. If the cache lacks an object that this run has written, or
// holds one that this run has deleted, only the API server knows whether the object exists. The error is then
// ErrNotSynced.
func (c *call) readCached(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers,
) (*unstructured.Unstructured, error) {
	if c.as.Cache == nil {
		return nil, dynamiccontroller.ErrNotServed
	}
	cached, err := c.as.Cache.Get(ctx, id.GVR, id.Namespace(), id.Name())
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	switch is, last := c.own.read(id, cached); is {
	case behind:
		return last, nil
	case missing, deleted:
		return nil, dynamiccontroller.ErrNotSynced
	}
	return cached, err
}

// written stores a version of a child that the API server has returned, and returns the newest known one. Versions of
// types that the cache does not serve are not stored: no event would drop them.
func (c *call) written(child *child, now *unstructured.Unstructured) *unstructured.Unstructured {
	if child.uncached {
		return now
	}
	return c.own.record(child.id, now)
}

// isUncached reports whether the error means that the cache does not serve the type, or does not serve it yet.
func isUncached(err error) bool {
	return errors.Is(err, dynamiccontroller.ErrNotServed) || errors.Is(err, dynamiccontroller.ErrNotSynced) ||
		errors.Is(err, dynamiccontroller.ErrOtherShard)
}

// isUpToDate reports whether the child need not be applied.
func (c *call) isUpToDate(child *child, current *unstructured.Unstructured) bool {
	child.keep(current)
	last := &child.entry.applied
	if last.lacksOwners(current) || c.hasLostOwners(current, c.wasApplied(child, current)) && c.sharesOwnership(current) {
		return false
	}
	if last.finding.reason != "" {
		last.finding = last.finding.review(c.config.Name, child.config, current)
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
	for name, value := range child.withoutKept().Object {
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
	if s.values, err = applied.Digest(applied.Projection(child.withoutKept().Object, current.Object)); err != nil {
		return signature{}, err
	}
	if fields, ok := applied.FieldsOf(current, c.config.Name); ok {
		for _, path := range child.kept {
			fields.Remove(path)
		}
		s.owned, err = applied.Digest(fields)
	}
	return s, err
}

// patch changes the metadata of a child.
func (c *call) patch(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured,
	metadata map[string]any,
) (*unstructured.Unstructured, error) {
	objects := live.Resource(c.as.Client, id.GVR, id.Namespace())
	return patch.Metadata(ctx, objects, object, c.config.Name, metadata)
}

// patchChild is like patch, but for a desired child.
func (c *call) patchChild(
	ctx context.Context, child *child, object *unstructured.Unstructured, metadata map[string]any,
) (*unstructured.Unstructured, error) {
	now, err := c.patch(ctx, child.id, object, metadata)
	if err == nil {
		child.changed(object, now)
		c.written(child, now)
	}
	return now, err
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
	c.written(child, now)
	signature, err := c.signatureOf(child, now)
	if err != nil {
		return nil, err
	}
	last := lastApply{hash: child.hash, written: versionOf(now), signature: signature}
	if entries, err := ownership.Of(now); err == nil && entries.Size() <= maxOwnedPaths {
		last.foreign = foreignItems(entries, child.config.Object, now.Object)
		last.finding = storedDifferently(entries, c.config.Name, child.config.Object, now.Object)
	}
	if child.entry.applied.written.uid != last.written.uid {
		child.entry.kept, child.entry.earlier = othersPaths{}, othersPaths{} // they belong to another object
	}
	child.entry.known, child.entry.applied = true, last
	return now, nil
}
