package compare

import (
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/handlers/internal/ownership"
)

// Emptied returns the maps and lists that are empty in a configuration, and of which the manager owned a part before.
func Emptied(entries ownership.Entries, manager string, config map[string]any) (paths []fieldpath.Path) {
	owned, _ := entries.AppliedBy(manager)
	r := &replacements{Edits: Edits{Entries: entries, Manager: manager}}
	var walk func(path fieldpath.Path, value any)
	walk = func(path fieldpath.Path, value any) {
		fields, isMap := value.(map[string]any)
		items, isList := value.([]any)
		switch {
		case isMap && len(fields) == 0, isList && len(items) == 0:
			if len(ownership.Elements(owned, path)) > 0 {
				paths = append(paths, path)
			}
		case isMap:
			for name, value := range fields {
				walk(append(path.Copy(), fieldpath.FieldNameElement(name)), value)
			}
		case isList && len(r.keysOf(path)) > 0:
			for _, item := range items {
				if element, found := r.elementOf(path, item); found {
					walk(append(path.Copy(), element), item)
				}
			}
		}
	}
	walk(nil, config)
	return paths
}
