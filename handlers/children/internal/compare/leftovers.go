package compare

import (
	"slices"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/handlers/internal/ownership"
)

// Leftovers returns the items that the manager owned as part of a whole list, if the list has been changed to a list
// whose items are owned one by one. An apply does not remove them, because the manager did not own the items.
func Leftovers(
	before, after ownership.Entries, manager string, config, object map[string]any,
) (paths []fieldpath.Path) {
	whole, _ := before.AppliedBy(manager)
	single, _ := after.AppliedBy(manager)
	for path := range whole.All() {
		elements := ownership.Elements(single, path)
		// This comes first, because a set can have thousands of paths.
		if len(elements) == 0 || len(ownership.Elements(whole, path)) > 0 {
			continue
		}
		value, _ := ownership.Lookup(object, path)
		items, isList := value.([]any)
		if !isList || hasOtherOwner(after, path, manager) {
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
