// Package ownership changes which managers own the fields of an object, as recorded in its managedFields. A manager that
// applies an object removes a field that it owned and no longer applies, unless another manager owns the field as well.
// Therefore, what an apply removes can be decided by changing the ownership before.
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

// BeforeFirstApply is the manager to which the API server assigns all fields of an object without managedFields when the
// object is applied for the first time.
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

// Transfer makes a manager the only owner of the paths, as if it had applied them.
func (e Entries) Transfer(manager string, paths ...fieldpath.Path) Entries {
	moved := fieldpath.NewSet(paths...)
	changed := slices.Clone(e)
	for i, entry := range changed {
		changed[i].Set = entry.Set.RecursiveDifference(fieldpath.NewSet(paths...))
		if !changed[i].Set.Equals(entry.Set) {
			moved = moved.Union(entry.Set.Difference(changed[i].Set))
		}
	}
	for i, entry := range changed {
		if entry.IsApplier(manager) {
			changed[i].Set = entry.Set.Union(moved)
		}
	}
	return changed
}

// Release removes what a manager owns because it applied it from the entries of another manager. It reports whether this
// changes anything.
func (e Entries) Release(from, manager string) (Entries, bool) {
	applied, _ := e.AppliedBy(manager)
	changed, any := slices.Clone(e), false
	for i, entry := range changed {
		if entry.Manager == from && entry.Subresource == "" && !entry.IsApplier(manager) {
			changed[i].Set = entry.Set.Difference(applied)
			any = any || !changed[i].Set.Equals(entry.Set)
		}
	}
	return changed, any
}

// MoveTo changes the version of all entries that have another version of the group. The fields of an entry that the
// object does not have in that version are dropped. MoveTo returns the managers that lose fields, and reports whether
// anything changes.
func (e Entries) MoveTo(version schema.GroupVersion, object map[string]any) (changed Entries, lost []string, any bool) {
	for _, entry := range e {
		gv, err := schema.ParseGroupVersion(entry.APIVersion)
		if err == nil && gv.Group == version.Group && gv != version {
			present := Present(entry.Set, object)
			if !present.Equals(entry.Set) && !slices.Contains(lost, entry.Manager) {
				lost = append(lost, entry.Manager)
			}
			entry.APIVersion, entry.Set, any = version.String(), present, true
		}
		same := slices.IndexFunc(changed, func(other Entry) bool {
			return other.Manager == entry.Manager && other.Operation == entry.Operation &&
				other.Subresource == entry.Subresource && other.APIVersion == entry.APIVersion
		})
		if same >= 0 {
			changed[same].Set = changed[same].Set.Union(entry.Set)
			continue
		}
		changed = append(changed, entry)
	}
	return changed, lost, any
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
