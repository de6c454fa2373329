package compare

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/handlers/internal/applied"
	"github.com/dynamic-controller/engine/handlers/internal/ownership"
)

// StoredDifferently returns the first field whose value in an object is not the applied one, after the API server has
// stored the object, or nil. The entries are those of the object.
func StoredDifferently(entries ownership.Entries, manager string, config, object map[string]any) fieldpath.Path {
	if applied.Covers(config, object) {
		return nil
	}
	return storedForm{entries, manager}.difference(nil, config, object)
}

// storedForm compares values as the API server does: defaults are added, empty values are left out, and quantities,
// durations and times have several forms. The managedFields show which lists have keys. Without the schema, texts such
// as "1.0" and "1" are taken for quantities. The comparison is therefore used only for what the API server has returned
// from an apply, and never to decide whether a child has drifted.
type storedForm struct {
	entries ownership.Entries
	manager string
}

// difference returns the path of the first value that differs, or nil.
func (s storedForm) difference(path fieldpath.Path, config, object any) fieldpath.Path {
	switch config := config.(type) {
	case map[string]any:
		fields, isMap := object.(map[string]any)
		if !isMap && !isEmpty(object) {
			return path
		}
		for _, name := range slices.Sorted(maps.Keys(config)) {
			if len(path) == 1 && name == "ownerReferences" {
				continue // compared by their UIDs before
			}
			at := append(path.Copy(), fieldpath.FieldNameElement(name))
			if found := s.difference(at, config[name], fields[name]); found != nil {
				return found
			}
		}
		return nil
	case []any:
		return s.listDifference(path, config, object)
	default:
		if equalStored(config, object) {
			return nil
		}
		return path
	}
}

// listDifference compares lists. A list whose items are owned one by one can have more items.
func (s storedForm) listDifference(path fieldpath.Path, config []any, object any) fieldpath.Path {
	items, _ := object.([]any)
	r := &replacements{Edits: Edits{Entries: s.entries, Manager: s.manager}}
	keys := r.keysOf(path)
	switch {
	case len(keys) > 0:
		return s.keyedDifference(r, path, keys, config, items)
	case len(r.elements(path)) > 0: // a set
		for _, value := range config {
			if !slices.ContainsFunc(items, func(item any) bool { return applied.Covers(value, item) }) {
				return path
			}
		}
		return nil
	case len(items) != len(config):
		return path
	}
	for i, value := range config {
		if found := s.difference(append(path.Copy(), fieldpath.IndexElement(i)), value, items[i]); found != nil {
			return found
		}
	}
	return nil
}

// keyedDifference compares lists with keys.
func (s storedForm) keyedDifference(
	r *replacements, path fieldpath.Path, keys []string, config, items []any,
) fieldpath.Path {
	others := r.itemsOf(path, items)
	for _, item := range completeFirst(config, keys) {
		other, found := others.take(item)
		if !found {
			return path
		}
		at := path.Copy()
		if element, found := r.elementOf(path, other); found {
			at = append(at, element)
		}
		if found := s.difference(at, item, other); found != nil {
			return found
		}
	}
	return nil
}

// isQuantity matches quantities that can be compared in little time. Anyone who can write an instance can choose a
// text, and the time to parse a quantity grows with its exponent.
var isQuantity = regexp.MustCompile(`^[+-]?[0-9.]{1,18}([eE][+-]?[0-9]{1,2}|[a-zA-Z]{0,2})$`)

// equalStored compares scalars. The API server can replace null and an empty text with a default.
func equalStored(desired, stored any) bool {
	switch {
	case desired == nil || desired == "":
		return true
	case stored == nil:
		return isEmpty(desired)
	case applied.Covers(desired, stored):
		return true
	}
	a, b := scalarText(desired), scalarText(stored)
	if isQuantity.MatchString(a) && isQuantity.MatchString(b) {
		x, errX := resource.ParseQuantity(a)
		y, errY := resource.ParseQuantity(b)
		if errX == nil && errY == nil && x.Cmp(y) == 0 {
			return true
		}
	}
	if x, err := time.ParseDuration(a); err == nil {
		if y, err := time.ParseDuration(b); err == nil && x == y {
			return true
		}
	}
	x, errX := time.Parse(time.RFC3339, a)
	y, errY := time.Parse(time.RFC3339, b)
	return errX == nil && errY == nil && x.Equal(y)
}

// scalarText returns a string or number as text, and an empty string for other values.
func scalarText(value any) string {
	switch value := value.(type) {
	case string:
		return strings.TrimSpace(value)
	case int64, int32, int, float64:
		return fmt.Sprint(value)
	}
	return ""
}

// isEmpty reports whether the API server can leave out a value.
func isEmpty(value any) bool {
	switch value := value.(type) {
	case nil:
		return true
	case map[string]any:
		for _, nested := range value {
			if !isEmpty(nested) {
				return false
			}
		}
		return true
	case []any:
		return len(value) == 0
	case string:
		return value == ""
	case bool:
		return !value
	}
	return applied.Covers(value, int64(0))
}
