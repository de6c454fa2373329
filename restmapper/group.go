package restmapper

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// group contains the resources of one API group. It is immutable.
type group struct {
	*order
	versions []groupVersion // the preferred version first
}

type groupVersion struct {
	version string
	*table
}

// order is the position of a group among all groups. It is immutable. Groups are sorted by descending priority, then by
// rank, then by name. For groups whose priority is known only to the API server, the rank is the position in the
// discovery document.
type order struct {
	name     string
	priority int
	rank     int
}

func (o *order) compare(other *order) int {
	return cmp.Or(
		-cmp.Compare(o.priority, other.priority), cmp.Compare(o.rank, other.rank), strings.Compare(o.name, other.name),
	)
}

// touched lists those names, kinds and categories of a group for which an event may have changed the results of
// lookups.
type touched struct {
	whole                    bool // everything in the group
	names, kinds, categories []string
}

// grow makes room for the given numbers of additional names, kinds and categories.
func (t *touched) grow(names, kinds, categories int) {
	t.names, t.kinds = slices.Grow(t.names, names), slices.Grow(t.kinds, kinds)
	t.categories = slices.Grow(t.categories, categories)
}

// touchedGroups contains the groups that an event affects.
type touchedGroups map[string]*touched

func (g touchedGroups) in(group string) *touched {
	if g[group] == nil {
		g[group] = &touched{}
	}
	return g[group]
}

func (g touchedGroups) whole(group string) { g.in(group).whole = true }

// nameUse describes the use of a name in a group.
type nameUse struct {
	any   bool // the name is used
	exact bool // as a plural or singular in discovery
	short bool // as a short name
}

func (g *group) use(name string) (u nameUse) {
	for i := range g.tables() {
		if e := g.versions[i].names.Get(name); e != nil {
			u.any, u.exact, u.short = true, u.exact || e.exact, u.short || e.shortFor != ""
		}
	}
	return u
}

func (g *group) hasCategory(category string) bool {
	for i := range g.tables() {
		if g.versions[i].categories.Get(category) != nil {
			return true
		}
	}
	return false
}

// tables returns an iterator over the indexes of versions. It skips versions that share a table with the preceding
// version. A nil group has no versions.
func (g *group) tables() iter.Seq[int] {
	return func(yield func(int) bool) {
		if g == nil {
			return
		}
		for i := range g.versions {
			if i > 0 && g.versions[i].table == g.versions[i-1].table {
				continue
			}
			if !yield(i) {
				return
			}
		}
	}
}

// all returns all names, kinds and categories of the group, possibly with duplicates.
func (g *group) all() *touched {
	t := &touched{}
	for i := range g.tables() {
		v := &g.versions[i]
		for name := range v.names.All() {
			t.names = append(t.names, name)
		}
		for kind := range v.kinds.All() {
			t.kinds = append(t.kinds, kind)
		}
		for category := range v.categories.All() {
			t.categories = append(t.categories, category)
		}
	}
	return t
}

// between returns the names, kinds and categories that may differ between two states of a group, without duplicates.
// Either state can be nil.
func (t *touched) between(old, now *group) *touched {
	if t.whole || old == nil || now == nil || *old.order != *now.order {
		a, b := old.all(), now.all()
		t = &touched{
			names: append(a.names, b.names...), kinds: append(a.kinds, b.kinds...),
			categories: append(a.categories, b.categories...),
		}
	}
	t.names, t.kinds, t.categories = compacted(t.names), compacted(t.kinds), compacted(t.categories)
	return t
}

// expandShort returns the resource that has the given short name, or an empty string.
func (g *group) expandShort(name string) string {
	for i := range g.versions {
		if e := g.versions[i].names.Get(name); e != nil && e.shortFor != "" {
			return e.shortFor
		}
	}
	return ""
}

func (g *group) version(version string) *groupVersion {
	for i := range g.versions {
		if g.versions[i].version == version {
			return &g.versions[i]
		}
	}
	return nil
}

// mapping returns a new mapping. The caller can modify it.
func (g *group) mapping(v *groupVersion, kind string, e *kindEntry) *meta.RESTMapping {
	return &meta.RESTMapping{
		Resource:         schema.GroupVersionResource{Group: g.order.name, Version: v.version, Resource: e.plural},
		GroupVersionKind: schema.GroupVersionKind{Group: g.order.name, Version: v.version, Kind: kind},
		Scope:            e.scope(),
	}
}
