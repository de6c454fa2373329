package compare

import (
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"github.com/dynamic-controller/engine/handlers/internal/applied"
	"github.com/dynamic-controller/engine/handlers/internal/ownership"
)

// If someone edits the key of a list item, such as the port of a Service, the item gets a new identity: server-side
// apply takes it for an item that was removed and another one that was added. A forced apply adds the removed item
// again, and keeps the other one. The API server then rejects the object, or it has both items.

// Edits is what is known about the changes of an object since a configuration was applied to it.
type Edits struct {
	Entries ownership.Entries // of the object
	Manager string            // that applies the configuration
	// Again is set if the same configuration was applied before, so that a missing item has existed.
	Again bool
	// Refused contains the fields that the API server named when it refused to apply the configuration.
	Refused []string
	// Known contains the items of others that the object had after the last apply, or is nil. See ForeignItems.
	Known map[string]bool
}

// EditedItems returns the items of an object that replaced items of a configuration, and those that can be edited items
// or items of others.
func EditedItems(e Edits, config, object map[string]any) (edited, kept []fieldpath.Path) {
	_, applied := e.Entries.AppliedBy(e.Manager)
	r := replacements{Edits: e, applied: applied}
	r.find(fieldpath.Path{}, config, object)
	return r.paths, r.kept
}

// replacements finds the items of an object that replaced items of an apply configuration.
type replacements struct {
	Edits
	applied time.Time // when the fields that the manager applied last changed
	paths   []fieldpath.Path
	kept    []fieldpath.Path // items that can be edited items or items of others
	foreign map[string]bool  // if not nil, the other items are only collected here
	lists   map[string]*list // by their paths; see listAt
}

// find compares a part of the configuration with the same part of the object.
func (r *replacements) find(path fieldpath.Path, config, object any) {
	switch config := config.(type) {
	case map[string]any:
		object, _ := object.(map[string]any)
		for name, value := range config {
			r.find(append(path.Copy(), fieldpath.FieldNameElement(name)), value, object[name])
		}
	case []any:
		object, _ := object.([]any)
		if keys := r.keysOf(path); len(keys) > 0 {
			r.findItems(path, keys, config, object)
		}
	}
}

// keysOf returns the names of the keys of the list at a path, or nil if its items have no keys.
func (r *replacements) keysOf(path fieldpath.Path) []string { return r.listAt(path).keys }

func (r *replacements) elements(path fieldpath.Path) []fieldpath.PathElement {
	return r.listAt(path).elements
}

// findItems compares the items of a list with keys.
func (r *replacements) findItems(path fieldpath.Path, keys []string, config, object []any) {
	var missing []map[string]any
	items := r.itemsOf(path, object)
	for _, item := range completeFirst(config, keys) {
		other, found := items.take(item)
		if !found {
			missing = append(missing, item)
			continue
		}
		if element, found := r.elementOf(path, other); found {
			r.find(append(path.Copy(), element), item, other)
		}
	}
	others := items.rest()
	if r.foreign != nil {
		for _, other := range others {
			if element, found := r.elementOf(path, other); found {
				r.foreign[append(path.Copy(), element).String()] = true
			}
		}
		return
	}
	if len(missing) == 0 {
		return
	}
	var edited []editedItem
	for _, other := range others {
		if element, found := r.elementOf(path, other); found {
			if at := append(path.Copy(), element); r.isEdited(at) {
				edited = append(edited, editedItem{at, other})
			}
		}
	}
	var replaced []fieldpath.Path
	switch {
	// The API server refuses the list with both items. If each edited item can belong to a missing one, they are removed.
	case len(edited) <= len(missing) && r.isRefused(path):
		for _, item := range edited {
			replaced = append(replaced, item.path)
		}
	case r.Again:
		replaced = renamed(missing, edited, keys)
	}
	r.paths = append(r.paths, replaced...)
	for _, item := range edited {
		if !slices.ContainsFunc(replaced, item.path.Equals) {
			r.kept = append(r.kept, item.path)
		}
	}
}

