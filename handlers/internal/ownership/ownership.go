// Package ownership changes which managers own the fields of an object, as recorded in its managedFields. A manager
// that applies an object removes a field that it owned and no longer applies, unless another manager owns the field as
// well. Therefore, what an apply removes can be decided by changing the ownership before.
package ownership

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// BeforeFirstApply is the manager to which the API server assigns all fields of an object without managedFields when
// the object is applied for the first time.
const BeforeFirstApply = "before-first-apply"

// Entry is an entry of managedFields.
type Entry struct {
	metav1.ManagedFieldsEntry
	Set *fieldpath.Set
}

// Entries are the managedFields of an object. Their methods return new entries.
type Entries []Entry

// Of parses the managedFields of an object.
func Of(object metav1.Object) (Entries, error) {
	var entries Entries
	for _, entry := range object.GetManagedFields() {
		set := fieldpath.NewSet()
		if entry.FieldsV1 != nil {
			if err := set.FromJSON(bytes.NewReader(entry.FieldsV1.GetRawBytes())); err != nil {
				return nil, fmt.Errorf("managedFields of %q: %w", entry.Manager, err)
			}
		}
		entries = append(entries, Entry{entry, set})
	}
	return entries, nil
}

// ManagedFields returns the value of metadata.managedFields. Entries without fields are left out.
func (e Entries) ManagedFields() ([]any, error) {
	fields := []any{}
	for _, entry := range e {
		if entry.Set.Empty() {
			continue
		}
		raw, err := entry.Set.ToJSON()
		if err != nil {
			return nil, err
		}
		entry.FieldsType, entry.FieldsV1 = "FieldsV1", &metav1.FieldsV1{}
		entry.FieldsV1.SetRawBytes(raw)
		encoded, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&entry.ManagedFieldsEntry)
		if err != nil {
			return nil, err
		}
		fields = append(fields, encoded)
	}
	return fields, nil
}

// IsApplier reports whether the entry belongs to the given manager and its applies of the whole object.
func (e Entry) IsApplier(manager string) bool {
	return e.Manager == manager && e.Operation == metav1.ManagedFieldsOperationApply && e.Subresource == ""
}

// AppliedBy returns the fields that a manager owns because it applied them, and when they last changed.
func (e Entries) AppliedBy(manager string) (*fieldpath.Set, time.Time) {
	for _, entry := range e {
		if entry.IsApplier(manager) {
			if entry.Time != nil {
				return entry.Set, entry.Time.Time
			}
			return entry.Set, time.Time{}
		}
	}
	return fieldpath.NewSet(), time.Time{}
}

// OwnersOf returns the entries that own a path or a part of it.
func (e Entries) OwnersOf(path fieldpath.Path) (owners Entries) {
	for _, entry := range e {
		if entry.Set.Has(path) || !below(entry.Set, path).Empty() {
			owners = append(owners, entry)
		}
	}
	return owners
}

// Size returns the number of paths in all entries.
func (e Entries) Size() (n int) {
	for _, entry := range e {
		n += entry.Set.Size()
	}
	return n
}

// IsEmpty reports whether no manager owns anything.
func (e Entries) IsEmpty() bool { return e.Size() == 0 }

// Transfer makes a manager the only owner of the paths, as if it had applied them. The manager must own something that
// it applied. Otherwise, nothing is changed.
func (e Entries) Transfer(manager string, paths ...fieldpath.Path) Entries {
	applier := slices.IndexFunc(e, func(entry Entry) bool { return entry.IsApplier(manager) })
	if applier < 0 {
		return e
	}
	moved := fieldpath.NewSet(paths...)
	changed := slices.Clone(e)
	for i, entry := range changed {
		changed[i].Set = entry.Set.RecursiveDifference(fieldpath.NewSet(paths...))
		moved = moved.Union(entry.Set.Difference(changed[i].Set))
	}
	changed[applier].Set = changed[applier].Set.Union(moved)
	return changed
}

// Share makes the manager of an entry an owner of the paths, in addition to the others. A manager without a version
// gets the given one.
func (e Entries) Share(owner Entry, apiVersion string, paths ...fieldpath.Path) Entries {
	if owner.Manager == "" {
		owner.Manager, owner.Operation = "unknown", metav1.ManagedFieldsOperationUpdate
	}
	if owner.APIVersion == "" {
		owner.APIVersion = apiVersion
	}
	shared := slices.Clone(e)
	if same := slices.IndexFunc(shared, owner.isSame); same >= 0 {
		shared[same].Set = shared[same].Set.Union(fieldpath.NewSet(paths...))
		return shared
	}
	owner.Set = fieldpath.NewSet(paths...)
	return append(shared, owner)
}

// Restore undoes a Transfer to a manager: the paths get the owners back that they had in the entries before.
func (e Entries) Restore(before Entries, manager string, paths []fieldpath.Path) Entries {
	moved := fieldpath.NewSet(paths...)
	restored := slices.Clone(e)
	for i, entry := range restored {
		if entry.IsApplier(manager) {
			restored[i].Set = entry.Set.RecursiveDifference(moved)
		}
	}
	for _, entry := range before {
		part := entry.Set.Difference(entry.Set.RecursiveDifference(moved))
		if part.Empty() {
			continue
		}
		if same := slices.IndexFunc(restored, entry.isSame); same >= 0 {
			restored[same].Set = restored[same].Set.Union(part)
			continue
		}
		entry.Set = part
		restored = append(restored, entry)
	}
	return restored
}

