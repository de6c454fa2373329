package decide

import (
	"errors"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/handlers/children/internal/compare"
	"github.com/dynamic-controller/engine/handlers/internal/ownership"
)

// maxOwnedPaths limits the managedFields that are repaired. Anyone who can update a child can make them large.
const maxOwnedPaths = 5000

// convergence is one attempt to bring a child into its desired state.
type convergence struct {
	*childDecision
	entries ownership.Entries // of the current object
	again   bool              // the same configuration was applied before
	before  ownership.Entries // the entries before the repair, or nil if nothing was repaired
	moved   []fieldpath.Path  // what the repair transferred
	kept    []fieldpath.Path  // items that can be edited items of the child, and stay
}

// converge applies the child on top of the current object. What an apply changes depends on the managedFields: which
// manager owns which field, and in which version. If they prevent the desired state, converge repairs them, and applies
// the child again. If the API server still refuses the child, items that were taken from their owners are given back,
// and the repair is not tried again until the desired child changes.
//
// The UID prevents an outdated write from recreating a deleted child. The resourceVersion prevents it from taking back
// a child that has been released or orphaned. If an orphaned child got an owner reference to a parent that no longer
// exists, Kubernetes would garbage-collect the child.
func (d *childDecision) converge(current *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	entries, err := ownership.Of(current)
	if err != nil || entries.Size() > maxOwnedPaths || d.known.futile == d.Hash {
		now, err := d.overwrite(current)
		return now, d.judge(current, err)
	}
	v := convergence{childDecision: d, entries: entries, again: d.wasApplied(current)}
	if edited := v.edited(current, nil); len(edited) > 0 {
		if current, err = v.repair(current, entries.Transfer(d.manager(), edited...), edited); err != nil {
			return nil, err
		}
	}
	now, err := v.applyOnto(current)
	if err != nil && len(entries) == 0 && (isRefusal(err) || isUnexplained(err)) {
		full, readErr := d.readManagedFields(current)
		if readErr != nil {
			return nil, readErr
		}
		if len(full.GetManagedFields()) > 0 {
			return d.converge(full)
		}
	}
	if err != nil && v.before == nil {
		if repaired, paths := v.avoidRefusal(current, err); repaired != nil {
			if current, err = v.repair(current, repaired, paths); err != nil {
				return nil, err
			}
			now, err = v.applyOnto(current)
		}
	}
	err = d.judge(current, err)
	switch {
	case err == nil:
		now, err = v.tidy(now)
		v.learn(err == nil)
		return now, err
	case len(v.moved) > 0 && (isRefusal(err) || apierrors.IsForbidden(err)):
		d.known.futile = d.Hash
		return nil, errors.Join(err, v.undo(current))
	}
	return nil, err
}

// applyOnto applies the child on top of the current object. If the child has an empty map or list from which fields or
// items have to be removed, the API server removes it altogether, or refuses the null that is left. In this case, it is
// applied again when it is gone.
func (v *convergence) applyOnto(current *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	now, err := v.overwrite(current)
	emptied := compare.Emptied(v.entries, v.manager(), v.config.Object)
	switch {
	case apierrors.IsInvalid(err) && len(emptied) > 0:
		known := *v.known
		partial, errOfRest := v.overwrite(current, emptied...)
		*v.known = known // only a part of the child has been applied
		if errOfRest != nil {
			return nil, err
		}
		return v.applyAgain(partial)
	case err == nil && slices.ContainsFunc(emptied, func(path fieldpath.Path) bool {
		value, _ := ownership.Lookup(now.Object, path)
		return value == nil
	}):
		return v.applyAgain(now)
	}
	return now, err
}

// applyAgain applies the child on top of an object to which a part of it has been applied. If it fails, the child does
// not have its desired state, although the object has the annotation with the hash.
func (v *convergence) applyAgain(partial *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	now, err := v.overwrite(partial)
	if err != nil {
		v.known.applied = lastApply{}
	}
	return now, err
}

