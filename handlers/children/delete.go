package children

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/children/internal/inventory"
	"github.com/dynamic-controller/engine/handlers/internal/live"
	"github.com/dynamic-controller/engine/handlers/internal/ownerref"
	"github.com/dynamic-controller/engine/handlers/internal/patch"
)

// Keys for log messages.
const (
	keyObjects = "objects"
	keyReason  = "reason"
)

// newPending describes a child that is being deleted or must be deleted.
func (c *call) newPending(
	entry inventory.Entry, gvr schema.GroupVersionResource, object *unstructured.Unstructured,
) PendingChild {
	stage, _ := strconv.Atoi(object.GetAnnotations()[c.names.Stage()])
	return PendingChild{
		ObjectIdentifiers: live.Identify(gvr, object), Kind: entry.Kind, stage: max(min(stage, entry.Stage), 0),
		Deleting: object.GetDeletionTimestamp() != nil, Finalizers: object.GetFinalizers(),
		Annotations: object.GetAnnotations(),
	}
}

// doomedChild is a child that must be deleted.
type doomedChild struct {
	PendingChild
	object *unstructured.Unstructured
}

// compareDoomed orders children by descending stage. Within a stage, the order must be deterministic because it
// determines the text of errors. If a status contained a different text each time, every reconcile would trigger the
// next one.
func compareDoomed(a, b doomedChild) int {
	return cmp.Or(cmp.Compare(b.stage, a.stage), cmp.Compare(a.Kind.String(), b.Kind.String()),
		cmp.Compare(a.NamespacedKey, b.NamespacedKey))
}

// deleteInOrder deletes the children in the last stage and records all children as pending. It continues after an
// error. Once the children in the last stage are gone, a later call deletes those in the stage before it. Unless the
// parent is being deleted, a child that the identity cannot delete does not delay earlier stages, because it may be
// forged. If it is, the children in the first stage that the identity cannot delete are left to Kubernetes.
func (c *call) deleteInOrder(ctx context.Context, doomed []doomedChild) error {
	if err := c.checkOrphaned(ctx, doomed); err != nil {
		return err
	}
	slices.SortFunc(doomed, compareDoomed)
	var errs []error
	if len(doomed) > 0 {
		c.pending = nil // doomed usually includes the pending children
	}
	last := 0
	for _, child := range doomed {
		if child.stage < last {
			c.postponed = true
		} else if key := (childKey{child.Kind, child.NamespacedKey}); !child.Deleting || decide.IsDeletionStuck(child.object) {
			err, tried := c.deleted[key]
			if !tried {
				err = c.delete(ctx, child.ObjectIdentifiers, child.object)
				c.deleted[key] = err
			}
			if c.leaveBehind(child.ObjectIdentifiers, child.Kind, err) || c.isLeftToKubernetes(child, err) {
				continue
			}
			if !tried {
				errs = append(errs, err)
			}
			if apierrors.IsForbidden(err) && c.parent.GetDeletionTimestamp() == nil {
				continue
			}
			child.Deleting = true
		}
		last = max(last, child.stage)
		c.pending = append(c.pending, child.PendingChild)
	}
	return errors.Join(errs...)
}

// isAlsoDeletedByKubernetes reports whether Kubernetes deletes a child together with the parent, and at the right time.
func (c *call) isAlsoDeletedByKubernetes(child doomedChild) bool {
	return child.stage == 0 && ownerref.CanReach(c.parent, child.Namespace())
}

// isLeftToKubernetes reports whether the deletion of the parent continues although the deletion of a child, which
// Kubernetes deletes too, has failed with err. Temporary errors are retried.
func (c *call) isLeftToKubernetes(child doomedChild, err error) bool {
	return err != nil && c.parent.GetDeletionTimestamp() != nil && c.isAlsoDeletedByKubernetes(child) && !isTemporary(err)
}

// isTemporary reports whether a request can succeed later without a change of permissions. An identity can have errors
// of its own, which do not come from the API server.
func isTemporary(err error) bool {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code := status.Status().Code
		return code >= http.StatusInternalServerError || slices.Contains([]int32{
			http.StatusUnauthorized, http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict,
			http.StatusTooManyRequests,
		}, code)
	}
	var sent *url.Error
	return errors.As(err, &sent) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// delete deletes an object if it is still a child of the parent.
