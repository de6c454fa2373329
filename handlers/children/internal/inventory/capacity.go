package inventory

import (
	"slices"
	"sort"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
)

// Limits for inventories. Anyone who can update a parent can write its annotations, so entries beyond the limits are
// ignored.
const (
	// maxInventoryBytes leaves room for other annotations. All annotations of an object can have 256 KiB in total.
	MaxBytes   = 192 << 10
	maxEntries = 1000
	// maxPlainBytes is the size above which the namespaces of an inventory are packed.
	maxPlainBytes = 4 << 10
)

// fits returns the value of the annotation, and reports whether it is within the limits.
func (i Inventory) fits(room int) (text string, fits bool) {
	kinds := make(Inventory, len(i))
	size := 0
	for n, entry := range i {
		kinds[n] = entry.withoutNamespaces()
		for _, namespace := range entry.Namespaces {
			size += len("@") + len(namespace)
		}
	}
	text, fits = kinds.String(), true
	switch {
	case size == 0:
	case len(text)+size <= min(room, maxPlainBytes):
		text = i.String()
	default:
		var packed string
		packed, fits = i.pack()
		text += ";" + packed
	}
	return text, fits && len(i) <= maxEntries && len(text) <= room
}

func (i Inventory) String() string {
	entries := make([]string, len(i))
	for n, entry := range i {
		entries[n] = entry.String()
	}
	return strings.Join(entries, ",")
}

// Annotation returns the value of the annotation for the inventory, followed by as many of the other entries as fit, or
// nil if it is empty. Because the inventory's own entries come first, other entries cannot displace them when the
// annotation is read.
func (i Inventory) Annotation(others Inventory, room int) any {
	with := func(n int) (string, bool) { return slices.Concat(i, others[:n]).fits(room) }
	text, fits := with(len(others))
	if !fits {
		text, _ = with(largest(len(others), func(n int) bool { _, fits := with(n); return fits }))
	}
	if text == "" {
		return nil
	}
	return text
}

// Grow returns the wanted inventory if it fits. Otherwise, it returns the part of the wanted inventory that i already
// contains, with as many more kinds and then namespaces as fit, in sorted order.
func (i Inventory) Grow(wanted Inventory, room int) Inventory {
	if i.Equals(wanted) {
		return i
	}
	// Even without some of its namespaces, a packed inventory can be longer.
	spare := room / 16
	if _, fits := wanted.fits(room - spare); fits {
		return wanted
	}
	kinds, namespaces := wanted.additionsTo(i)
	part := func(n int) Inventory {
		last := ""
		if n > len(kinds) {
			last = namespaces[n-len(kinds)-1]
		}
		return wanted.partOf(i, kinds[:min(n, len(kinds))], last)
	}
	if n := largest(len(kinds)+len(namespaces), func(n int) bool {
		_, fits := part(n).fits(room - spare)
		return fits
	}); n > 0 {
		return part(n)
	}
	if _, fits := part(0).fits(room); fits {
		return part(0)
	}
	return i
}

// additionsTo returns the kinds in i that another inventory does not contain, and the namespaces in i that it does not
// contain for each of their kinds. Both are sorted.
func (i Inventory) additionsTo(other Inventory) (kinds, namespaces []string) {
	added := sets.New[string]()
	for _, entry := range i {
		if other.Index(entry.Kind) < 0 {
			kinds = append(kinds, entry.Kind.String())
		}
		before := other.EntryOf(entry.Kind)
		for _, namespace := range entry.Namespaces {
			if !before.lists(namespace) {
				added.Insert(namespace)
			}
		}
	}
	slices.Sort(kinds)
	return kinds, sets.List(added)
}

// partOf returns the part of i that another inventory contains, with the given kinds, and the namespaces up to last.
func (i Inventory) partOf(other Inventory, kinds []string, last string) (part Inventory) {
	for _, entry := range i {
		if _, added := slices.BinarySearch(kinds, entry.Kind.String()); !added && other.Index(entry.Kind) < 0 {
			continue
		}
		before := other.EntryOf(entry.Kind)
		entry.Namespaces = slices.DeleteFunc(slices.Clone(entry.Namespaces), func(namespace string) bool {
			return namespace > last && !before.lists(namespace)
		})
		part = append(part, entry)
	}
	return part
}

// largest returns the largest number up to most that fits, or 0. If a number fits, all smaller ones must fit. Small
// numbers are tried first, because an inventory that is full usually stays full.
func largest(most int, fits func(int) bool) int {
	low, high := 0, 1
	for high <= most && fits(high) {
		low, high = high, 2*high
	}
	high = min(high, most+1)
	return low + sort.Search(high-low-1, func(n int) bool { return !fits(low + 1 + n) })
}