// overwrite applies the child, without the given fields, if the object has not changed since it was read.
func (d *childDecision) overwrite(
	current *unstructured.Unstructured, except ...fieldpath.Path,
) (*unstructured.Unstructured, error) {
	d.keep(current)
	metadata := map[string]any{"uid": string(current.GetUID()), "resourceVersion": current.GetResourceVersion()}
	notes, err := d.notes(current)
	if err != nil {
		return nil, err
	}
	if notes != nil {
		metadata["annotations"] = notes
	}
	now, err := d.apply(Apply, "the child differs from its desired state", Without(d.config, except), metadata)
	if err == nil {
		d.changed(current, now)
	}
	return now, err
}

// remember stores what was applied, and what the API server has made of it.
func (d *childDecision) remember(config, now *unstructured.Unstructured) error {
	signature, err := d.signatureOf(now)
	if err != nil {
		return err
	}
	last := lastApply{hash: d.Hash, written: VersionOf(now, d.now), signature: signature}
	if entries, err := ownership.Of(now); err == nil && entries.Size() <= maxOwnedPaths {
		last.foreign = compare.ForeignItems(entries, config.Object, now.Object)
		last.finding = storedDifferently(entries, d.manager(), config.Object, now.Object)
	}
	if d.known.applied.written.UID != last.written.UID {
		d.known.kept, d.known.earlier = othersPaths{}, othersPaths{} // they belong to another object
	}
	d.known.exists, d.known.applied = true, last
	return nil
}

// repair replaces the managedFields of the object. If the object has changed, the error is a conflict, and nothing has
// been changed.
func (v *convergence) repair(
	object *unstructured.Unstructured, repaired ownership.Entries, moved []fieldpath.Path,
) (*unstructured.Unstructured, error) {
	before, err := ownership.Of(object)
	if err != nil {
		return nil, err
	}
	now, err := v.setManagedFields("the managedFields prevent the desired state", object, repaired, len(moved))
	if err != nil {
		return nil, err
	}
	v.before, v.moved = before, moved
	return now, nil
}

func (v *convergence) setManagedFields(
	reason Reason, object *unstructured.Unstructured, entries ownership.Entries, items int,
) (*unstructured.Unstructured, error) {
	fields, err := entries.ManagedFields()
	if err != nil {
		return nil, err
	}
	return v.write(object, Operation{
		Kind: SetManagedFields, Reason: reason, Items: items,
		Patch: map[string]any{"metadata": map[string]any{"managedFields": fields}},
	})
}

// undo gives everything that a repair changed back to its former owners.
func (v *convergence) undo(object *unstructured.Unstructured) error {
	for attempt := 1; ; attempt++ {
		entries, err := ownership.Of(object)
		if err != nil {
			return err
		}
		restored := entries.Restore(v.before, v.manager(), v.moved)
		_, err = v.setManagedFields("the API server refuses the child with repaired managedFields", object, restored, 0)
		if !apierrors.IsConflict(err) || attempt == maxAttempts {
			return err
		}
		now, readErr := v.readAfterConflict(object)
		if readErr != nil || now == nil {
			return readErr
		}
		object = now
	}
}

// edited returns the items of the object that replaced items of the child.
func (v *convergence) edited(current *unstructured.Unstructured, refused []string) []fieldpath.Path {
	edited, kept := compare.EditedItems(compare.Edits{
		Entries: v.entries, Manager: v.manager(), Again: v.again, Refused: refused, Known: v.known.applied.foreign,
	}, v.config.Object, current.Object)
	v.kept = kept
	return edited
}

