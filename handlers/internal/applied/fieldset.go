package applied

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// FieldSet is the set of fields that a manager owns, in the format of FieldsV1. "f:name" is a field, "k:{...}" is a
// list item identified by its keys, and "v:..." is a list item identified by its value. A field or item with an empty
// set is owned as a whole.
type FieldSet map[string]FieldSet

// ParseFields parses the fields of a managedFields entry.
func ParseFields(fields *metav1.FieldsV1) (set FieldSet, err error) {
	if fields == nil {
		return nil, nil
	}
	err = json.Unmarshal(fields.GetRawBytes(), &set)
	return set, err
}

// FieldsOf returns the fields that a manager owns through server-side apply. ok is false if the object has no readable
// managed fields, for example because a cache has removed them.
func FieldsOf(object metav1.Object, manager string) (fields FieldSet, ok bool) {
	entries := object.GetManagedFields()
	for _, entry := range entries {
		if entry.Manager != manager || entry.Subresource != "" || entry.FieldsV1 == nil ||
			entry.Operation != metav1.ManagedFieldsOperationApply {
			continue
		}
		var err error
		if fields, err = ParseFields(entry.FieldsV1); err != nil {
			return nil, false
		}
	}
	return fields, len(entries) > 0
}

// Remove removes a field, and the maps and items that have no other fields. A list item can be named by some of its
// keys.
func (s FieldSet) Remove(path fieldpath.Path) {
	for name, below := range s {
		switch {
		case !isNamed(name, path[0]):
		case len(path) == 1:
			delete(s, name)
		case len(below) > 0:
			if below.Remove(path[1:]); len(below) == 0 {
				delete(s, name)
			}
		}
	}
}

// isNamed reports whether a key of FieldsV1 is that of a path element.
func isNamed(name string, element fieldpath.PathElement) bool {
	if element.FieldName != nil {
		return name == "f:"+*element.FieldName
	}
	text, isItem := strings.CutPrefix(name, "k:")
	var keys map[string]any
	if !isItem || element.Key == nil || json.Unmarshal([]byte(text), &keys) != nil {
		return false
	}
	for _, key := range *element.Key {
		if !equalScalars(keys[key.Name], key.Value.Unstructured()) {
			return false
		}
	}
	return true
}

// Owns reports whether the set contains all fields of an applied configuration. It needs no schema: a field with an
// empty set is owned as a whole, and only list items with keys are compared.
func (s FieldSet) Owns(config map[string]any) bool {
	for name, value := range config {
		fields, owned := s["f:"+name]
		if !owned || len(fields) > 0 && !fields.ownsValue(value) {
			return false
		}
	}
	return true
}

func (s FieldSet) ownsValue(value any) bool {
	switch value := value.(type) {
	case map[string]any:
		return s.Owns(value)
	case []any:
		items, index := 0, itemIndex{list: value}
		for key, fields := range s {
			keys, isItem := strings.CutPrefix(key, "k:")
			if !isItem {
				continue
			}
			items++
			item := index.with(keys)
			if len(fields) > 0 && item != nil && !fields.Owns(item) {
				return false
			}
		}
		return items == 0 || items >= len(value)
	default:
		return true
	}
}

// itemIndex finds the items of a list by their keys. Lists can have thousands of items.
type itemIndex struct {
	list   []any
	names  []string                  // of the keys by which items are indexed
	byKeys map[string]map[string]any // items by the JSON of their keys; the first one counts
}

// with returns the list item that has the given keys, or nil if no item has them. The keys are a JSON object.
func (i *itemIndex) with(keys string) map[string]any {
	var want map[string]any
	if err := json.Unmarshal([]byte(keys), &want); err != nil {
		return nil
	}
	if names := slices.Sorted(maps.Keys(want)); i.byKeys == nil || !slices.Equal(names, i.names) {
		i.names, i.byKeys = names, make(map[string]map[string]any, len(i.list))
		for n := len(i.list) - 1; n >= 0; n-- {
			if item, isMap := i.list[n].(map[string]any); isMap {
				if text, has := i.textOf(item); has {
					i.byKeys[text] = item
				}
			}
		}
	}
	text, has := i.textOf(want)
	if !has {
		return nil
	}
	return i.byKeys[text]
}

// textOf returns the keys of an item as JSON. Numbers have the same JSON if they are equal. ok is false if they cannot
// be encoded.
func (i *itemIndex) textOf(item map[string]any) (text string, ok bool) {
	values := make([]any, len(i.names))
	for n, name := range i.names {
		values[n] = item[name] // a missing key equals null
		if number, isInteger := integer(item[name]); isInteger {
			values[n] = number
		}
	}
	data, err := json.Marshal(values)
	return string(data), err == nil
}
