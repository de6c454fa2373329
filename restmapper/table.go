package restmapper

import (
	"slices"
	"sort"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/restmapper/internal/persistent"
)

// resource contains the fields of a discovered resource that mapping needs. It is immutable.
type resource struct {
	name, singular, kind string
	namespaced           bool
	shortNames           []string
	categories           []string
	verbs                []string
}

func (r *resource) equal(other *resource) bool {
	return r.name == other.name && r.singular == other.singular && r.kind == other.kind &&
		r.namespaced == other.namespaced && slices.Equal(r.shortNames, other.shortNames) &&
		slices.Equal(r.categories, other.categories) && slices.Equal(r.verbs, other.verbs)
}

// table contains the resources of one group version. It is immutable. It does not contain the version, so that versions
// with the same resources can share a table.
//
// Its content equals that of client-go's mapper for one version after all resources have been added in order: a later
// resource replaces the entries of an earlier one with the same kind or name.
type table struct {
	kinds      persistent.Map[*kindEntry]
	names      persistent.Map[*nameEntry]
	categories persistent.Map[[]*resource]
	count      int // number of resources
}

// kindEntry is the entry for a kind, for a kind in lower case, or for a list kind that client-go guesses.
type kindEntry struct {
	plural     string
	namespaced bool
	real       bool        // discovery contains the kind
	resources  []*resource // the resources that define the entry, in order
}

func (e *kindEntry) scope() meta.RESTScope {
	if e.namespaced {
		return meta.RESTScopeNamespace
	}
	return meta.RESTScopeRoot
}

// verbs returns the verbs of the resource that defines the entry's plural.
func (e *kindEntry) verbs() []string {
	if r := resourceNamed(e.resources, e.plural); r != nil {
		return r.verbs
	}
	return nil
}

// resourceNamed returns the last resource in discovery with the given plural, or nil if there is none.
func resourceNamed(resources []*resource, plural string) *resource {
	for _, r := range slices.Backward(resources) {
		if r.name == plural && r != listResource {
			return r
		}
	}
	return nil
}

// nameEntry is the entry for a plural, a singular or a short name.
type nameEntry struct {
	// kind is empty if the name is only a short name.
	kind string
	// plurals contains the plural of each resource that has the name as its plural or singular. There is more than one
	// only if names clash.
	plurals []string
	// singular is set if the name is a plural.
	singular string
	// exact is true if the name is a plural or singular in discovery. Such a name is not expanded as a short name.
	exact bool
	// shortFor is the resource that has the name as a short name. If several resources have this short name, the first one
	// is used, as in client-go.
	shortFor  string
	resources []*resource // the resources that define the entry, in order
}

// definition is a kind and its names as defined by one resource.
type definition struct {
	kind, plural, singular string
	namespaced             bool
}

// listResource defines the kind List, which client-go adds to each version after all other kinds.
var listResource = &resource{name: "lists", singular: "list", kind: "List"}

// definitions returns the definitions of a resource in the order in which client-go adds them.
func (r *resource) definitions() []definition {
	switch {
	case r == listResource:
		return []definition{{kind: r.kind, plural: r.name, singular: r.singular}}
	case r.kind == "":
		return nil
	}
	singular := r.singular
	if singular == "" {
		_, guess := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: r.kind})
		singular = guess.Resource
	}
	listPlural, listSingular := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: r.kind + "List"})
	return []definition{
		{strings.ToLower(r.kind), r.name, singular, r.namespaced},
		{r.kind, r.name, singular, r.namespaced},
		{r.kind + "List", listPlural.Resource, listSingular.Resource, r.namespaced},
	}
}

var emptyTable = newTable(nil)

// newTable returns a table of resources, which must be in the order of discovery.
func newTable(resources []*resource) *table {
	e := editTable(&table{})
	for _, r := range resources {
		e.add(r, false)
	}
	e.add(listResource, false)
	e.table.count--
	return e.done(&touched{})
}

// with returns a copy of the table in which one resource has been removed and another added. Either can be nil. The
// table's resources must be sorted by name. All affected names, kinds and categories are added to touches.
func (t *table) with(removed, added *resource, touches *touched) *table {
	e := editTable(t)
	if removed != nil {
		e.remove(removed)
	}
	if added != nil {
		e.add(added, true)
	}
	return e.done(touches)
}

