package children

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/children/internal/desire"
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

// deletion deletes children that are not desired, or whose parent is deleted, or releases them.
type deletion struct {
	*witnessing
	canAdopt   func() error
	deleted    map[childKey]decide.Deleting // results of the deletions that this call has attempted
	pending    []PendingChild
	left       map[childKey]LeftBehind
	reportLeft func(context.Context, []LeftBehind) error // Desired.LeftBehind
	waiting    bool                                      // whether the call must wait for pending children
	postponed  bool                                      // whether a later call must delete pending children
}

// doomed returns an object as a child that must be deleted. Its stage is limited to that of the inventory entry,
// because users who can create an object can set any stage.
func (d *deletion) doomed(
	entry inventory.Entry, gvr schema.GroupVersionResource, object *unstructured.Unstructured,
) decide.Doomed {
	stage, _ := strconv.Atoi(object.GetAnnotations()[d.names.Stage()])
	return decide.Doomed{
		Key:      childKey{Kind: entry.Kind, Name: cache.MetaObjectToName(object).String()},
		Resource: gvr, Stage: max(min(stage, entry.Stage), 0), Object: object,
		Deleting: object.GetDeletionTimestamp() != nil,
	}
}

// pendingChild describes a child that must be deleted.
func pendingChild(child decide.Doomed) PendingChild {
	return PendingChild{
		ObjectIdentifiers: live.Identify(child.Resource, child.Object), Kind: child.Kind, Deleting: child.Deleting,
		Finalizers: child.Object.GetFinalizers(), Annotations: child.Object.GetAnnotations(),
	}
}

// deleteInOrder deletes the children in the last stage and records all children as pending. It continues after an
// error.
func (d *deletion) deleteInOrder(ctx context.Context, doomed []decide.Doomed) error {
	if err := d.checkOrphaned(ctx, doomed); err != nil {
		return err
	}
	if len(doomed) == 0 {
		return nil
	}
	var errs []error
	ending := decide.BeginEnding(d.rules, doomed)
	defer ending.Stop()
	child, more := ending.First()
	for more {
		id := live.Identify(child.Resource, child.Object)
		answer, tried := d.deleted[child.Key]
		if !tried {
			err := d.delete(ctx, target{id, child.Kind, child.Object}, false)
			answer = decide.Deleting{Err: err, Unanswered: isUnanswered(err) || ctx.Err() != nil, At: time.Now()}
			d.deleted[child.Key] = answer
			if !d.rules.IsExpected(child, answer) {
				errs = append(errs, answer.Err)
			}
		}
		d.leaveBehind(id, child.Kind, answer.Err, answer.At)
		child, more = ending.Next(answer)
	}
	d.pending = nil // doomed usually includes the pending children
	for _, child := range ending.Remaining {
		d.pending = append(d.pending, pendingChild(child))
	}
	d.postponed = d.postponed || ending.IsPostponed
	return errors.Join(errs...)
}