// isSame reports whether two entries would be merged by the API server.
func (e Entry) isSame(other Entry) bool {
	return other.Manager == e.Manager && other.Operation == e.Operation && other.Subresource == e.Subresource &&
		other.APIVersion == e.APIVersion
}

// Release removes what a manager owns because it applied it from the entries of another manager. It reports whether
// this changes anything.
func (e Entries) Release(from, manager string) (Entries, bool) {
	applied, _ := e.AppliedBy(manager)
	released, changes := slices.Clone(e), false
	for i, entry := range released {
		if entry.Manager == from && entry.Subresource == "" && !entry.IsApplier(manager) {
			released[i].Set = entry.Set.Difference(applied)
			changes = changes || !released[i].Set.Equals(entry.Set)
		}
	}
	return released, changes
}

// MoveTo changes the version of the entries that have another version of the group, if move returns true for them. The
// fields of an entry that the object does not have in that version are dropped. MoveTo reports whether anything
// changes.
func (e Entries) MoveTo(
	version schema.GroupVersion, object map[string]any, move func(entry Entry, from schema.GroupVersion) bool,
) (moved Entries, changes bool) {
	for _, entry := range e {
		gv, err := schema.ParseGroupVersion(entry.APIVersion)
		if err == nil && gv.Group == version.Group && gv != version && move(entry, gv) {
			entry.APIVersion, entry.Set, changes = version.String(), Present(entry.Set, object), true
		}
		if same := slices.IndexFunc(moved, entry.isSame); same >= 0 {
			moved[same].Set = moved[same].Set.Union(entry.Set)
			continue
		}
		moved = append(moved, entry)
	}
	return moved, changes
}

// Present returns the paths in a set that an object has.
func Present(set *fieldpath.Set, object map[string]any) *fieldpath.Set {
	present := fieldpath.NewSet()
	for path := range set.All() {
		if _, found := Lookup(object, path); found {
			present.Insert(path.Copy())
		}
	}
	return present
}

// Lookup returns the value at a path of an object.
func Lookup(value any, path fieldpath.Path) (found any, ok bool) {
	for _, element := range path {
		if value, ok = child(value, element); !ok {
			return nil, false
		}
	}
	return value, true
}

// Remove removes the field at a path of an object.
func Remove(object map[string]any, path fieldpath.Path) {
	if len(path) == 0 || path[len(path)-1].FieldName == nil {
		return
	}
	parent, _ := Lookup(object, path[:len(path)-1])
	if fields, isMap := parent.(map[string]any); isMap {
		delete(fields, *path[len(path)-1].FieldName)
	}
}

// Set sets the field at a path of an object. It creates missing maps, but no list items. The path must end with a
// field.
func Set(object map[string]any, path fieldpath.Path, value any) {
	var at any = object
	for i, element := range path[:len(path)-1] {
		next, found := child(at, element)
		if !found && path[i+1].FieldName != nil && element.FieldName != nil {
			next, found = map[string]any{}, true
			fields, isMap := at.(map[string]any)
			if !isMap {
				return
			}
			fields[*element.FieldName] = next
		}
		if !found {
			return
		}
		at = next
	}
	if fields, isMap := at.(map[string]any); isMap {
		fields[*path[len(path)-1].FieldName] = value
	}
}

func child(value any, element fieldpath.PathElement) (any, bool) {
	switch {
	case element.FieldName != nil:
		fields, isMap := value.(map[string]any)
		found, has := fields[*element.FieldName]
		return found, isMap && has
	case element.Index != nil:
		items, isList := value.([]any)
		if !isList || *element.Index < 0 || *element.Index >= len(items) {
			return nil, false
		}
		return items[*element.Index], true
	}
	items, _ := value.([]any)
	for _, item := range items {
		if Matches(item, element) {
			return item, true
		}
	}
	return nil, false
}

// Matches reports whether a list item is the one of a path element with keys or a value.
func Matches(item any, element fieldpath.PathElement) bool {
	switch {
	case element.Value != nil:
		return equal(item, (*element.Value).Unstructured())
	case element.Key != nil:
		fields, isMap := item.(map[string]any)
		for _, key := range *element.Key {
			if !isMap || !equal(fields[key.Name], key.Value.Unstructured()) {
				return false
			}
		}
		return isMap
	}
	return false
}

// equal compares scalars, which can have different numeric types.
func equal(a, b any) bool {
	switch a := a.(type) {
	case string:
		b, isString := b.(string)
		return isString && a == b
	case bool:
		b, isBool := b.(bool)
		return isBool && a == b
	case int64:
		if b, isInteger := b.(int64); isInteger {
			return a == b
		}
	}
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// below returns the paths of a set below a path.
func below(set *fieldpath.Set, path fieldpath.Path) *fieldpath.Set {
	for _, element := range path {
		set = set.WithPrefix(element)
	}
	return set
}

// Elements returns the elements of a set directly below a path.
func Elements(set *fieldpath.Set, path fieldpath.Path) (elements []fieldpath.PathElement) {
	at := below(set, path)
	for element := range at.Members.All() {
		elements = append(elements, element)
	}
	for element := range at.Children.All() {
		if !at.Members.Has(element) {
			elements = append(elements, element)
		}
	}
	return elements
}