// tableEdit creates a changed copy of a table. It first collects the resources of each affected entry. Then it creates
// the new entries.
type tableEdit struct {
	table
	definitions map[*resource][]definition
	// Most entries belong to a single resource. Such entries share these lists of one element.
	onePlural   map[string][]string
	oneResource map[*resource][]*resource
	// The new resources of affected entries.
	byKind, byName, byCategory map[string][]*resource
}

func editTable(t *table) *tableEdit {
	return &tableEdit{
		table: *t, definitions: map[*resource][]definition{},
		onePlural: map[string][]string{}, oneResource: map[*resource][]*resource{},
		byKind: map[string][]*resource{}, byName: map[string][]*resource{}, byCategory: map[string][]*resource{},
	}
}

func (e *tableEdit) definitionsOf(r *resource) []definition {
	definitions, ok := e.definitions[r]
	if !ok {
		definitions = r.definitions()
		e.definitions[r] = definitions
	}
	return definitions
}

// resourcesOfKind, resourcesOfName and resourcesOfCategory return lists that the caller can modify.
func (e *tableEdit) resourcesOfKind(kind string) []*resource {
	resources, ok := e.byKind[kind]
	if !ok {
		if entry := e.kinds.Get(kind); entry != nil {
			resources = withRoom(entry.resources)
		}
	}
	return resources
}

func (e *tableEdit) resourcesOfName(name string) []*resource {
	resources, ok := e.byName[name]
	if !ok {
		if entry := e.names.Get(name); entry != nil {
			resources = withRoom(entry.resources)
		}
	}
	return resources
}

func (e *tableEdit) resourcesOfCategory(category string) []*resource {
	resources, ok := e.byCategory[category]
	if !ok {
		resources = withRoom(e.categories.Get(category))
	}
	return resources
}

// withRoom returns a copy of a list with capacity for one more element.
func withRoom(list []*resource) []*resource {
	if len(list) == 0 {
		return nil
	}
	return append(make([]*resource, 0, len(list)+1), list...)
}

// keysOf returns the keys of all entries that a resource contributes to. Categories can be repeated.
func (e *tableEdit) keysOf(r *resource) (kinds, names, categories []string) {
	definitions := e.definitionsOf(r)
	kinds = make([]string, 0, len(definitions))
	names = make([]string, 0, 2*len(definitions)+2+len(r.shortNames))
	for _, d := range definitions {
		kinds, names = append(kinds, d.kind), append(names, d.plural, d.singular)
	}
	if r != listResource {
		names = append(names, r.name)
		if r.singular != "" {
			names = append(names, r.singular)
		}
	}
	return compacted(kinds), compacted(append(names, r.shortNames...)), r.categories
}

func (e *tableEdit) remove(r *resource) {
	without := func(list []*resource) []*resource {
		return slices.DeleteFunc(list, func(o *resource) bool { return o == r })
	}
	e.change(r, without)
	e.count--
}

// add adds a resource after all others or, if ordered is true, at the position given by its name.
func (e *tableEdit) add(r *resource, ordered bool) {
	with := func(list []*resource) []*resource {
		at := len(list)
		if at > 0 && list[at-1] == listResource {
			at--
		}
		if ordered {
			at = sort.Search(at, func(i int) bool { return list[i].name > r.name })
		}
		return slices.Insert(list, at, r)
	}
	e.change(r, with)
	e.count++
}

// change applies a function to the resources of all entries that r contributes to.
func (e *tableEdit) change(r *resource, apply func([]*resource) []*resource) {
	kinds, names, categories := e.keysOf(r)
	for _, kind := range kinds {
		e.byKind[kind] = apply(e.resourcesOfKind(kind))
	}
	for _, name := range names {
		e.byName[name] = apply(e.resourcesOfName(name))
	}
	for _, category := range categories {
		e.byCategory[category] = apply(e.resourcesOfCategory(category))
	}
}

