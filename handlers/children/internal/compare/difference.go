package compare

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/handlers/internal/applied"
	"github.com/dynamic-controller/engine/handlers/internal/ownership"
)

// Difference returns the first field, in alphabetical order, whose value in the object is not the one of the
// configuration. A list is returned as a whole.
func Difference(config, object map[string]any) (field string, path fieldpath.Path) {
	if paths := Differences(nil, config, object, 1); len(paths) > 0 {
		return FieldOf(paths[0]), paths[0]
	}
	return "", nil
}

// Differences returns the first n fields, in alphabetical order, whose values in the object are not those of the
// configuration. Lists are returned as a whole.
func Differences(at fieldpath.Path, config, object map[string]any, n int) (paths []fieldpath.Path) {
	for _, name := range slices.Sorted(maps.Keys(config)) {
		value, current := config[name], object[name]
		if applied.Covers(map[string]any{name: value}, map[string]any{name: current}) {
			continue
		}
		path := append(at.Copy(), fieldpath.FieldNameElement(name))
		fields, isMap := value.(map[string]any)
		others, isAlsoMap := current.(map[string]any)
		var below []fieldpath.Path
		if isMap && isAlsoMap {
			below = Differences(path, fields, others, n-len(paths))
		}
		if len(below) == 0 {
			below = []fieldpath.Path{path}
		}
		if paths = append(paths, below...); len(paths) >= n {
			break
		}
	}
	return paths
}

// LastOwnerOf returns the entry of the manager, other than the given one, that changed a path last. Entries of the
// scale subresource have no time.
func LastOwnerOf(object metav1.Object, path fieldpath.Path, except string) (last ownership.Entry) {
	entries, err := ownership.Of(object)
	if err != nil || len(path) == 0 {
		return last
	}
	for _, entry := range entries.OwnersOf(path) {
		if entry.Manager != except && (last.Manager == "" || last.Time == nil ||
			entry.Time != nil && !entry.Time.Before(last.Time)) {
			last = entry
		}
	}
	return last
}