func (c *call) delete(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, child *unstructured.Unstructured,
) error {
	return c.deleteIf(ctx, id, child, c.rules.IsChild)
}

// deleteIf deletes an object if isChild still returns true for it.
func (c *call) deleteIf(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, child *unstructured.Unstructured,
	isChild func(metav1.Object, decide.Namespace) (bool, error),
) error {
	c.cache.deleted(id)
	objects := live.Resource(c.as.Client, id.GVR, id.Namespace())
	err := patch.RetryOnConflict(ctx, objects, child, func(current *unstructured.Unstructured) error {
		isChild, err := isChild(current, c.namespaceUID)
		if err != nil || !isChild || current.GetDeletionTimestamp() != nil && !decide.IsDeletionStuck(current) {
			return err
		}
		err = objects.Delete(ctx, id.Name(), metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{
				UID: ptr.To(current.GetUID()), ResourceVersion: ptr.To(current.GetResourceVersion()),
			},
			PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
		})
		if err == nil {
			c.own.recordDeleted(id, current)
		}
		return err
	})
	if patch.IsGone(err) {
		c.own.recordDeleted(id, child)
	}
	if err != nil && !patch.IsGone(err) {
		return fmt.Errorf("delete %s: %w", id, err)
	}
	return nil
}

// prune deletes the children that are not desired. When no children of a kind are left and none are desired, it removes
// the kind from the inventory. The same applies to each namespace of a kind. prune waits for deleted children to
// disappear if their kind or namespace is no longer desired, if they have finalizers, or if children in earlier stages
// must be deleted next.
func (c *call) prune(ctx context.Context) error {
	var errs, newer []error
	var changed, left inventory.Inventory
	var doomed []doomedChild
	known, _ := c.inventoryOf(c.parent, c.isListed)
	for _, entry := range known {
		undesired, next, err := c.undesired(ctx, entry)
		if c.isUnsupported(err) {
			continue // the kind stays in the inventory, in case it can be listed later
		}
		if err != nil {
			err = fmt.Errorf("prune %s: children of kind %s: %w", c.id, entry.Kind, err)
			if errors.Is(err, ErrNewerFormat) { // the object can be forged
				newer = append(newer, err)
			} else {
				errs = append(errs, err)
				continue
			}
		}
		doomed = append(doomed, undesired...)
		if !next.Equals(inventory.Inventory{entry}) {
			changed, left = append(changed, entry), append(left, next...)
		}
	}
	if len(errs) == 0 { // the order is known only if all children are known
		errs = append(errs, c.deleteInOrder(ctx, doomed), c.checkUnreachable())
	}
	if len(changed) > 0 {
		_, err := c.changeParent(ctx, c.parent, false, func(now inventory.Inventory) inventory.Inventory {
			return now.Without(changed).With(left)
		})
		errs = append(errs, err)
	}
	return errors.Join(append(errs, newer...)...)
}

// undesired returns the children of a kind that are not desired, and the part of the kind's inventory entry that is
// still needed. The entry is reduced only after the children have been listed from the API server. If the error wraps
// ErrNewerFormat, a child cannot be identified, the entry is needed as it is, and the others are returned as well.
func (c *call) undesired(ctx context.Context, entry inventory.Entry) (doomed []doomedChild, left inventory.Inventory, err error) {
	needed := c.desired.namespaces[entry.Kind].Clone()
	mapping, isUnreachable := c.desired.mappings[entry.Kind], c.isUnreachable(entry)
	if isUnreachable {
		needed = needed.Insert(entry.Namespaces...)
	}
	cached := mapping
	if !needed.HasAll(entry.Namespaces...) {
		cached = nil
	}
	gvr, children, err := c.listKind(ctx, entry, cached)
	isNewer := errors.Is(err, ErrNewerFormat)
	if err != nil && !isNewer {
		return nil, nil, err
	}
	for _, object := range children {
		if !c.desired.keys[childKey{entry.Kind, cache.MetaObjectToName(object).String()}] {
			doomed = append(doomed, doomedChild{c.newPending(entry, gvr, object), object})
			c.waiting = c.waiting || cached == nil || len(object.GetFinalizers()) > 0
			needed.Insert(object.GetNamespace())
		}
	}
	if isNewer {
		return doomed, inventory.Inventory{entry}, err
	}
	if len(doomed) == 0 && mapping == nil && !isUnreachable {
		return nil, nil, nil
	}
	entry.Namespaces = slices.DeleteFunc(slices.Clone(entry.Namespaces), func(namespace string) bool {
		return !needed.Has(namespace)
	})
	return doomed, inventory.Inventory{entry}, nil
}

