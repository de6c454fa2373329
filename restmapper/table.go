package restmapper

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// resource is what discovery says of one, as far as mapping needs it. It is never changed.
type resource struct {
	name, singular, kind string
	namespaced           bool
	shortNames           []string
	categories           []string
}

func (r *resource) equal(other *resource) bool {
	return r.name == other.name && r.singular == other.singular && r.kind == other.kind && r.namespaced == other.namespaced &&
		slices.Equal(r.shortNames, other.shortNames) && slices.Equal(r.categories, other.categories)
}

// table answers for the resources of one version of a group. It knows no version, so that versions with the same
// resources share it. Both lists are sorted: for a few entries that is smaller than a map, and as fast.
type table struct {
	resources []*resource
	kinds     []kindEntry
	names     []nameEntry
}

// kindEntry is a kind as discovery has it (real), in lower case, or one of the list kinds that client-go guesses.
type kindEntry struct {
	kind, plural string
	scope        meta.RESTScope
	real         bool
}

// nameEntry is a name by which a resource may be asked for: the plural or the singular.
type nameEntry struct {
	name string
	// exact: discovery itself has the name, so that it is no short name.
	exact bool
	// kind is what the name stands for, empty if it has no meaning by itself.
	kind string
	// plurals are the resources with this name. It is one, but for names that clash.
	plurals []string
	// singular belongs to the name if that is a plural.
	singular string
}

func (t *table) kind(kind string) *kindEntry {
	i, ok := slices.BinarySearchFunc(t.kinds, kind, func(e kindEntry, kind string) int { return strings.Compare(e.kind, kind) })
	if !ok {
		return nil
	}
	return &t.kinds[i]
}

func (t *table) name(name string) *nameEntry {
	i, ok := slices.BinarySearchFunc(t.names, name, func(e nameEntry, name string) int { return strings.Compare(e.name, name) })
	if !ok {
		return nil
	}
	return &t.names[i]
}

// tableMaker fills a table as client-go fills its mapper of one version: later resources replace what earlier ones have
// said of the same kind or name.
type tableMaker struct {
	kinds     map[string]kindEntry
	singulars map[string]string // by plural
	named     map[string]string // kinds by plural and singular
	exact     map[string]bool
}

func newTable(resources []*resource) *table {
	n := len(resources)
	m := tableMaker{
		kinds: make(map[string]kindEntry, 3*n+1), singulars: make(map[string]string, 2*n+1),
		named: make(map[string]string, 4*n+2), exact: make(map[string]bool, 2*n),
	}
	for _, r := range resources {
		m.add(r)
	}
	m.guess("List", meta.RESTScopeRoot)
	return m.finish(resources)
}

func (m *tableMaker) add(r *resource) {
	m.exact[r.name], m.exact[r.singular] = true, true
	if r.kind == "" {
		return
	}
	var scope meta.RESTScope = meta.RESTScopeRoot
	if r.namespaced {
		scope = meta.RESTScopeNamespace
	}
	singular := r.singular
	if singular == "" {
		_, guess := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: r.kind})
		singular = guess.Resource
	}
	m.put(strings.ToLower(r.kind), r.name, singular, scope)
	m.put(r.kind, r.name, singular, scope)
	m.guess(r.kind+"List", scope)
}

func (m *tableMaker) guess(kind string, scope meta.RESTScope) {
	plural, singular := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: kind})
	m.put(kind, plural.Resource, singular.Resource, scope)
}

func (m *tableMaker) put(kind, plural, singular string, scope meta.RESTScope) {
	m.kinds[kind] = kindEntry{kind: kind, plural: plural, scope: scope}
	m.singulars[plural] = singular
	m.named[singular], m.named[plural] = kind, kind
}

