package handlers

import (
	"encoding/json"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fieldSet is what a manager owns, as FieldsV1 writes it: "f:name" for a field, "k:{...}" for an item of a list by its
// keys, "v:..." for one by its value, and an empty set for what is owned whole.
type fieldSet map[string]fieldSet

// appliedFields is what the manager owns by server-side apply, and whether the object tells of anybody's fields at all:
// a cache may have dropped them.
func appliedFields(object metav1.Object, manager, subresource string) (fields fieldSet, known bool) {
	entries := object.GetManagedFields()
	for _, entry := range entries {
		if entry.Manager != manager || entry.Operation != metav1.ManagedFieldsOperationApply || entry.Subresource != subresource || entry.FieldsV1 == nil {
			continue
		}
		if err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields); err != nil {
			return nil, false
		}
	}
	return fields, len(entries) > 0
}

// ownsAll tells whether the set has every field of what was applied. It knows no schema and needs none: what the set
// holds without going into it is owned whole, and it goes into a list only where the items have keys, which say
// themselves which item they mean.
func (s fieldSet) ownsAll(applied map[string]any) bool {
	for name, value := range applied {
		below, owned := s["f:"+name]
		if !owned {
			return false
		}
		if len(below) > 0 && !below.ownsAllOf(value) {
			return false
		}
	}
	return true
}

func (s fieldSet) ownsAllOf(value any) bool {
	switch value := value.(type) {
	case map[string]any:
		return s.ownsAll(value)
	case []any:
		items := 0
		for key, below := range s {
			byKeys, isItem := strings.CutPrefix(key, "k:")
			if !isItem {
				continue
			}
			items++
			item := itemWith(value, byKeys)
			if len(below) > 0 && item != nil && !below.ownsAll(item) {
				return false
			}
		}
		return items == 0 || items >= len(value)
	default:
		return true
	}
}

// itemWith finds the item of a list that has the keys, a JSON object.
func itemWith(list []any, keys string) map[string]any {
	var want map[string]any
	if err := json.Unmarshal([]byte(keys), &want); err != nil {
		return nil
	}
	for _, item := range list {
		if item, ok := item.(map[string]any); ok && covers(want, item) {
			return item
		}
	}
	return nil
}