// isUnanswered reports whether the API server has not responded to a request.
func isUnanswered(err error) bool {
	var sent *url.Error
	return errors.As(err, &sent) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// delete deletes an object if it is still a child of the parent. If the parent no longer exists, the object must be a
// child of exactly this parent.
func (d *deletion) delete(ctx context.Context, child target, parentIsGone bool) error {
	d.entry.deleted(child.id)
	verdict := d.remove(ctx, child, decide.BeginDeletion(d.rules, child.object, parentIsGone, time.Now()))
	if verdict.Outcome == decide.Vanished {
		d.own.recordDeleted(child.id, child.object)
	}
	if verdict.Err != nil {
		return fmt.Errorf("delete %s: %w", child.id, verdict.Err)
	}
	return nil
}

// prune deletes the children that are not desired. When no children of a kind are left and none are desired, it removes
// the kind from the inventory. The same applies to each namespace of a kind. prune waits for deleted children to
// disappear if their kind or namespace is no longer desired, if they have finalizers, or if children in earlier stages
// must be deleted next.
func (d *deletion) prune(ctx context.Context) error {
	var errs, newer []error
	var changed, left inventory.Inventory
	var doomed []decide.Doomed
	known, _ := d.inventoryOf(d.parent, d.isListed)
	for _, entry := range known {
		undesired, next, err := d.undesired(ctx, entry)
		if d.rules.IsUnsupported(err, time.Now()) {
			continue // the kind stays in the inventory, in case it can be listed later
		}
		if err != nil {
			err = fmt.Errorf("prune %s: children of kind %s: %w", d.id, entry.Kind, err)
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
		errs = append(errs, d.deleteInOrder(ctx, doomed), d.checkUnreachable())
	}
	if len(changed) > 0 {
		_, err := d.changeParent(ctx, d.parent, false, func(now inventory.Inventory) inventory.Inventory {
			return now.Without(changed).With(left)
		})
		errs = append(errs, err)
	}
	return errors.Join(append(errs, newer...)...)
}

// undesired returns the children of a kind that are not desired, and the part of the kind's inventory entry that is
// still needed. The entry is reduced only after the children have been listed from the API server. If the error wraps
// ErrNewerFormat, a child cannot be identified, the entry is needed as it is, and the others are returned as well.
func (d *deletion) undesired(
	ctx context.Context, entry inventory.Entry,
) (doomed []decide.Doomed, left inventory.Inventory, err error) {
	needed := d.desired.namespaces[entry.Kind].Clone()
	mapping, isUnreachable := d.desired.mappings[entry.Kind], d.isUnreachable(entry)
	if isUnreachable {
		needed = needed.Insert(entry.Namespaces...)
	}
	cached := mapping
	if !needed.HasAll(entry.Namespaces...) {
		cached = nil
	}
	gvr, children, err := d.listKind(ctx, entry, cached)
	isNewer := errors.Is(err, ErrNewerFormat)
	if err != nil && !isNewer {
		return nil, nil, err
	}
	for _, object := range children {
		if !d.desired.keys[childKey{Kind: entry.Kind, Name: cache.MetaObjectToName(object).String()}] {
			doomed = append(doomed, d.doomed(entry, gvr, object))
			d.waiting = d.waiting || cached == nil || len(object.GetFinalizers()) > 0
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
func (d *deletion) cleanUp(ctx context.Context, desired desire.Desired) error {
	finalizers := d.parent.GetFinalizers()
	isOrphaning := slices.Contains(finalizers, metav1.FinalizerOrphanDependents)
	if !slices.Contains(finalizers, d.names.Finalizer()) {
		defer d.forget()
		if isOrphaning {
			return nil
		}
		if err := d.deleteAbsent(ctx, desired); !errors.Is(err, decide.ErrOrphaned) {
			return err
		}
		return nil
	}
	err := decide.ErrOrphaned
	if !isOrphaning {
		err = cmp.Or(d.deleteAbsent(ctx, desired), d.deleteAll(ctx))
	}
	orphaned, kept, reason := errors.Is(err, decide.ErrOrphaned), []string(nil), err
	if orphaned {
		kept, err = d.release(ctx, reason)
	}
	if err != nil {
		return err
	}
	d.leaveUnreachable()
	if err := d.reportLeftBehind(ctx); err != nil {
		return err
	}
	if orphaned {
		logr.FromContextOrDiscard(ctx).Info("Kept the children of a deleted parent", keyReason, reason.Error(),
			keyObjects, decide.FirstOf(kept))
		if err := d.deleteWitness(ctx); err != nil {
			return err
		}
	}
	if d.planner != nil {
		d.planner.record(PlannedOperation{
			Action: ActionRemoveFinalizer, ObjectIdentifiers: d.id, Kind: d.parent.GroupVersionKind().GroupKind(),
			Reason: "all children are gone, released or left to Kubernetes", UID: d.parent.GetUID(),
			ResourceVersion: d.parent.GetResourceVersion(), Destroys: "the parent, if it has no other finalizers",
		})
		return nil
	}
	if err := patch.RemoveFinalizer(ctx, d.parents(d.id), d.parent, d.names.Finalizer()); err != nil {
		return fmt.Errorf("remove finalizer %s from %s: %w", d.names.Finalizer(), d.id, err)
	}
	d.forget()
	return nil
}

// forget drops what this run knows about the parent.
func (d *deletion) forget() {
	if d.planner == nil {
		d.drop(d.id)
	}
}

// deleteAll deletes the children. It returns a pendingError until they are gone. It does not wait for children that
// Kubernetes deletes too. Kubernetes alone is not sufficient: if the version in which its garbage collector knows a
// child is no longer served, it keeps the child.
func (d *deletion) deleteAll(ctx context.Context) error {
	left, err := d.deleteDependents(ctx, true)
	if err != nil && !errors.Is(err, decide.ErrOrphaned) && d.isNamespaceTerminating(ctx) {
		clear(d.deleted)
		left, err = d.deleteDependents(ctx, false) // Kubernetes deletes the others
	}
	switch {
	case err != nil:
		return err
	case left:
		return d.errPending()
	}
	d.pending = nil
	if len(d.ignored) > 0 {
		logr.FromContextOrDiscard(ctx).Info("Ignored objects that look like children, because the inventory does not "+
			"contain their namespaces", keyObjects, decide.FirstOf(d.ignored))
	}
	return nil
}

// deleteDependents deletes all children or, if all is not set, those that Kubernetes does not delete together with
// the parent. It reports whether any children are left, except those in the first stage that Kubernetes deletes too.
func (d *deletion) deleteDependents(ctx context.Context, all bool) (left bool, err error) {
	var doomed []decide.Doomed
	var errs []error
	listed, _ := d.inventoryOf(d.parent, d.isListed)
	for _, entry := range listed {
		if !all && !d.canCrossNamespaces(entry.Kind) {
			continue
		}
		var mapping *meta.RESTMapping
		if !d.canCrossNamespaces(entry.Kind) { // Kubernetes deletes children that the cache does not hold yet
			mapping, _ = d.config.Mapper.RESTMapping(entry.Kind, entry.Version)
		}
		gvr, children, err := d.listKind(ctx, entry, mapping)
		if err != nil && !d.leaveBehind(dynamiccontroller.ObjectIdentifiers{GVR: gvr}, entry.Kind, err, time.Now()) {
			errs = append(errs, fmt.Errorf("clean up %s: children of kind %s: %w", d.id, entry.Kind, err))
		}
		for _, object := range children {
			child := d.doomed(entry, gvr, object)
			if all || !ownerref.CanReach(d.parent, object.GetNamespace()) {
				doomed = append(doomed, child)
			}
		}
	}
	if len(errs) == 0 {
		errs = append(errs, d.deleteInOrder(ctx, doomed))
	}
	left = slices.ContainsFunc(doomed, func(child decide.Doomed) bool {
		return !d.isLeftBehind(child) && !d.rules.IsAlsoDeletedByKubernetes(child)
	})
	return left, errors.Join(errs...)
}

// isNamespaceTerminating reports whether the parent's namespace is known to be terminating.
func (d *deletion) isNamespaceTerminating(ctx context.Context) bool {
	namespace, err := d.readNamespace(ctx)
	return err == nil && namespace != nil && namespace.GetDeletionTimestamp() != nil
}

// deleteAbsent deletes the children in Desired.Absent. It continues if a deletion fails.
func (d *deletion) deleteAbsent(ctx context.Context, desired desire.Desired) error {
	present := map[childKey]bool{}
	for _, stage := range desired.Stages {
		for _, child := range stage {
			present[d.keyOf(child.Object)] = true
		}
	}
	var errs []error
	var doomed []decide.Doomed
	for _, object := range desired.Absent {
		key := d.keyOf(object)
		if present[key] {
			continue
		}
		present[key] = true
		child, err := d.existingChild(ctx, key, object)
		if err != nil {
			errs = append(errs, fmt.Errorf("delete absent child %s %s of %s: %w", key.Kind, key.Name, d.id, err))
		} else if child != nil {
			doomed = append(doomed, *child)
		}
	}
	return errors.Join(append(errs, d.deleteInOrder(ctx, doomed))...)
}

// keyOf returns the key of a desired object. The namespace defaults to the parent's, so a cluster-scoped object has the
// same key in Stages and in Absent.
func (d *deletion) keyOf(object *unstructured.Unstructured) childKey {
	name := cache.MetaObjectToName(object)
	if name.Namespace == "" {
		name.Namespace = d.parent.GetNamespace()
	}
	return childKey{Kind: object.GroupVersionKind().GroupKind(), Name: name.String()}
}

// existingChild returns an object from the cache if it is a child of the parent, and nil otherwise. It reads from the
// API server only if the cache does not serve the type.
func (d *deletion) existingChild(
	ctx context.Context, key childKey, object *unstructured.Unstructured,
) (*decide.Doomed, error) {
	recorded, _ := d.inventoryOf(d.parent, func(kind schema.GroupKind) bool { return kind == key.Kind })
	mapping, err := d.config.Mapper.RESTMapping(key.Kind, object.GroupVersionKind().Version)
	switch {
	case meta.IsNoMatchError(err), isUndiscovered(err) && len(recorded) == 0: // the parent has no children of the kind
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("find the resource: %w", err)
	}
	id := dynamiccontroller.ObjectIdentifiers{GVR: mapping.Resource, NamespacedKey: key.Name}
	if object.GetNamespace() == "" && isClusterScoped(mapping) {
		id.NamespacedKey = object.GetName()
	}
	current, err := d.readCached(ctx, id)
	if isUncached(err) {
		current, err = live.Get(ctx, d.as.Client, id)
	}
	if apierrors.IsNotFound(err) {
		d.own.recordGone(id)
		return nil, nil
	}
	isChild := false
	if err == nil {
		isChild, err = decide.IsChild(d.rules, current, d.namespaceUID)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("read: %w", err)
	case !isChild:
		return nil, nil
	}
	doomed := d.doomed(recorded.EntryOf(key.Kind), id.GVR, current)
	return &doomed, nil
}

// errPending returns the error for the children that the call waits for.
func (d *deletion) errPending() error {
	return &pendingError{d.pending, dynamiccontroller.RequeueAfter(d.entry.pollInterval())}
}
