package restmapper

import (
	"slices"
	"strings"
)

// snapshot is all that lookups read. It is never changed: the next one shares what stays the same.
type snapshot struct {
	ordered []order
	groups  *shards[*group]
	sorted  sorted[struct{}] // the groups by name
	// names and categories tell which groups know a name, and have resources in a category. They do not hold the groups
	// themselves, so that a change of one leaves the names alone that it keeps.
	names      *shards[*known]
	categories *shards[[]order]
}

// known is which groups know a name. It is never changed.
type known struct {
	groups []order // in order
	// exact and short are how many of them have the name as a plural or singular in discovery, and as a short name.
	exact, short int
}

func emptySnapshot() *snapshot {
	return &snapshot{groups: &shards[*group]{}, names: &shards[*known]{}, categories: &shards[[]order]{}}
}

// groupChange is what became of a group, nil if there is none any more, and what that touches.
type groupChange struct {
	now     *group
	touches *touched
}

// with returns the snapshot with these groups in place of those of the same names.
func (s *snapshot) with(changed map[string]groupChange) *snapshot {
	groups, byName := editShards(s.groups), s.sorted.edit()
	names, categories := map[string]*nameEdit{}, map[string]*listEdit{}
	var all listEdit
	for name, c := range changed {
		old, now := groups.get(name), c.now
		touches := c.touches.between(old, now)
		for _, n := range touches.names {
			entryOf(names, n).replace(n, old, now)
		}
		for _, n := range touches.categories {
			entryOf(categories, n).replace(old, old.hasCategory(n), now, now.hasCategory(n))
		}
		all.replace(old, old != nil, now, now != nil)
		if now == nil {
			groups.remove(name)
			byName.remove(name)
			continue
		}
		groups.set(name, now)
		if old == nil {
			byName.set(name, struct{}{})
		}
	}
	nextNames, nextCategories := editShards(s.names), editShards(s.categories)
	for name, e := range names {
		e.apply(nextNames, name)
	}
	for category, e := range categories {
		if !e.isEmpty() {
			if list := e.apply(nextCategories.get(category)); len(list) > 0 {
				nextCategories.set(category, list)
			} else {
				nextCategories.remove(category)
			}
		}
	}
	return &snapshot{
		ordered: all.apply(s.ordered), groups: groups.next, sorted: byName.done(),
		names: nextNames.next, categories: nextCategories.next,
	}
}

func entryOf[T any](edits map[string]*T, name string) *T {
	if edits[name] == nil {
		edits[name] = new(T)
	}
	return edits[name]
}

// listEdit is what changes in a list of groups.
type listEdit struct{ removed, added []order }

func (e *listEdit) isEmpty() bool { return len(e.removed)+len(e.added) == 0 }

// replace takes a group out if it was in the list, and in if it is.
func (e *listEdit) replace(old *group, was bool, now *group, is bool) {
	if was && is && old.order == now.order {
		return
	}
	if was {
		e.removed = append(e.removed, old.order)
	}
	if is {
		e.added = append(e.added, now.order)
	}
}

// nameEdit is what changes in what is known of a name.
type nameEdit struct {
	listEdit
	exact, short int // more or less than before
}

func (e *nameEdit) replace(name string, old, now *group) {
	was, is := old.knows(name), now.knows(name)
	if !everywhere(name) {
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

func (e *nameEdit) apply(names *shardsEdit[*known], name string) {
	if e.isEmpty() && e.exact == 0 && e.short == 0 {
		return
	}
	var next known
	if old := names.get(name); old != nil {
		next = *old
	}
	next = known{groups: e.listEdit.apply(next.groups), exact: next.exact + e.exact, short: next.short + e.short}
	if len(next.groups) == 0 && next.exact == 0 && next.short == 0 {
		names.remove(name)
		return
	}
	names.set(name, &next)
}

// apply returns the list as edited, in order.
func (e *listEdit) apply(list []order) []order { return inOrder(list, e.removed, e.added) }

// inOrder is the list without those removed and with those added.
func inOrder(list, removed, added []order) []order {
	if len(removed)+len(added) == 0 {
		return list
	}
	const few = 8
	if len(removed)+len(added) > few {
		gone := make(map[order]bool, len(removed))
		for _, o := range removed {
			gone[o] = true
		}
		next := slices.DeleteFunc(slices.Clone(list), func(o order) bool { return gone[o] })
		next = append(next, added...)
		slices.SortFunc(next, order.compare)
		return slices.Clip(next)
	}
	next := append(make([]order, 0, len(list)+len(added)), list...)
	for _, o := range removed {
		if i, ok := slices.BinarySearchFunc(next, o, order.compare); ok {
			next = slices.Delete(next, i, i+1)
		}
	}
	for _, o := range added {
		i, _ := slices.BinarySearchFunc(next, o, order.compare)
		next = slices.Insert(next, i, o)
	}
	return next
}

// everywhere tells a name that each group knows, because client-go adds the kind List to each: no index is needed.
func everywhere(name string) bool { return name == "list" || name == "lists" }

// named are the groups that may know the name, in order.
func (s *snapshot) named(name string) []order {
	if everywhere(name) {
		return s.ordered
	}
	if k := s.names.get(name); k != nil {
		return k.groups
	}
	return nil
}

// isPrefix tells whether other groups begin with the name of this one.
func (s *snapshot) isPrefix(group string) bool {
	return strings.HasPrefix(s.sorted.after(group), group)
}
