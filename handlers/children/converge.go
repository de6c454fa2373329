package children

import (
	"context"
	"errors"
	"slices"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/handlers/internal/ownership"
)

// converge applies a child on top of the current object. If the API server refuses this, or keeps what the child no
// longer has, the cause can be the managedFields: who owns which field, and in which version. converge then repairs them
// and applies the child again. It does so at most once per call. If the repair does not help, it is undone, and not tried
// again until the desired child changes.
//
// The UID prevents an outdated write from recreating a deleted child. The resourceVersion prevents it from taking back
// a child that has been released or orphaned. If an orphaned child got an owner reference to a parent that no longer
// exists, Kubernetes would garbage-collect the child.
func (c *call) converge(
	ctx context.Context, child *child, current *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	wasCleared := len(current.GetManagedFields()) == 0 && current.GetAnnotations()[c.appliedKey()] == child.hash
	now, err := c.overwrite(ctx, child, current)
	if err != nil && (!isRefusal(err) || c.cache.isFutile(child)) {
		return nil, err
	}
	before := current
	if err == nil {
		before = now
	}
	repaired, lost := c.repair(child, current, now, err, wasCleared)
	if repaired == nil {
		return now, err
	}
	log := logr.FromContextOrDiscard(ctx).WithValues("child", child.id.String())
	fields, encodeErr := repaired.ManagedFields()
	if encodeErr != nil {
		return now, errors.Join(err, encodeErr)
	}
	patched, patchErr := c.patch(ctx, child.id, before, map[string]any{"managedFields": fields})
	if patchErr != nil {
		if apierrors.IsConflict(patchErr) {
			return nil, patchErr // the caller reads the object and tries again
		}
		return now, errors.Join(err, patchErr)
	}
	log.Info("Repaired the managed fields of a child", "managersThatLoseFields", lost)
	again, againErr := c.overwrite(ctx, child, patched)
	if againErr == nil {
		return again, nil
	}
	if isRefusal(againErr) {
		c.cache.troubleOf(child.id).futile = child.hash
		original, _, _ := unstructured.NestedSlice(before.Object, "metadata", "managedFields")
		if _, undoErr := c.patch(ctx, child.id, patched, map[string]any{"managedFields": original}); undoErr != nil {
			againErr = errors.Join(againErr, undoErr)
		}
	}
	return nil, againErr
}

// overwrite applies a child if the object has not changed since it was read.
func (c *call) overwrite(
	ctx context.Context, child *child, current *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	return c.write(ctx, child, true, map[string]any{
		"uid": string(current.GetUID()), "resourceVersion": current.GetResourceVersion(),
	})
}

// isRefusal reports whether the API server refused to apply an object because of its content or its managedFields. For
// managedFields in a version that it does not serve or that lacks a field, it responds with an internal error.
func isRefusal(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsInternalError(err)
}

// repair returns the managedFields with which an apply of the child would have the desired result, or nil if they are
// correct. err is the error of the apply. If it is nil, now is its result. lost contains the managers whose entries lose
// fields that do not exist.
func (c *call) repair(
	child *child, current, now *unstructured.Unstructured, err error, wasCleared bool,
) (repaired ownership.Entries, lost []string) {
	r := replacements{
		manager: c.config.Name, again: current.GetAnnotations()[c.appliedKey()] == child.hash,
		refused: fieldsIn(err),
	}
	object := current
	if err == nil {
		object = now
	}
	entries, parseErr := ownership.Of(current)
	if parseErr != nil {
		return nil, nil
	}
	r.entries = entries
	_, r.applied = entries.AppliedBy(r.manager)
	r.find(fieldpath.Path{}, child.config.Object, current.Object)
	if err != nil {
		moved, lost, isOlder := entries.MoveTo(child.id.GVR.GroupVersion(), current.Object)
		switch {
		case isOlder && !apierrors.IsInvalid(err):
			return moved, lost
		case len(r.paths) > 0:
			return entries.Transfer(r.manager, r.paths...), nil
		}
		return nil, nil
	}
	after, parseErr := ownership.Of(object)
	if parseErr != nil {
		return nil, nil
	}
	repaired, released := after, false
	if wasCleared {
		repaired, released = after.Release(ownership.BeforeFirstApply, r.manager)
	}
	paths := append(r.paths, leftovers(entries, after, r.manager, child.config.Object, now.Object)...)
	if len(paths) > 0 {
		return repaired.Transfer(r.manager, paths...), nil
	}
	if released {
		return repaired, nil
	}
	return nil, nil
}

// fieldsIn returns the fields that the API server named in an error.
func fieldsIn(err error) (fields []string) {
	var status apierrors.APIStatus
	if err == nil || !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	for _, cause := range status.Status().Details.Causes {
		fields = append(fields, cause.Field)
	}
	return fields
}

// leftovers returns the items that the manager owned as part of a whole list, if the list has been changed to a list
// whose items are owned one by one. An apply does not remove them, because the manager did not own the items.
func leftovers(before, after ownership.Entries, manager string, config, object map[string]any) (paths []fieldpath.Path) {
	whole, _ := before.AppliedBy(manager)
	single, _ := after.AppliedBy(manager)
	for path := range whole.All() {
		value, _ := ownership.Lookup(object, path)
		items, isList := value.([]any)
		elements := ownership.Elements(single, path)
		if !isList || len(ownership.Elements(whole, path)) > 0 || len(elements) == 0 {
			continue
		}
		desired, _ := ownership.Lookup(config, path)
		wanted, _ := desired.([]any)
		for _, item := range items {
			element, known := elementLike(elements[0], item)
			if !known || slices.ContainsFunc(wanted, func(w any) bool { return ownership.Matches(w, element) }) {
				continue
			}
			if at := append(path.Copy(), element); len(after.OwnersOf(at)) == 0 {
				paths = append(paths, at)
			}
		}
	}
	return paths
}