// avoidRefusal returns the managedFields with which the API server could accept a child that it refused, or nil.
func (v *convergence) avoidRefusal(
	current *unstructured.Unstructured, err error,
) (repaired ownership.Entries, moved []fieldpath.Path) {
	switch {
	case apierrors.IsInvalid(err):
		if edited := v.edited(current, fieldsIn(err)); len(edited) > 0 {
			return v.entries.Transfer(v.manager(), edited...), edited
		}
		if shared := v.sharedItems(); len(shared) > 0 {
			return v.entries.Transfer(v.manager(), shared...), shared
		}
	case isUnexplained(err), apierrors.IsBadRequest(err):
		moved, changed := v.entries.MoveTo(v.Resource.GroupVersion(), current.Object,
			func(entry ownership.Entry, gv schema.GroupVersion) bool {
				return isUnexplained(err) || entry.IsApplier(v.manager()) || !v.isServed(gv)
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
	owned, _ := v.entries.AppliedBy(v.manager())
	for path := range owned.All() {
		last := len(path) - 1
		if last < 1 || path[last].Key == nil {
			continue
		}
		_, hasParent := ownership.Lookup(v.config.Object, path[:last-1])
		_, hasList := ownership.Lookup(v.config.Object, path[:last])
		isOwned := slices.ContainsFunc(v.entries, func(entry ownership.Entry) bool {
			return !entry.IsApplier(v.manager()) && entry.Set.Has(path)
		})
		if hasParent && !hasList && !isOwned && len(v.entries.OwnersOf(path)) > 1 {
			paths = append(paths, path.Copy())
		}
	}
	return paths
}

func (v *convergence) isServed(gv schema.GroupVersion) bool {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gv.WithKind(v.GroupKind.Kind))
	answer := v.ask(Operation{Kind: LookUp, Reason: "managedFields have another version", Object: object})
	return !meta.IsNoMatchError(answer.Err)
}

// tidy removes what an apply could not remove, because the managedFields did not show it as owned by this Reconciler.
func (v *convergence) tidy(now *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	applied := now
	for attempt := 1; ; attempt++ {
		after, err := ownership.Of(applied)
		if err != nil || after.Size() > maxOwnedPaths {
			return now, nil //nolint:nilerr // the child has its desired state; only the managedFields cannot be corrected
		}
		repaired, changed := after, false
		if v.hasLostOwners(applied, v.again) {
			repaired, changed = after.Release(ownership.BeforeFirstApply, v.manager())
		}
		left := compare.Leftovers(v.entries, after, v.manager(), v.config.Object, applied.Object)
		if len(left) > 0 {
			repaired, changed = repaired.Transfer(v.manager(), left...), true
		}
		if !changed {
			return applied, nil
		}
		const reason = "an apply could not remove what the managedFields did not show"
		patched, err := v.setManagedFields(reason, applied, repaired, 0)
		if err == nil {
			patched, err = v.overwrite(patched)
		}
		if err == nil {
			return patched, nil
		}
		if !apierrors.IsConflict(err) || attempt == maxAttempts {
			return now, err
		}
		current, readErr := v.readAfterConflict(applied)
		if readErr != nil || current == nil {
			return now, readErr
		}
		applied = current
	}
}

// hasLostOwners reports whether someone has cleared the managedFields of a child since it was applied. The API server
// then assigned all fields to another manager at the next apply, so that they would stay when they leave the child.
func (d *childDecision) hasLostOwners(object *unstructured.Unstructured, again bool) bool {
	return again && slices.ContainsFunc(managedFields(object), func(entry any) bool {
		fields, _ := entry.(map[string]any)
		return fields["manager"] == ownership.BeforeFirstApply && fields["fieldsV1"] != nil
	})
}

// sharesOwnership reports whether that other manager owns fields that this Reconciler applied.
func (d *childDecision) sharesOwnership(object metav1.Object) bool {
	entries, err := ownership.Of(object)
	if err != nil {
		return false
	}
	_, shares := entries.Release(ownership.BeforeFirstApply, d.manager())
	return shares
}

// learn stores which items and fields of others the object has. Those from before an adoption are known only if the
// apply is complete.
func (v *convergence) learn(isComplete bool) {
	v.known.kept.existing = appendNew(v.known.kept.existing, v.kept)
	if earlier := v.earlierFields(); isComplete && len(earlier) > 0 {
		v.known.earlier.existing = earlier
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
