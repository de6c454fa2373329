package restmapper

import (
	"slices"
	"strings"

	"github.com/dynamic-controller/engine/restmapper/internal/persistent"
)

// snapshot is everything that lookups read. It is immutable. A changed snapshot shares unchanged parts with the
// previous one.
type snapshot struct {
	ordered []*order // all groups
	sorted  []string // the names of all groups, in alphabetical order
	groups  persistent.Map[*group]
	// unread contains the groups with versions whose newest resources are unknown, with the errors by version. Such a
	// group is not in groups if none of its versions has ever been read.
	unread persistent.Map[map[string]error]
	// names and categories are indexes. Their entries contain the order of a group, not the group itself. A change to a
	// group therefore does not affect the entries for names that the group keeps.
	names      persistent.Map[*nameIndex]
	categories persistent.Map[[]*order]
}

// nameIndex lists the groups in which a name is used. It is immutable.
type nameIndex struct {
	groups []*order
	// exact is the number of groups with a resource whose plural or singular is the name.
	exact int
	// short is the number of groups with a resource that has the name as a short name.
	short int
}

func emptySnapshot() *snapshot { return &snapshot{} }

// groupChange contains the new state of a group, which is nil if the group has been removed or was never read, and the
// parts that may have changed.
type groupChange struct {
	now     *group
	unread  map[string]error // see snapshot
	touches *touched
}

// with returns the snapshot with the given groups added, replaced or removed.
func (s *snapshot) with(changed map[string]groupChange) *snapshot {
	e := snapshotEdit{
		groups: persistent.NewEdit[*group](len(changed)), names: map[string]nameEdit{}, categories: map[string]listEdit{},
	}
	unread := persistent.NewEdit[map[string]error](0)
	for name, c := range changed {
		e.replace(name, s.groups.Get(name), c)
		switch {
		case c.unread != nil:
			unread.Set(name, c.unread)
		case s.unread.Get(name) != nil:
			unread.Delete(name)
		}
	}
	next := &snapshot{
		ordered: e.ordered.apply(s.ordered), groups: s.groups.With(e.groups), unread: s.unread.With(unread),
	}
	next.sorted = replaced(s.sorted, e.removed, e.added, strings.Compare)

	names := persistent.NewEdit[*nameIndex](len(e.names))
	for name, edit := range e.names {
		edit.apply(names, name, s.names.Get(name))
	}
	next.names = s.names.With(names)

	categories := persistent.NewEdit[[]*order](len(e.categories))
	for category, edit := range e.categories {
		if edit.isEmpty() {
			continue
		}
		if list := edit.apply(s.categories.Get(category)); len(list) > 0 {
			categories.Set(category, list)
		} else {
			categories.Delete(category)
		}
	}
	next.categories = s.categories.With(categories)
	return next
}

// snapshotEdit collects the differences between two snapshots.
type snapshotEdit struct {
	groups         *persistent.Edit[*group]
	ordered        listEdit
	removed, added []string // names of groups
	names          map[string]nameEdit
	categories     map[string]listEdit
}

func (e *snapshotEdit) replace(name string, old *group, c groupChange) {
	touches := c.touches.between(old, c.now)
	for _, n := range touches.names {
		edit := e.names[n]
		edit.replace(n, old, c.now)
		e.names[n] = edit
	}
	for _, n := range touches.categories {
		edit := e.categories[n]
		edit.replace(old, old.hasCategory(n), c.now, c.now.hasCategory(n))
		e.categories[n] = edit
	}
	e.ordered.replace(old, old != nil, c.now, c.now != nil)
	switch {
	case c.now != nil:
		e.groups.Set(name, c.now)
		if old == nil {
			e.added = append(e.added, name)
		}
	case old != nil:
		e.groups.Delete(name)
		e.removed = append(e.removed, name)
	}
}

// listEdit is the difference between two lists of groups.
type listEdit struct{ removed, added []*order }

func (e *listEdit) isEmpty() bool { return len(e.removed)+len(e.added) == 0 }

// replace replaces old with now. wasListed reports whether old is in the list, and isListed reports whether now must be
// in it.
func (e *listEdit) replace(old *group, wasListed bool, now *group, isListed bool) {
	if wasListed && isListed && *old.order == *now.order {
		return
	}
	if wasListed {
		e.removed = append(e.removed, old.order)
	}
	if isListed {
		e.added = append(e.added, now.order)
	}
}

// apply returns the list with the edit applied.
func (e *listEdit) apply(list []*order) []*order {
	return replaced(list, e.removed, e.added, (*order).compare)
}

// nameEdit is the difference between two states of a name's index.
type nameEdit struct {
	listEdit
	exact, short int // changes to the counts in nameIndex
}

func (e *nameEdit) replace(name string, old, now *group) {
	was, is := old.use(name), now.use(name)
	if !isInEveryGroup(name) {
		e.listEdit.replace(old, was.any, now, is.any)
	}
	e.exact += count(is.exact) - count(was.exact)
	e.short += count(is.short) - count(was.short)
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// apply adds the new index of a name to an edit of all indexes.
func (e *nameEdit) apply(names *persistent.Edit[*nameIndex], name string, old *nameIndex) {
	if e.isEmpty() && e.exact == 0 && e.short == 0 {
		return
	}
	if old == nil {
		old = &nameIndex{}
	}
	next := &nameIndex{groups: e.listEdit.apply(old.groups), exact: old.exact + e.exact, short: old.short + e.short}
	if len(next.groups) == 0 && next.exact == 0 && next.short == 0 {
		names.Delete(name)
		return
	}
	names.Set(name, next)
}

// replaced returns a copy of a sorted list without the removed elements and with the added ones.
func replaced[T any](list, removed, added []T, compare func(a, b T) int) []T {
	if len(removed)+len(added) == 0 {
		return list
	}
	next := append(make([]T, 0, len(list)+len(added)), list...)
	for _, v := range removed {
		if i, ok := slices.BinarySearchFunc(next, v, compare); ok {
			next = slices.Delete(next, i, i+1)
		}
	}
	for _, v := range added {
		i, _ := slices.BinarySearchFunc(next, v, compare)
		next = slices.Insert(next, i, v)
	}
	return next
}

// isInEveryGroup reports whether name belongs to the kind List, which client-go adds to each group version. Such names
// are not indexed.
func isInEveryGroup(name string) bool { return name == "list" || name == "lists" }

// groupsWith returns the groups that may have a resource of the given name, in order.
func (s *snapshot) groupsWith(name string) []*order {
	if isInEveryGroup(name) {
		return s.ordered
	}
	if index := s.names.Get(name); index != nil {
		return index.groups
	}
	return nil
}

// isPrefix reports whether the name of another group begins with the given name.
func (s *snapshot) isPrefix(group string) bool {
	i, ok := slices.BinarySearch(s.sorted, group)
	if ok {
		i++
	}
	return i < len(s.sorted) && strings.HasPrefix(s.sorted[i], group)
}
