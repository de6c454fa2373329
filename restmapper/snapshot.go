package restmapper

import (
	"slices"
	"strings"
)

// snapshot is all that lookups read. It is never changed: the next one shares what stays the same.
type snapshot struct {
	ordered []order
	groups  *shards[*group]
	// names and categories tell which groups know a plural, singular or short name, and have resources in a category, in
	// order. They do not hold the groups themselves, so that a change of one leaves the names alone that it keeps.
	names      *shards[[]order]
	categories *shards[[]order]
}

func emptySnapshot() *snapshot {
	return &snapshot{groups: &shards[*group]{}, names: &shards[[]order]{}, categories: &shards[[]order]{}}
}

// with returns the snapshot with these groups in place of those of the same names; a nil takes a group away.
func (s *snapshot) with(changed map[string]*group) *snapshot {
	groups := editShards(s.groups)
	names, categories := indexEdit{}, indexEdit{}
	var removed, added []order
	for name, now := range changed {
		old := groups.get(name)
		if now == nil {
			groups.remove(name)
		} else {
			groups.set(name, now)
		}
		if old != nil && now != nil && old.order == now.order {
			names.replace(old.order, old.names, now.order, now.names)
			categories.replace(old.order, old.categories, now.order, now.categories)
			continue
		}
		if old != nil {
			removed = append(removed, old.order)
			names.replace(old.order, old.names, old.order, nil)
			categories.replace(old.order, old.categories, old.order, nil)
		}
		if now != nil {
			added = append(added, now.order)
			names.replace(now.order, nil, now.order, now.names)
			categories.replace(now.order, nil, now.order, now.categories)
		}
	}
	return &snapshot{
		ordered: inOrder(s.ordered, removed, added), groups: groups.next,
		names: names.apply(s.names), categories: categories.apply(s.categories),
	}
}

// indexEdit is what changes in an index, by name.
type indexEdit map[string]*entryEdit

type entryEdit struct{ removed, added []order }

func (e indexEdit) entry(name string) *entryEdit {
	if e[name] == nil {
		e[name] = &entryEdit{}
	}
	return e[name]
}

// replace takes a group out under the names that it has no more, and in under those that it has now. Both are sorted.
func (e indexEdit) replace(old order, oldNames []string, now order, nowNames []string) {
	for len(oldNames) > 0 || len(nowNames) > 0 {
		switch {
		case len(nowNames) == 0 || len(oldNames) > 0 && oldNames[0] < nowNames[0]:
			entry := e.entry(oldNames[0])
			entry.removed, oldNames = append(entry.removed, old), oldNames[1:]
		case len(oldNames) == 0 || nowNames[0] < oldNames[0]:
			entry := e.entry(nowNames[0])
			entry.added, nowNames = append(entry.added, now), nowNames[1:]
		default:
			oldNames, nowNames = oldNames[1:], nowNames[1:]
		}
	}
}

func (e indexEdit) apply(index *shards[[]order]) *shards[[]order] {
	if len(e) == 0 {
		return index
	}
	edit := editShards(index)
	for name, entry := range e {
		if list := inOrder(edit.get(name), entry.removed, entry.added); len(list) > 0 {
			edit.set(name, list)
		} else {
			edit.remove(name)
		}
	}
	return edit.next
}

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
	return s.names.get(name)
}

// indexed lists what a group is found by: its names, and its categories. Both are sorted.
func (g *group) indexed() (names, categories []string) {
	for i, v := range g.versions {
		if slices.ContainsFunc(g.versions[:i], func(o groupVersion) bool { return o.table == v.table }) {
			continue
		}
		for _, e := range v.names {
			names = append(names, e.name)
		}
		for _, r := range v.resources {
			categories = append(categories, r.categories...)
		}
	}
	for _, s := range g.shorts {
		names = append(names, s.short)
	}
	return compacted(slices.DeleteFunc(names, everywhere)), compacted(categories)
}

func compacted(list []string) []string {
	slices.SortFunc(list, strings.Compare)
	return slices.Clone(slices.Compact(list))
}
