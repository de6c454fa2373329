package compare

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/handlers/internal/applied"
	"github.com/dynamic-controller/engine/handlers/internal/ownership"
)

// list is what the managedFields show about a list. Lists can have thousands of items, so that each is looked up by its
// keys.
type list struct {
	elements []fieldpath.PathElement
	keys     []string                         // the names of the keys, or nil if the items have none
	byKeys   map[string]fieldpath.PathElement // see keyText
}

// listAt returns the list at a path.
func (r *replacements) listAt(path fieldpath.Path) *list {
	name := path.String()
	if known := r.lists[name]; known != nil {
		return known
	}
	l := &list{}
	for _, entry := range r.Entries {
		l.elements = append(l.elements, ownership.Elements(entry.Set, path)...)
	}
	for _, element := range l.elements {
		if element.Key == nil {
			continue
		}
		fields := map[string]any{}
		for _, key := range *element.Key {
			fields[key.Name] = key.Value.Unstructured()
		}
		if l.keys == nil {
			l.byKeys = map[string]fieldpath.PathElement{}
			for _, key := range *element.Key {
				l.keys = append(l.keys, key.Name)
			}
		}
		if text, isComplete := keyText(fields, l.keys); isComplete {
			l.byKeys[text] = element
		}
	}
	if r.lists == nil {
		r.lists = map[string]*list{}
	}
	r.lists[name] = l
	return l
}

// elementOf returns the path element of an item in the list at a path.
func (r *replacements) elementOf(path fieldpath.Path, item any) (fieldpath.PathElement, bool) {
	l := r.listAt(path)
	fields, _ := item.(map[string]any)
	if text, isComplete := keyText(fields, l.keys); isComplete {
		element, found := l.byKeys[text]
		return element, found
	}
	i := slices.IndexFunc(l.elements, func(element fieldpath.PathElement) bool {
		return element.Key != nil && ownership.Matches(item, element)
	})
	if i < 0 {
		return fieldpath.PathElement{}, false
	}
	return l.elements[i], true
}

// items are the items of an object in a list with keys. Each of them can be taken once.
type items struct {
	keys   []string
	all    []any
	taken  []bool
	byKeys map[string][]int // the indexes of the items; see keyText
	// isOwned reports whether the manager owns an item, and whether the item can otherwise be the one that is looked for.
	isOwned func(item any) (owned, possible bool)
}

// itemsOf returns the items of the list at a path.
func (r *replacements) itemsOf(path fieldpath.Path, all []any) *items {
	i := &items{keys: r.keysOf(path), all: all, taken: make([]bool, len(all)), byKeys: map[string][]int{}}
	for n, item := range all {
		fields, _ := item.(map[string]any)
		if text, isComplete := keyText(fields, i.keys); isComplete {
			i.byKeys[text] = append(i.byKeys[text], n)
		}
	}
	managed, _ := r.Entries.AppliedBy(r.Manager)
	i.isOwned = func(item any) (owned, possible bool) {
		element, found := r.elementOf(path, item)
		if !found {
			return false, false
		}
		at := append(path.Copy(), element)
		return managed.Has(at), !r.isEdited(at)
	}
	return i
}

// take returns the item with the keys of a desired item. If the desired item lacks keys, several items can have the
// others. One that the manager owns is preferred, and an edited one is not the same item.
func (i *items) take(desired map[string]any) (item any, found bool) {
	n := i.index(desired)
	if n < 0 {
		return nil, false
	}
	i.taken[n] = true
	return i.all[n], true
}

func (i *items) index(desired map[string]any) int {
	if text, isComplete := keyText(desired, i.keys); isComplete {
		for _, n := range i.byKeys[text] {
			if !i.taken[n] {
				return n
			}
		}
		return -1
	}
	known, index := only(desired, i.keys), -1
	for n, other := range i.all {
		if i.taken[n] || !applied.Covers(known, other) {
			continue
		}
		owned, possible := i.isOwned(other)
		if owned {
			return n
		}
		if index < 0 && possible {
			index = n
		}
	}
	return index
}

// rest returns the items that were not taken.
func (i *items) rest() (rest []any) {
	for n, item := range i.all {
		if !i.taken[n] {
			rest = append(rest, item)
		}
	}
	return rest
}

// keyText returns the values of the keys of an item as text, and whether the item has all of them. Numbers are compared
// by value.
func keyText(fields map[string]any, keys []string) (text string, isComplete bool) {
	if len(keys) == 0 {
		return "", false
	}
	var b strings.Builder
	for _, key := range keys {
		switch value := fields[key].(type) {
		case string:
			fmt.Fprintf(&b, "%q,", value)
		case bool:
			fmt.Fprintf(&b, "%t,", value)
		case int64:
			fmt.Fprintf(&b, "%d,", value)
		case float64:
			if value != math.Trunc(value) || math.Abs(value) >= 1<<53 {
				return "", false
			}
			fmt.Fprintf(&b, "%d,", int64(value))
		default:
			return "", false
		}
	}
	return b.String(), true
}