// cleanUp deletes the children of a parent that is being deleted, in the reverse order of their stages, and the
// children in Desired.Absent. Once the children are gone, cleanUp removes the parent's finalizer. It does not wait for
// children of the first stage that have an owner reference. If the parent's dependents are or may be orphaned, all
// children are kept.
func (c *call) cleanUp(ctx context.Context, desired Desired) error {
	finalizers := c.parent.GetFinalizers()
	isOrphaning := slices.Contains(finalizers, metav1.FinalizerOrphanDependents)
	if !slices.Contains(finalizers, c.names.Finalizer()) {
		defer c.drop(c.id)
		if isOrphaning {
			return nil
		}
		if err := c.deleteAbsent(ctx, desired); !errors.Is(err, decide.ErrOrphaned) {
			return err
		}
		return nil
	}
	err := decide.ErrOrphaned
	if !isOrphaning {
		err = cmp.Or(c.deleteAbsent(ctx, desired), c.deleteAll(ctx))
	}
	orphaned, kept, reason := errors.Is(err, decide.ErrOrphaned), []string(nil), err
	if orphaned {
		kept, err = c.release(ctx, reason)
	}
	if err != nil {
		return err
	}
	c.leaveUnreachable()
	if err := c.reportLeftBehind(ctx); err != nil {
		return err
	}
	if orphaned {
		logr.FromContextOrDiscard(ctx).Info("Kept the children of a deleted parent", keyReason, reason.Error(),
			keyObjects, decide.FirstOf(kept))
		if err := c.deleteWitness(ctx); err != nil {
			return err
		}
	}
	if err := patch.RemoveFinalizer(ctx, c.parents(c.id), c.parent, c.names.Finalizer()); err != nil {
		return fmt.Errorf("remove finalizer %s from %s: %w", c.names.Finalizer(), c.id, err)
	}
	c.drop(c.id)
	return nil
}

// deleteAll deletes the children. It returns a pendingError until they are gone. It does not wait for children that
// Kubernetes deletes too. Kubernetes alone is not sufficient: if the version in which its garbage collector knows a
// child is no longer served, it keeps the child.
func (c *call) deleteAll(ctx context.Context) error {
	left, err := c.deleteDependents(ctx, true)
	if err != nil && !errors.Is(err, decide.ErrOrphaned) && c.isNamespaceTerminating(ctx) {
		clear(c.deleted)
		left, err = c.deleteDependents(ctx, false) // Kubernetes deletes the others
	}
	switch {
	case err != nil:
		return err
	case left:
		return c.errPending()
	}
	c.pending = nil
	if len(c.ignored) > 0 {
		logr.FromContextOrDiscard(ctx).Info("Ignored objects that look like children, because the inventory does not "+
			"contain their namespaces", keyObjects, decide.FirstOf(c.ignored))
	}
	return nil
}

