package restmapper

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// group answers for one group. It is never changed.
type group struct {
	order
	versions []groupVersion // the preferred one first
}

type groupVersion struct {
	version string
	*table
}

// order is where a group stands among the others: those with the higher priority first, then by name. Where the API
// server alone knows the priorities its document's order counts.
type order struct {
	name     string
	priority int
	rank     int
}

func (o order) compare(other order) int {
	return cmp.Or(-cmp.Compare(o.priority, other.priority), cmp.Compare(o.rank, other.rank), strings.Compare(o.name, other.name))
}

// touched is what an event may have changed in a group: all names, kinds and categories that may be found otherwise than
// before, or the whole of it.
type touched struct {
	whole                    bool
	names, kinds, categories []string
}

// touchedGroups are those that an event concerns.
type touchedGroups map[string]*touched

func (g touchedGroups) in(group string) *touched {
	if g[group] == nil {
		g[group] = &touched{}
	}
	return g[group]
}

func (g touchedGroups) whole(group string) { g.in(group).whole = true }

// knowledge is what a group knows of a name.
type knowledge struct{ any, exact, short bool }

func (g *group) knows(name string) (k knowledge) {
	for i := range g.tables() {
		if e := g.versions[i].names.get(name); e != nil {
			k.any, k.exact, k.short = true, k.exact || e.exact, k.short || e.long != ""
		}
	}
	return k
}

func (g *group) hasCategory(category string) bool {
	for i := range g.tables() {
		if g.versions[i].categories.get(category) != nil {
			return true
		}
	}
	return false
}

// tables yields the versions without those that share another's table.
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

// all lists everything that the group may be found by, with repetitions.
func (g *group) all() *touched {
	t := &touched{}
	for i := range g.tables() {
		v := &g.versions[i]
		t.names, t.kinds, t.categories = v.names.keys(t.names), v.kinds.keys(t.kinds), v.categories.keys(t.categories)
	}
	return t
}

// between are the names, kinds and categories that may differ between two groups, each once. Either may be nil.
func (t *touched) between(old, now *group) *touched {
	var out touched
	if t.whole || old == nil || now == nil || old.order != now.order {
		a, b := old.all(), now.all()
		out = touched{names: append(a.names, b.names...), kinds: append(a.kinds, b.kinds...), categories: append(a.categories, b.categories...)}
	} else {
		out = touched{names: slices.Clone(t.names), kinds: slices.Clone(t.kinds), categories: slices.Clone(t.categories)}
	}
	out.names, out.kinds, out.categories = compacted(out.names), compacted(out.kinds), compacted(out.categories)
	return &out
}

// long is the resource that a short name stands for in the group.
func (g *group) long(name string) string {
	for i := range g.versions {
		if e := g.versions[i].names.get(name); e != nil && e.long != "" {
			return e.long
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

// mapping makes what a caller gets, who may change it.
func (g *group) mapping(v *groupVersion, kind string, e *kindEntry) *meta.RESTMapping {
	return &meta.RESTMapping{
		Resource:         schema.GroupVersionResource{Group: g.order.name, Version: v.version, Resource: e.plural},
		GroupVersionKind: schema.GroupVersionKind{Group: g.order.name, Version: v.version, Kind: kind},
		Scope:            e.scope(),
	}
}
