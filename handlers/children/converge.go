package children

import (
	"context"
	"errors"
	"slices"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/handlers/internal/live"
	"github.com/dynamic-controller/engine/handlers/internal/ownership"
)

// maxOwnedPaths limits the managedFields that are repaired. Anyone who can update a child can make them large.
const maxOwnedPaths = 5000

// convergence is one attempt to bring a child into its desired state.
type convergence struct {
	*call
	child   *child
	entries ownership.Entries // of the current object
	again   bool              // the same configuration was applied before
	before  ownership.Entries // the entries before the repair, or nil if nothing was repaired
	moved   []fieldpath.Path  // what the repair transferred
	kept    []fieldpath.Path  // items that can be edited items of the child, and stay
}

// converge applies a child on top of the current object. What an apply changes depends on the managedFields: which
// manager owns which field, and in which version. If they prevent the desired state, converge repairs them, and applies
// the child again. If the API server still refuses the child, items that were taken from their owners are given back,
// and the repair is not tried again until the desired child changes.
//
// The UID prevents an outdated write from recreating a deleted child. The resourceVersion prevents it from taking back
// a child that has been released or orphaned. If an orphaned child got an owner reference to a parent that no longer
// exists, Kubernetes would garbage-collect the child.
func (c *call) converge(
	ctx context.Context, child *child, current *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	entries, err := ownership.Of(current)
	if err != nil || entries.Size() > maxOwnedPaths || child.entry.futile == child.hash {
		now, err := c.overwrite(ctx, child, current)
		return now, c.judge(ctx, child, current, err)
	}
	v := convergence{call: c, child: child, entries: entries, again: c.wasApplied(child, current)}
	if edited := v.edited(current, nil); len(edited) > 0 {
		if current, err = v.repair(ctx, current, entries.Transfer(c.config.Name, edited...), edited); err != nil {
			return nil, err
		}
	}
	now, err := v.applyOnto(ctx, current)
	if err != nil && len(entries) == 0 && (isRefusal(err) || isUnexplained(err)) {
		full, readErr := c.readOwners(ctx, child, current)
		if readErr != nil {
			return nil, readErr
		}
		if len(full.GetManagedFields()) > 0 {
			return c.converge(ctx, child, full)
		}
	}
	if err != nil && v.before == nil {
		if repaired, paths := v.avoidRefusal(current, err); repaired != nil {
			if current, err = v.repair(ctx, current, repaired, paths); err != nil {
				return nil, err
			}
			now, err = v.applyOnto(ctx, current)
		}
	}
	err = c.judge(ctx, child, current, err)
	switch {
	case err == nil:
		now, err = v.tidy(ctx, now)
		v.remember(err == nil)
		return now, err
	case len(v.moved) > 0 && (isRefusal(err) || apierrors.IsForbidden(err)):
		child.entry.futile = child.hash
		return nil, errors.Join(err, v.undo(ctx, current))
	}
	return nil, err
}

// applyOnto applies the child on top of the current object. If the child has an empty map or list from which fields or
// items have to be removed, the API server removes it altogether, or refuses the null that is left. In this case, it is
// applied again when it is gone.
func (v *convergence) applyOnto(
	ctx context.Context, current *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	now, err := v.overwrite(ctx, v.child, current)
	emptied := v.emptied()
	switch {
	case apierrors.IsInvalid(err) && len(emptied) > 0:
		rest, entry := *v.child, *v.child.entry
		rest.entry = &entry
		rest.config, rest.template = withoutPaths(rest.config, emptied), withoutPaths(rest.template, emptied)
		partial, errOfRest := v.overwrite(ctx, &rest, current)
		if errOfRest != nil {
			return nil, err
		}
		v.child.changed(current, partial)
		return v.applyAgain(ctx, partial)
	case err == nil && slices.ContainsFunc(emptied, func(path fieldpath.Path) bool {
		value, _ := ownership.Lookup(now.Object, path)
		return value == nil
	}):
		return v.applyAgain(ctx, now)
	}
	return now, err
}

// applyAgain applies the child on top of an object to which a part of it has been applied. If it fails, the child does
// not have its desired state, although the object has the annotation with the hash.
func (v *convergence) applyAgain(
	ctx context.Context, partial *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	now, err := v.overwrite(ctx, v.child, partial)
	if err != nil {
		v.child.entry.applied = lastApply{}
	}
	return now, err
}

// emptied returns the maps and lists that are empty in the child, and parts of which it had before.
func (v *convergence) emptied() (paths []fieldpath.Path) {
	owned, _ := v.entries.AppliedBy(v.config.Name)
	seen := fieldpath.NewSet()
	for path := range owned.All() {
		for n := range path {
			part := path[:n]
			value, _ := ownership.Lookup(v.child.config.Object, part)
			fields, isMap := value.(map[string]any)
			items, isList := value.([]any)
			if (isMap && len(fields) == 0 || isList && len(items) == 0) && !seen.Has(part) {
				seen.Insert(part.Copy())
				paths = append(paths, part.Copy())
			}
		}
	}
	return paths
}

