package children

import (
	"errors"
	"slices"
	"sort"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Limits for inventories. Anyone who can update a parent can write its annotations, so entries beyond the limits are
// ignored.
const (
	// maxInventoryBytes leaves room for other annotations. All annotations of an object can have 256 KiB in total.
	maxInventoryBytes   = 192 << 10
	maxInventoryEntries = 1000
	// maxPlainBytes is the size above which the namespaces of an inventory are packed.
	maxPlainBytes = 4 << 10
)

// ErrInventoryFull is returned for a child whose kind or namespace does not fit into the parent's inventory, which can
// have 192 KiB and 1,000 kinds. All annotations of the parent can have 256 KiB in total. The child is not created, and
// is not pruned. All other children are applied and pruned.
var ErrInventoryFull = errors.New("the annotation of the parent that lists the kinds and namespaces of its children " +
	"is full; divide the children among several parents")

// inventoryRoom returns the number of bytes that the inventory of a parent can have.
func (c *call) inventoryRoom(parent metav1.Object) int {
	room := validation.TotalAnnotationSizeLimitB - len(c.names.Inventory()) - len(c.names.Witness()) - len(parent.GetUID())
	for key, value := range parent.GetAnnotations() {
		if key != c.names.Inventory() && key != c.names.Witness() {
			room -= len(key) + len(value)
		}
	}
	return min(room, maxInventoryBytes)
}

// fits returns the value of the annotation, and reports whether it is within the limits.
func (i inventory) fits(room int) (text string, fits bool) {
	kinds := make(inventory, len(i))
	size := 0
	for n, entry := range i {
		kinds[n] = entry.withoutNamespaces()
		for _, namespace := range entry.namespaces {
			size += len("@") + len(namespace)
		}
	}
	text, fits = kinds.plain(), true
	switch {
	case size == 0:
	case len(text)+size <= min(room, maxPlainBytes):
		text = i.plain()
	default:
		var packed string
		packed, fits = i.pack()
		text += ";" + packed
	}
	return text, fits && len(i) <= maxInventoryEntries && len(text) <= room
}

func (i inventory) plain() string {
	entries := make([]string, len(i))
	for n, entry := range i {
		entries[n] = entry.String()
	}
	return strings.Join(entries, ",")
}

// annotation returns the value of the annotation for the inventory, followed by as many of the other entries as fit, or
// nil if it is empty. Because the inventory's own entries come first, other entries cannot displace them when the
// annotation is read.
func (i inventory) annotation(others inventory, room int) any {
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

// grow returns the wanted inventory if it fits. Otherwise, it returns the part of the wanted inventory that i already
// contains, with as many more kinds and then namespaces as fit, in sorted order.
func (i inventory) grow(wanted inventory, room int) inventory {
	if i.equals(wanted) {
		return i
	}
	// Even without some of its namespaces, a packed inventory can be longer.
	spare := room / 16
	if _, fits := wanted.fits(room - spare); fits {
		return wanted
	}
	kinds, namespaces := wanted.additionsTo(i)
	part := func(n int) inventory {
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
func (i inventory) additionsTo(other inventory) (kinds, namespaces []string) {
	added := sets.New[string]()
	for _, entry := range i {
		if other.index(entry.kind) < 0 {
			kinds = append(kinds, entry.kind.String())
		}
		before := other.entryOf(entry.kind)
		for _, namespace := range entry.namespaces {
			if !before.lists(namespace) {
				added.Insert(namespace)
			}
		}
	}
	slices.Sort(kinds)
	return kinds, sets.List(added)
}

// partOf returns the part of i that another inventory contains, with the given kinds, and the namespaces up to last.
func (i inventory) partOf(other inventory, kinds []string, last string) (part inventory) {
	for _, entry := range i {
		if _, added := slices.BinarySearch(kinds, entry.kind.String()); !added && other.index(entry.kind) < 0 {
			continue
		}
		before := other.entryOf(entry.kind)
		entry.namespaces = slices.DeleteFunc(slices.Clone(entry.namespaces), func(namespace string) bool {
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

// checkRecorded returns an error if the parent's inventory has no room for the kind or the namespace of a child. Such a
// child must not be created or adopted, because it could not be found later.
func (c *call) checkRecorded(child *child) error {
	n := c.recorded.index(child.kind)
	if child.Retain || n >= 0 && c.recorded[n].covers(c.parent, child.id.Namespace()) {
		return nil
	}
	return ErrInventoryFull
}
