package restmapper

import (
	"slices"
	"sort"
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

// table answers for the resources of one version of a group. It is never changed, and knows no version: those with the same
// resources share it. It has what client-go's mapper of one version has after it was filled with the resources in their
// order, where later ones replace what earlier ones have said of the same kind or name.
type table struct {
	kinds      sorted[*kindEntry]
	names      sorted[*nameEntry]
	categories sorted[[]*resource]
	count      int // of resources
}

// kindEntry is a kind as discovery has it (real), in lower case, or one of the list kinds that client-go guesses.
type kindEntry struct {
	plural     string
	namespaced bool
	real       bool
	by         []*resource // who has a say in it, in order
}

func (e *kindEntry) scope() meta.RESTScope {
	if e.namespaced {
		return meta.RESTScopeNamespace
	}
	return meta.RESTScopeRoot
}

// nameEntry is a name by which a resource may be asked for: the plural, the singular or a short name.
type nameEntry struct {
	// kind is what the name stands for, empty if it has no meaning by itself.
	kind string
	// plurals are the resources with this name. It is one, but for names that clash.
	plurals []string
	// singular belongs to the name if that is a plural.
	singular string
	// exact: discovery itself has the name, so that it is no short name.
	exact bool
	// long is the resource that the name stands for as a short name: in client-go the first to claim it.
	long string
	by   []*resource // who has a say in it, in order
}

// put is what one resource says of one kind.
type put struct {
	kind, plural, singular string
	namespaced             bool
}

// everyList stands for the kind List, which client-go adds to each version after all others.
var everyList = &resource{name: "lists", singular: "list", kind: "List"}

// puts are in the order of client-go's.
func (r *resource) puts() []put {
	switch {
	case r == everyList:
		return []put{{kind: r.kind, plural: r.name, singular: r.singular}}
	case r.kind == "":
		return nil
	}
	singular := r.singular
	if singular == "" {
		_, guess := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: r.kind})
		singular = guess.Resource
	}
	listPlural, listSingular := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: r.kind + "List"})
	return []put{
		{strings.ToLower(r.kind), r.name, singular, r.namespaced},
		{r.kind, r.name, singular, r.namespaced},
		{r.kind + "List", listPlural.Resource, listSingular.Resource, r.namespaced},
	}
}

var emptyTable = newTable(nil)

// newTable makes a table of resources in discovery's order.
func newTable(resources []*resource) *table {
	e := editTable(&table{})
	for _, r := range resources {
		e.add(r, false)
	}
	e.add(everyList, false)
	e.table.count--
	return e.done(&touched{})
}

// with returns the table without one resource and with another, either of which may be nil, and notes what that touches.
// The resources are in order of their names.
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

// tableEdit makes the next table of the last. First it takes who has a say in what, then it makes the entries anew that
// are concerned.
type tableEdit struct {
	table
	puts map[*resource][]put
	// Most entries are one resource's alone: they share these.
	plurals map[string][]string
	alone   map[*resource][]*resource
	// Who has a say now, where that has changed.
	kindsBy, namesBy, categoriesBy map[string][]*resource
}

func editTable(t *table) *tableEdit {
	return &tableEdit{
		table: *t, puts: map[*resource][]put{}, plurals: map[string][]string{}, alone: map[*resource][]*resource{},
		kindsBy: map[string][]*resource{}, namesBy: map[string][]*resource{}, categoriesBy: map[string][]*resource{},
	}
}

func (e *tableEdit) putsOf(r *resource) []put {
	puts, ok := e.puts[r]
	if !ok {
		puts = r.puts()
		e.puts[r] = puts
	}
	return puts
}

func (e *tableEdit) kindBy(kind string) []*resource {
	by, ok := e.kindsBy[kind]
	if !ok {
		if entry := e.kinds.get(kind); entry != nil {
			by = slices.Clone(entry.by)
		}
	}
	return by
}

func (e *tableEdit) nameBy(name string) []*resource {
	by, ok := e.namesBy[name]
	if !ok {
		if entry := e.names.get(name); entry != nil {
			by = slices.Clone(entry.by)
		}
	}
	return by
}

func (e *tableEdit) categoryBy(category string) []*resource {
	by, ok := e.categoriesBy[category]
	if !ok {
		by = slices.Clone(e.categories.get(category))
	}
	return by
}