// done returns the new table and adds all affected names, kinds and categories to touches.
func (e *tableEdit) done(touches *touched) *table {
	affected := e.affectedNames()
	touches.grow(len(affected), len(e.byKind), len(e.byCategory))
	kinds := persistent.NewEdit[*kindEntry](len(e.byKind))
	for kind, resources := range e.byKind {
		touches.kinds = append(touches.kinds, kind)
		if len(resources) == 0 {
			kinds.Delete(kind)
		} else {
			kinds.Set(kind, e.kind(kind, resources))
		}
	}
	names := persistent.NewEdit[*nameEntry](len(affected))
	for name := range affected {
		touches.names = append(touches.names, name)
		if resources := e.resourcesOfName(name); len(resources) == 0 {
			names.Delete(name)
		} else {
			names.Set(name, e.name(name, resources))
		}
	}
	categories := persistent.NewEdit[[]*resource](len(e.byCategory))
	for category, resources := range e.byCategory {
		touches.categories = append(touches.categories, category)
		if len(resources) == 0 {
			categories.Delete(category)
		} else {
			categories.Set(category, e.fitted(resources))
		}
	}
	return &table{
		kinds: e.kinds.With(kinds), names: e.names.With(names), categories: e.categories.With(categories), count: e.count,
	}
}

// affectedNames returns the names whose entries may change: the names of changed resources, and the singular names that
// belong to their plurals. The last resource that defines a plural determines its singular.
func (e *tableEdit) affectedNames() map[string]bool {
	names := map[string]bool{}
	for name, resources := range e.byName {
		names[name] = true
		for _, r := range resources {
			for _, d := range e.definitionsOf(r) {
				if d.plural == name {
					names[d.singular] = true
				}
			}
		}
	}
	return names
}

func (e *tableEdit) kind(kind string, resources []*resource) *kindEntry {
	entry := &kindEntry{resources: e.fitted(resources)}
	for _, r := range resources {
		entry.real = entry.real || r != listResource && r.kind == kind
		for _, d := range e.definitionsOf(r) {
			if d.kind == kind {
				entry.plural, entry.namespaced = d.plural, d.namespaced
			}
		}
	}
	return entry
}

func (e *tableEdit) name(name string, resources []*resource) *nameEntry {
	entry := &nameEntry{resources: e.fitted(resources)}
	var plurals []string
	for _, r := range resources {
		entry.exact = entry.exact || r != listResource && (r.name == name || r.singular == name)
		if entry.shortFor == "" && slices.Contains(r.shortNames, name) {
			entry.shortFor = r.name
		}
		for _, d := range e.definitionsOf(r) {
			if d.plural != name && d.singular != name {
				continue
			}
			entry.kind = d.kind
			if d.plural == name {
				entry.singular = d.singular
			}
			if d.plural == name || e.singularOf(d.plural) == name {
				plurals = append(plurals, d.plural)
			}
		}
	}
	entry.plurals = compacted(plurals)
	if len(entry.plurals) == 1 {
		entry.plurals = share(e.onePlural, plurals[0], entry.plurals)
	}
	return entry
}

// singularOf returns the singular of a plural, as defined by the last resource with that plural.
func (e *tableEdit) singularOf(plural string) (singular string) {
	resources, ok := e.byName[plural]
	if !ok {
		return e.names.Get(plural).singular
	}
	for _, r := range resources {
		for _, d := range e.definitionsOf(r) {
			if d.plural == plural {
				singular = d.singular
			}
		}
	}
	return singular
}

// fitted returns the list, or a copy of it if the list has much unused capacity.
func (e *tableEdit) fitted(resources []*resource) []*resource {
	const spare = 4
	switch {
	case len(resources) == 1:
		return share(e.oneResource, resources[0], resources)
	case cap(resources)-len(resources) > spare:
		return append(make([]*resource, 0, len(resources)), resources...)
	}
	return resources
}

// share returns the list that is stored for key. If none is stored, share first stores a copy of the given list.
func share[K comparable, V any](shared map[K][]V, key K, list []V) []V {
	if stored, ok := shared[key]; ok {
		return stored
	}
	list = slices.Clone(list)
	shared[key] = list
	return list
}

// compacted sorts a list in place and removes duplicates.
func compacted(list []string) []string {
	slices.SortFunc(list, strings.Compare)
	return slices.Clip(slices.Compact(list))
}