func (m *tableMaker) finish(resources []*resource) *table {
	t := &table{resources: resources, kinds: make([]kindEntry, 0, len(m.kinds)), names: make([]nameEntry, 0, len(m.named))}
	for _, r := range resources {
		if e, ok := m.kinds[r.kind]; ok {
			e.real = true
			m.kinds[r.kind] = e
		}
	}
	for _, e := range m.kinds {
		t.kinds = append(t.kinds, e)
	}
	slices.SortFunc(t.kinds, func(a, b kindEntry) int { return strings.Compare(a.kind, b.kind) })

	plurals := make(map[string][]string, len(m.named))
	for plural, singular := range m.singulars {
		plurals[plural] = append(plurals[plural], plural)
		if singular != plural {
			plurals[singular] = append(plurals[singular], plural)
		}
	}
	for name, kind := range m.named {
		slices.Sort(plurals[name])
		t.names = append(t.names, nameEntry{
			name: name, kind: kind, exact: m.exact[name], plurals: plurals[name], singular: m.singulars[name],
		})
	}
	for name := range m.exact {
		if _, ok := m.named[name]; !ok && name != "" {
			t.names = append(t.names, nameEntry{name: name, exact: true})
		}
	}
	slices.SortFunc(t.names, func(a, b nameEntry) int { return strings.Compare(a.name, b.name) })
	return t
}

// group answers for one group. It is never changed.
type group struct {
	order
	versions []groupVersion // the preferred one first
	shorts   []short        // sorted by short name, one entry each
	// names and categories are what the group is found by.
	names, categories []string
}

type groupVersion struct {
	version string
	*table
}

// short is the resource that a short name stands for: in client-go the first to claim it.
type short struct{ short, long string }

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

// versionResources are a version's resources in discovery's order.
type versionResources struct {
	version   string
	resources []*resource
}

// newGroup makes a group of its versions, which are in order.
func newGroup(o order, versions []versionResources) *group {
	g := &group{order: o, versions: make([]groupVersion, 0, len(versions))}
	longs := map[string]string{}
	for i, v := range versions {
		var t *table
		for j := range i {
			if slices.Equal(versions[j].resources, v.resources) {
				t = g.versions[j].table
				break
			}
		}
		if t == nil {
			t = newTable(v.resources)
		}
		g.versions = append(g.versions, groupVersion{version: v.version, table: t})
		for _, r := range v.resources {
			for _, s := range r.shortNames {
				if _, taken := longs[s]; !taken {
					longs[s] = r.name
					g.shorts = append(g.shorts, short{short: s, long: r.name})
				}
			}
		}
	}
	slices.SortFunc(g.shorts, func(a, b short) int { return strings.Compare(a.short, b.short) })
	g.names, g.categories = g.indexed()
	return g
}

// long is the resource that a short name stands for in the group.
func (g *group) long(name string) (string, bool) {
	i, ok := slices.BinarySearchFunc(g.shorts, name, func(s short, name string) int { return strings.Compare(s.short, name) })
	if !ok {
		return "", false
	}
	return g.shorts[i].long, true
}

// hasExact tells whether discovery itself has the name in any version.
func (g *group) hasExact(name string) bool {
	for i := range g.versions {
		if e := g.versions[i].name(name); e != nil && e.exact {
			return true
		}
	}
	return false
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
func (g *group) mapping(v *groupVersion, e *kindEntry) *meta.RESTMapping {
	return &meta.RESTMapping{
		Resource:         schema.GroupVersionResource{Group: g.order.name, Version: v.version, Resource: e.plural},
		GroupVersionKind: schema.GroupVersionKind{Group: g.order.name, Version: v.version, Kind: e.kind},
		Scope:            e.scope,
	}
}

// mappings are those of a kind, the preferred version first.
func (g *group) mappings(kind string) []*meta.RESTMapping {
	if g == nil {
		return nil
	}
	var mappings []*meta.RESTMapping
	for i := range g.versions {
		if e := g.versions[i].kind(kind); e != nil {
			mappings = append(mappings, g.mapping(&g.versions[i], e))
		}
	}
	return mappings
}

// realKinds lists the kinds that discovery has, sorted, each once.
func (g *group) realKinds() []string {
	if g == nil {
		return nil
	}
	var kinds []string
	for _, v := range g.versions {
		for i := range v.kinds {
			if v.kinds[i].real {
				kinds = append(kinds, v.kinds[i].kind)
			}
		}
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}