// wasApplied reports whether the configuration of a child was applied to the object before.
func (c *call) wasApplied(child *child, object metav1.Object) bool {
	return object.GetAnnotations()[c.appliedKey()] == child.hash
}

// overwrite applies a child if the object has not changed since it was read.
func (c *call) overwrite(
	ctx context.Context, child *child, current *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	metadata := map[string]any{"uid": string(current.GetUID()), "resourceVersion": current.GetResourceVersion()}
	child.keep(current)
	if err := c.keepNotes(ctx, child, current, metadata); err != nil {
		return nil, err
	}
	now, err := c.write(ctx, child, true, metadata)
	if err == nil {
		child.changed(current, now)
	}
	return now, err
}

// readOwners returns the object with its managedFields, which a cache can leave out. If the object has changed since it
// was cached, the error is a conflict.
func (c *call) readOwners(
	ctx context.Context, child *child, cached *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	current, err := c.readLive(ctx, child)
	if err != nil {
		return nil, err
	}
	if current == nil || current.GetUID() != cached.GetUID() ||
		current.GetResourceVersion() != cached.GetResourceVersion() {
		return nil, apierrors.NewConflict(child.id.GVR.GroupResource(), child.id.Name(),
			errors.New("the object has changed since it was cached"))
	}
	return current, nil
}

// repair replaces the managedFields of the object. If the object has changed, the error is a conflict, and nothing has
// been changed.
func (v *convergence) repair(
	ctx context.Context, object *unstructured.Unstructured, repaired ownership.Entries, moved []fieldpath.Path,
) (*unstructured.Unstructured, error) {
	before, err := ownership.Of(object)
	if err != nil {
		return nil, err
	}
	now, err := v.setOwners(ctx, object, repaired)
	if err != nil {
		return nil, err
	}
	v.before, v.moved = before, moved
	logr.FromContextOrDiscard(ctx).Info("Repaired the managed fields of a child",
		"child", v.child.id.String(), "items", len(moved))
	return now, nil
}

func (v *convergence) setOwners(
	ctx context.Context, object *unstructured.Unstructured, entries ownership.Entries,
) (*unstructured.Unstructured, error) {
	fields, err := entries.ManagedFields()
	if err != nil {
		return nil, err
	}
	return v.patchChild(ctx, v.child, object, map[string]any{"managedFields": fields})
}

// undo gives everything that a repair changed back to its former owners.
func (v *convergence) undo(ctx context.Context, object *unstructured.Unstructured) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		entries, err := ownership.Of(object)
		if err != nil {
			return err
		}
		if _, err = v.setOwners(ctx, object, entries.Restore(v.before, v.config.Name, v.moved)); apierrors.IsConflict(err) {
			now, readErr := live.Get(ctx, v.as.Client, v.child.id)
			if readErr != nil || now.GetUID() != object.GetUID() {
				return readErr
			}
			object = now
		}
		return err
	})
}

// edited returns the items of the object that replaced items of the child.
func (v *convergence) edited(current *unstructured.Unstructured, refused []string) []fieldpath.Path {
	_, since := v.entries.AppliedBy(v.config.Name)
	r := replacements{
		entries: v.entries, manager: v.config.Name, applied: since, again: v.again, refused: refused,
		known: v.child.entry.applied.foreign,
	}
	r.find(fieldpath.Path{}, v.child.config.Object, current.Object)
	v.kept = r.kept
	return r.paths
}

// avoidRefusal returns the managedFields with which the API server could accept a child that it refused, or nil.
func (v *convergence) avoidRefusal(
	current *unstructured.Unstructured, err error,
) (repaired ownership.Entries, moved []fieldpath.Path) {
	switch {
	case apierrors.IsInvalid(err):
		if edited := v.edited(current, fieldsIn(err)); len(edited) > 0 {
			return v.entries.Transfer(v.config.Name, edited...), edited
		}
		if shared := v.sharedItems(); len(shared) > 0 {
			return v.entries.Transfer(v.config.Name, shared...), shared
		}
	case isUnexplained(err), apierrors.IsBadRequest(err):
		moved, changed := v.entries.MoveTo(v.child.id.GVR.GroupVersion(), current.Object,
			func(entry ownership.Entry, gv schema.GroupVersion) bool {
				return isUnexplained(err) || entry.IsApplier(v.config.Name) || !v.isServed(gv)
			})
		if changed {
			return moved, nil
		}
	}
	return nil, nil
}