// says lists what a resource has a say in. A category may be named several times.
func (e *tableEdit) says(r *resource) (kinds, names, categories []string) {
	for _, p := range e.putsOf(r) {
		kinds, names = append(kinds, p.kind), append(names, p.plural, p.singular)
	}
	if r != everyList {
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
	kinds, names, categories := e.says(r)
	for _, kind := range kinds {
		e.kindsBy[kind] = without(e.kindBy(kind))
	}
	for _, name := range names {
		e.namesBy[name] = without(e.nameBy(name))
	}
	for _, category := range categories {
		e.categoriesBy[category] = without(e.categoryBy(category))
	}
	e.count--
}

// add puts a resource behind all others, or in order of the names.
func (e *tableEdit) add(r *resource, ordered bool) {
	with := func(list []*resource) []*resource {
		at := len(list)
		if at > 0 && list[at-1] == everyList {
			at--
		}
		if ordered {
			at = sort.Search(at, func(i int) bool { return list[i].name > r.name })
		}
		return slices.Insert(list, at, r)
	}
	kinds, names, categories := e.says(r)
	for _, kind := range kinds {
		e.kindsBy[kind] = with(e.kindBy(kind))
	}
	for _, name := range names {
		e.namesBy[name] = with(e.nameBy(name))
	}
	for _, category := range categories {
		e.categoriesBy[category] = with(e.categoryBy(category))
	}
	e.count++
}

func (e *tableEdit) done(touches *touched) *table {
	kinds, names, categories := e.kinds.edit(), e.names.edit(), e.categories.edit()
	for kind, by := range e.kindsBy {
		touches.kinds = append(touches.kinds, kind)
		if len(by) == 0 {
			kinds.remove(kind)
		} else {
			kinds.set(kind, e.kind(kind, by))
		}
	}
	for name := range e.concerned() {
		touches.names = append(touches.names, name)
		if by := e.nameBy(name); len(by) == 0 {
			names.remove(name)
		} else {
			names.set(name, e.name(name, by))
		}
	}
	for category, by := range e.categoriesBy {
		touches.categories = append(touches.categories, category)
		if len(by) == 0 {
			categories.remove(category)
		} else {
			categories.set(category, e.fitted(by))
		}
	}
	return &table{kinds: kinds.done(), names: names.done(), categories: categories.done(), count: e.count}
}

// concerned are the names whose entries may be others now: whether a singular leads to a plural depends on who has the
// last say in the plural.
func (e *tableEdit) concerned() map[string]bool {
	names := map[string]bool{}
	for name, by := range e.namesBy {
		names[name] = true
		for _, r := range by {
			for _, p := range e.putsOf(r) {
				if p.plural == name {
					names[p.singular] = true
				}
			}
		}
	}
	return names
}

func (e *tableEdit) kind(kind string, by []*resource) *kindEntry {
	entry := &kindEntry{by: e.fitted(by)}
	for _, r := range by {
		entry.real = entry.real || r != everyList && r.kind == kind
		for _, p := range e.putsOf(r) {
			if p.kind == kind {
				entry.plural, entry.namespaced = p.plural, p.namespaced
			}
		}
	}
	return entry
}

func (e *tableEdit) name(name string, by []*resource) *nameEntry {
	entry := &nameEntry{by: e.fitted(by)}
	var plurals []string
	for _, r := range by {
		entry.exact = entry.exact || r != everyList && (r.name == name || r.singular == name)
		if entry.long == "" && slices.Contains(r.shortNames, name) {
			entry.long = r.name
		}
		for _, p := range e.putsOf(r) {
			if p.plural != name && p.singular != name {
				continue
			}
			entry.kind = p.kind
			if p.plural == name {
				entry.singular = p.singular
			}
			if p.plural == name || e.singularOf(p.plural) == name {
				plurals = append(plurals, p.plural)
			}
		}
	}
	entry.plurals = compacted(plurals)
	if len(entry.plurals) == 1 {
		entry.plurals = share(e.plurals, plurals[0], entry.plurals)
	}
	return entry
}

// singularOf is what the last to have a say in a plural says.
func (e *tableEdit) singularOf(plural string) (singular string) {
	by, ok := e.namesBy[plural]
	if !ok {
		return e.names.get(plural).singular
	}
	for _, r := range by {
		for _, p := range e.putsOf(r) {
			if p.plural == plural {
				singular = p.singular
			}
		}
	}
	return singular
}

func (e *tableEdit) fitted(by []*resource) []*resource {
	if len(by) == 1 {
		return share(e.alone, by[0], by)
	}
	return fitted(by)
}

// share spares equal lists from being kept more than once.
func share[K comparable, V any](shared map[K][]V, key K, list []V) []V {
	if known, ok := shared[key]; ok {
		return known
	}
	list = slices.Clone(list)
	shared[key] = list
	return list
}

func compacted(list []string) []string {
	slices.SortFunc(list, strings.Compare)
	return slices.Clip(slices.Compact(list))
}