// deleteDependents deletes all children or, if all is not set, those that Kubernetes does not delete together with
// the parent. It reports whether any children are left, except those in the first stage that Kubernetes deletes too.
func (c *call) deleteDependents(ctx context.Context, all bool) (left bool, err error) {
	var doomed []doomedChild
	var errs []error
	listed, _ := c.inventoryOf(c.parent, c.isListed)
	for _, entry := range listed {
		if !all && !c.canCrossNamespaces(entry.Kind) {
			continue
		}
		var mapping *meta.RESTMapping
		if !c.canCrossNamespaces(entry.Kind) { // Kubernetes deletes children that the cache does not hold yet
			mapping, _ = c.config.Mapper.RESTMapping(entry.Kind, entry.Version)
		}
		gvr, children, err := c.listKind(ctx, entry, mapping)
		if err != nil && !c.leaveBehind(dynamiccontroller.ObjectIdentifiers{GVR: gvr}, entry.Kind, err) {
			errs = append(errs, fmt.Errorf("clean up %s: children of kind %s: %w", c.id, entry.Kind, err))
		}
		for _, object := range children {
			child := doomedChild{c.newPending(entry, gvr, object), object}
			if all || !ownerref.CanReach(c.parent, object.GetNamespace()) {
				doomed = append(doomed, child)
			}
		}
	}
	if len(errs) == 0 {
		errs = append(errs, c.deleteInOrder(ctx, doomed))
	}
	left = slices.ContainsFunc(doomed, func(child doomedChild) bool {
		return !c.isLeftBehind(child) && !c.isAlsoDeletedByKubernetes(child)
	})
	return left, errors.Join(errs...)
}

// isNamespaceTerminating reports whether the parent's namespace is known to be terminating.
func (c *call) isNamespaceTerminating(ctx context.Context) bool {
	namespace, err := c.readNamespace(ctx)
	return err == nil && namespace != nil && namespace.GetDeletionTimestamp() != nil
}

// deleteAbsent deletes the children in Desired.Absent. It continues if a deletion fails.
func (c *call) deleteAbsent(ctx context.Context, desired Desired) error {
	present := map[childKey]bool{}
	for _, stage := range desired.Stages {
		for _, child := range stage {
			present[c.keyOf(child.Object)] = true
		}
	}
	var errs []error
	var doomed []doomedChild
	for _, object := range desired.Absent {
		key := c.keyOf(object)
		if present[key] {
			continue
		}
		present[key] = true
		child, err := c.existingChild(ctx, key, object)
		if err != nil {
			errs = append(errs, fmt.Errorf("delete absent child %s %s of %s: %w", key.kind, key.key, c.id, err))
		} else if child != nil {
			doomed = append(doomed, *child)
		}
	}
	return errors.Join(append(errs, c.deleteInOrder(ctx, doomed))...)
}

// keyOf returns the key of a desired object. The namespace defaults to the parent's, so a cluster-scoped object has the
// same key in Stages and in Absent.
func (c *call) keyOf(object *unstructured.Unstructured) childKey {
	name := cache.MetaObjectToName(object)
	if name.Namespace == "" {
		name.Namespace = c.parent.GetNamespace()
	}
	return childKey{kind: object.GroupVersionKind().GroupKind(), key: name.String()}
}

// existingChild returns an object from the cache if it is a child of the parent, and nil otherwise. It reads from the
// API server only if the cache does not serve the type.
func (c *call) existingChild(
	ctx context.Context, key childKey, object *unstructured.Unstructured,
) (*doomedChild, error) {
	recorded, _ := c.inventoryOf(c.parent, func(kind schema.GroupKind) bool { return kind == key.kind })
	mapping, err := c.config.Mapper.RESTMapping(key.kind, object.GroupVersionKind().Version)
	switch {
	case meta.IsNoMatchError(err), isUndiscovered(err) && len(recorded) == 0: // the parent has no children of the kind
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("find the resource: %w", err)
	}
	id := dynamiccontroller.ObjectIdentifiers{GVR: mapping.Resource, NamespacedKey: key.key}
	if object.GetNamespace() == "" && isClusterScoped(mapping) {
		id.NamespacedKey = object.GetName()
	}
	current, err := c.readCached(ctx, id)
	if isUncached(err) {
		current, err = live.Get(ctx, c.as.Client, id)
	}
	if apierrors.IsNotFound(err) {
		c.own.recordGone(id)
		return nil, nil
	}
	isChild := false
	if err == nil {
		isChild, err = c.rules.IsChild(current, c.namespaceUID)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("read: %w", err)
	case !isChild:
		return nil, nil
	}
	return &doomedChild{c.newPending(recorded.EntryOf(key.kind), id.GVR, current), current}, nil
}

// errPending returns the error for the children that the call waits for.
func (c *call) errPending() error {
	return &pendingError{c.pending, dynamiccontroller.RequeueAfter(c.cache.pollInterval())}
}