// completeFirst returns the items with all keys before those that lack keys. The latter have defaults.
func completeFirst(config []any, keys []string) (items []map[string]any) {
	var incomplete []map[string]any
	for _, item := range config {
		fields, _ := item.(map[string]any)
		if len(only(fields, keys)) < len(keys) {
			incomplete = append(incomplete, fields)
			continue
		}
		items = append(items, fields)
	}
	return append(items, incomplete...)
}

// editedItem is an item that an update created.
type editedItem struct {
	path  fieldpath.Path
	value any
}

// renamed returns the paths of the items that have all fields of a missing item except its keys. The items must
// correspond one to one.
func renamed(missing []map[string]any, edited []editedItem, keys []string) (paths []fieldpath.Path) {
	matches := make([][]int, len(missing))
	uses := make([]int, len(edited))
	for i, item := range missing {
		rest := without(item, keys)
		for j, other := range edited {
			if len(rest) > 0 && applied.Covers(rest, other.value) {
				matches[i] = append(matches[i], j)
				uses[j]++
			}
		}
	}
	for _, found := range matches {
		if len(found) == 1 && uses[found[0]] == 1 {
			paths = append(paths, edited[found[0]].path)
		}
	}
	return paths
}

// ForeignItems returns the items with keys in the lists of a configuration that the configuration does not contain.
func ForeignItems(entries ownership.Entries, config, object map[string]any) map[string]bool {
	r := replacements{Edits: Edits{Entries: entries}, foreign: map[string]bool{}}
	r.find(fieldpath.Path{}, config, object)
	return r.foreign
}

// isEdited reports whether an item was created by an update that came after the last apply, as far as this is known.
// Items of other appliers stay, and so do items that admission added: the API server assigns them to the manager of the
// request. Items of before-first-apply stay as well: after managedFields are cleared, the origin and the age of all
// items are unknown.
func (r *replacements) isEdited(path fieldpath.Path) bool {
	owners := r.Entries.OwnersOf(path)
	return len(owners) > 0 && !r.Known[path.String()] && !slices.ContainsFunc(owners, func(entry ownership.Entry) bool {
		return entry.Operation != metav1.ManagedFieldsOperationUpdate || entry.Manager == r.Manager ||
			entry.Manager == ownership.BeforeFirstApply || entry.Subresource != "" ||
			entry.Time == nil || entry.Time.Time.Before(r.applied)
	})
}

// isRefused reports whether the API server named the list at a path, or a part of it.
func (r *replacements) isRefused(path fieldpath.Path) bool {
	list := FieldOf(path)
	return list != "" && slices.ContainsFunc(r.Refused, func(field string) bool {
		field = withoutIndexes(field)
		return field == list || strings.HasPrefix(field, list+".")
	})
}

// FieldOf returns a path in the form of a field in an error of the API server, without indexes.
func FieldOf(path fieldpath.Path) string {
	var names []string
	for _, element := range path {
		if element.FieldName != nil {
			names = append(names, *element.FieldName)
		}
	}
	return strings.Join(names, ".")
}

// withoutIndexes removes everything in brackets.
func withoutIndexes(field string) string {
	var text strings.Builder
	depth := 0
	for _, r := range field {
		switch {
		case r == '[':
			depth++
		case r == ']':
			depth--
		case depth == 0:
			text.WriteRune(r)
		}
	}
	return text.String()
}

func only(item map[string]any, keys []string) map[string]any {
	part := map[string]any{}
	for _, key := range keys {
		if value, has := item[key]; has {
			part[key] = value
		}
	}
	return part
}

func without(item map[string]any, keys []string) map[string]any {
	part := map[string]any{}
	for name, value := range item {
		if !slices.Contains(keys, name) {
			part[name] = value
		}
	}
	return part
}

// elementLike returns the path element of an item in a list that contains the other element.
func elementLike(other fieldpath.PathElement, item any) (fieldpath.PathElement, bool) {
	switch {
	case other.Value != nil:
		return fieldpath.ValueElement(value.NewValueInterface(item)), true
	case other.Key != nil:
		fields, isMap := item.(map[string]any)
		key := make(value.FieldList, len(*other.Key))
		for i, field := range *other.Key {
			key[i] = value.Field{Name: field.Name, Value: value.NewValueInterface(fields[field.Name])}
		}
		return fieldpath.PathElement{Key: &key}, isMap
	}
	return fieldpath.PathElement{}, false
}