// sharedItems returns the items that leave the child together with their list, although others own a part of them. An
// apply removes such items. If the list has no others, the API server leaves a null behind, and refuses it.
func (v *convergence) sharedItems() (paths []fieldpath.Path) {
	owned, _ := v.entries.AppliedBy(v.config.Name)
	for path := range owned.All() {
		last := len(path) - 1
		if last < 1 || path[last].Key == nil {
			continue
		}
		_, hasParent := ownership.Lookup(v.child.config.Object, path[:last-1])
		_, hasList := ownership.Lookup(v.child.config.Object, path[:last])
		isOwned := slices.ContainsFunc(v.entries, func(entry ownership.Entry) bool {
			return !entry.IsApplier(v.config.Name) && entry.Set.Has(path)
		})
		if hasParent && !hasList && !isOwned && len(v.entries.OwnersOf(path)) > 1 {
			paths = append(paths, path.Copy())
		}
	}
	return paths
}

func (v *convergence) isServed(gv schema.GroupVersion) bool {
	_, err := v.config.Mapper.RESTMapping(v.child.kind, gv.Version)
	return !meta.IsNoMatchError(err)
}

// fieldsIn returns the fields that the API server named in an error.
func fieldsIn(err error) (fields []string) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	for _, cause := range status.Status().Details.Causes {
		fields = append(fields, cause.Field)
	}
	return fields
}

// tidy removes what an apply could not remove, because the managedFields did not show it as owned by this Reconciler.
func (v *convergence) tidy(ctx context.Context, now *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	applied := now
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		after, err := ownership.Of(applied)
		if err != nil || after.Size() > maxOwnedPaths {
			return nil //nolint:nilerr // the child has its desired state; only the managedFields cannot be corrected
		}
		repaired, changed := after, false
		if v.hasLostOwners(applied, v.again) {
			repaired, changed = after.Release(ownership.BeforeFirstApply, v.config.Name)
		}
		left := leftovers(v.entries, after, v.config.Name, v.child.config.Object, applied.Object)
		if len(left) > 0 {
			repaired, changed = repaired.Transfer(v.config.Name, left...), true
		}
		if !changed {
			now = applied
			return nil
		}
		patched, err := v.setOwners(ctx, applied, repaired)
		if apierrors.IsConflict(err) {
			current, readErr := v.readLive(ctx, v.child)
			if readErr != nil || current == nil || current.GetUID() != applied.GetUID() {
				return readErr
			}
			applied = current
		}
		if err != nil {
			return err
		}
		logr.FromContextOrDiscard(ctx).Info("Repaired the managed fields of a child", "child", v.child.id.String())
		now, err = v.overwrite(ctx, v.child, patched)
		return err
	})
	return now, err
}

// hasLostOwners reports whether someone has cleared the managedFields of a child since it was applied. The API server
// then assigned all fields to another manager at the next apply, so that they would stay when they leave the child.
func (c *call) hasLostOwners(object *unstructured.Unstructured, again bool) bool {
	return again && slices.ContainsFunc(managedFields(object), func(entry any) bool {
		fields, _ := entry.(map[string]any)
		return fields["manager"] == ownership.BeforeFirstApply && fields["fieldsV1"] != nil
	})
}

// sharesOwnership reports whether that other manager owns fields that this Reconciler applied.
func (c *call) sharesOwnership(object metav1.Object) bool {
	entries, err := ownership.Of(object)
	if err != nil {
		return false
	}
	_, shares := entries.Release(ownership.BeforeFirstApply, c.config.Name)
	return shares
}

// leftovers returns the items that the manager owned as part of a whole list, if the list has been changed to a list
// whose items are owned one by one. An apply does not remove them, because the manager did not own the items.
func leftovers(
	before, after ownership.Entries, manager string, config, object map[string]any,
) (paths []fieldpath.Path) {
	whole, _ := before.AppliedBy(manager)
	single, _ := after.AppliedBy(manager)
	for path := range whole.All() {
		value, _ := ownership.Lookup(object, path)
		items, isList := value.([]any)
		elements := ownership.Elements(single, path)
		if !isList || len(ownership.Elements(whole, path)) > 0 || len(elements) == 0 || hasOtherOwner(after, path, manager) {
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

// hasOtherOwner reports whether another manager owns a whole list.
func hasOtherOwner(entries ownership.Entries, list fieldpath.Path, manager string) bool {
	return slices.ContainsFunc(entries, func(entry ownership.Entry) bool {
		return !entry.IsApplier(manager) && entry.Set.Has(list) && len(ownership.Elements(entry.Set, list)) == 0
	})
}

// remember stores which items and fields of others the object has. Those from before an adoption are known only if the
// apply is complete.
func (v *convergence) remember(isComplete bool) {
	v.child.entry.kept.existing = appendNew(v.child.entry.kept.existing, v.kept)
	if earlier := v.earlierFields(); isComplete && len(earlier) > 0 {
		v.child.entry.earlier.existing = earlier
	}
}

// appendNew appends the paths that a list does not contain yet.
func appendNew(paths, more []fieldpath.Path) []fieldpath.Path {
	for _, path := range more {
		if !slices.ContainsFunc(paths, path.Equals) {
			paths = append(paths, path)
		}
	}
	return paths
}
