package restmapper

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The lookups in this file return the same results as client-go's ShortcutExpander with its discovery mapper. That
// mapper contains one mapper for each group version and sorts their results by the priorities of groups and
// versions.

// query is a lookup of a resource. Queries are passed by reference because copying them would be a large part of the
// cost of a lookup.
type query struct {
	r     schema.GroupVersionResource
	index *nameIndex // of the name r.Resource; nil if it has not been looked up
}

// emptyIndex is the index of an unknown name.
var emptyIndex = &nameIndex{}

// groupsOf returns the groups that may have a resource of the queried name, in order.
func (s *snapshot) groupsOf(q *query) []*order {
	if q.index == nil || isInEveryGroup(q.r.Resource) {
		return s.groupsWith(q.r.Resource)
	}
	return q.index.groups
}

// expand replaces a short name with its resource. A name that is a plural or singular in discovery is never expanded,
// not even if the query has a version in which that plural or singular does not exist.
func (s *snapshot) expand(q *query) {
	r := &q.r
	if q.index = s.names.Get(r.Resource); q.index == nil {
		q.index = emptyIndex
	}
	if q.index.short == 0 {
		return
	}
	if r.Group == "" {
		if q.index.exact > 0 {
			return
		}
		for _, o := range s.groupsOf(q) {
			if plural := s.groups.Get(o.name).expandShort(r.Resource); plural != "" {
				r.Group, r.Version, r.Resource, q.index = o.name, "", plural, nil
				return
			}
		}
		return
	}
	if g := s.groups.Get(r.Group); g != nil {
		if g.use(r.Resource).exact {
			return
		}
		if plural := g.expandShort(r.Resource); plural != "" {
			r.Version, r.Resource, q.index = "", plural, nil
			return
		}
	}
	for _, o := range s.groupsOf(q) {
		if !strings.HasPrefix(o.name, r.Group) {
			continue
		}
		if plural := s.groups.Get(o.name).expandShort(r.Resource); plural != "" {
			r.Group, r.Resource, q.index = o.name, plural, nil
			return
		}
	}
}

// match is the entry of a name in one group version.
type match struct {
	*group
	*groupVersion
	*nameEntry
}

func (m match) resource(plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: m.order.name, Version: m.groupVersion.version, Resource: plural}
}

func (m match) gvk() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: m.order.name, Version: m.groupVersion.version, Kind: m.nameEntry.kind}
}

// matchFull looks up a resource with group and version. The result isFinal is true if no other lookup can find a match.
// This is the case for all names that are not short names, because there is nothing to expand.
func (s *snapshot) matchFull(r schema.GroupVersionResource) (m match, ok, isFinal bool) {
	if r.Group == "" || r.Version == "" || r.Version == runtime.APIVersionInternal {
		return match{}, false, false
	}
	index := s.names.Get(r.Resource)
	if index == nil && !isInEveryGroup(r.Resource) {
		return match{}, false, strings.ToLower(r.Resource) == r.Resource
	}
	isFinal = index == nil || index.short == 0
	g := s.groups.Get(r.Group)
	if g == nil {
		return match{}, false, isFinal
	}
	v := g.version(r.Version)
	if v == nil {
		return match{}, false, isFinal
	}
	e := v.names.Get(r.Resource)
	isFinal = (isFinal || e != nil && e.exact) && strings.ToLower(r.Resource) == r.Resource
	return match{g, v, e}, isFinal && e != nil && e.kind != "", isFinal
}

// matches returns an iterator over all matches of a query, in order. In a query without a version, the group can be a
// prefix: storageclass.storage matches storageclass.storage.k8s.io. Like client-go, matches converts the name to lower
// case and ignores the internal version.
func (s *snapshot) matches(q *query) iter.Seq[match] {
	return func(yield func(match) bool) {
		name, version := strings.ToLower(q.r.Resource), q.r.Version
		if version == runtime.APIVersionInternal {
			version = ""
		}
		if q.r.Group != "" && (version != "" || !s.isPrefix(q.r.Group)) {
			if g := s.groups.Get(q.r.Group); g != nil {
				g.match(name, version, yield)
			}
			return
		}
		groups := s.groupsOf(q)
		if name != q.r.Resource {
			groups = s.groupsWith(name)
		}
		for _, o := range groups {
			if strings.HasPrefix(o.name, q.r.Group) && !s.groups.Get(o.name).match(name, version, yield) {
				return
			}
		}
	}
}

func (g *group) match(name, version string, yield func(match) bool) bool {
	var t *table
	var e *nameEntry // of t, which several versions can share
	for i := range g.versions {
		v := &g.versions[i]
		if version != "" && version != v.version {
			continue
		}
		if v.table != t {
			t, e = v.table, v.names.Get(name)
		}
		if e != nil && e.kind != "" && !yield(match{g, v, e}) {
			return false
		}
	}
	return true
}

// few is the number of matches that a lookup collects without allocating a list. Most names have one or two matches.
const few = 8

// collect stores the first matches of a query in an array and returns the total number of matches, which can be greater
// than the size of the array.
func (s *snapshot) collect(q *query, into *[few]match) (n int) {
	for m := range s.matches(q) {
		if n < few {
			into[n] = m
		}
		n++
	}
	return n
}

func (s *snapshot) kindFor(r schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	if m, ok, isFinal := s.matchFull(r); ok {
		return m.gvk(), nil
	} else if isFinal {
		return schema.GroupVersionKind{}, noResource(r)
	}
	q := query{r: r}
	s.expand(&q)
	// A name has only one kind in each version.
	for m := range s.matches(&q) {
		return m.gvk(), nil
	}
	return schema.GroupVersionKind{}, noResource(q.r)
}

func (s *snapshot) kindsFor(r schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	if m, ok, isFinal := s.matchFull(r); ok {
		return []schema.GroupVersionKind{m.gvk()}, nil
	} else if isFinal {
		return nil, noResource(r)
	}
	q := query{r: r}
	s.expand(&q)
	var found [few]match
	n := s.collect(&q, &found)
	if n == 0 {
		return nil, noResource(q.r)
	}
	kinds := make([]schema.GroupVersionKind, 0, n)
	if n <= few {
		for _, m := range found[:n] {
			kinds = append(kinds, m.gvk())
		}
		return kinds, nil
	}
	for m := range s.matches(&q) {
		kinds = append(kinds, m.gvk())
	}
	return kinds, nil
}

func (s *snapshot) resourceFor(r schema.GroupVersionResource) (schema.GroupVersionResource, error) {
	if m, ok, isFinal := s.matchFull(r); ok && len(m.plurals) > 0 {
		return m.resource(m.resourcesOf(&r)[0]), nil
	} else if isFinal {
		return schema.GroupVersionResource{}, noResource(r)
	}
	q := query{r: r}
	s.expand(&q)
	for m := range s.matches(&q) {
		switch plurals := m.resourcesOf(&q.r); len(plurals) {
		case 0: // a singular that another resource has replaced
			continue
		case 1:
			return m.resource(plurals[0]), nil
		}
		err := &meta.AmbiguousResourceError{PartialResource: q.r, MatchingResources: s.allResources(&q)}
		return schema.GroupVersionResource{}, err
	}
	return schema.GroupVersionResource{}, noResource(q.r)
}

func (s *snapshot) resourcesFor(r schema.GroupVersionResource) ([]schema.GroupVersionResource, error) {
	if m, ok, isFinal := s.matchFull(r); ok && len(m.plurals) > 0 {
		return []schema.GroupVersionResource{m.resource(m.resourcesOf(&r)[0])}, nil
	} else if isFinal {
		return nil, noResource(r)
	}
	q := query{r: r}
	s.expand(&q)
	if all := s.allResources(&q); len(all) > 0 {
		return all, nil
	}
	return nil, noResource(q.r)
}

func (s *snapshot) allResources(q *query) []schema.GroupVersionResource {
	var found [few]match
	n := s.collect(q, &found)
	if n == 0 {
		return nil
	}
	size := 0
	if n <= few {
		for _, m := range found[:n] {
			size += len(m.resourcesOf(&q.r))
		}
	} else {
		for m := range s.matches(q) {
			size += len(m.resourcesOf(&q.r))
		}
	}
	all := make([]schema.GroupVersionResource, 0, size)
	if n <= few {
		for _, m := range found[:n] {
			all = m.appendResources(all, &q.r)
		}
		return all
	}
	for m := range s.matches(q) {
		all = m.appendResources(all, &q.r)
	}
	return all
}

func (m match) appendResources(
	all []schema.GroupVersionResource, r *schema.GroupVersionResource,
) []schema.GroupVersionResource {
	for _, plural := range m.resourcesOf(r) {
		all = append(all, m.resource(plural))
	}
	return all
}

// resourcesOf returns the plurals of the name. If r has a group and a version, resourcesOf returns only one plural. In
// that case, client-go returns an arbitrary one. Here, a resource whose plural is the name takes precedence over
// resources whose singular is the name.
func (m match) resourcesOf(r *schema.GroupVersionResource) []string {
	if len(m.plurals) < 2 || r.Group == "" || r.Version == "" || r.Version == runtime.APIVersionInternal {
		return m.plurals
	}
	if i := slices.Index(m.plurals, strings.ToLower(r.Resource)); i >= 0 {
		return m.plurals[i : i+1]
	}
	return m.plurals[:1]
}

func noResource(r schema.GroupVersionResource) error {
	if r.Resource == "" {
		return fmt.Errorf("a resource must be present, got: %v", r)
	}
	return &meta.NoResourceMatchError{PartialResource: r}
}

func (s *snapshot) singular(name string) (string, error) {
	expanded := query{r: schema.GroupVersionResource{Resource: name}}
	s.expand(&expanded)
	name = expanded.r.Resource
	q := query{r: schema.GroupVersionResource{Resource: name}}
	for m := range s.matches(&q) {
		singular, isAmbiguous := "", false
		for _, plural := range m.plurals {
			next := m.names.Get(plural).singular
			isAmbiguous = isAmbiguous || singular != "" && next != singular
			singular = next
		}
		if singular != "" && !isAmbiguous {
			return singular, nil
		}
	}
	return name, s.noSingular(strings.ToLower(name))
}

// noSingular returns the error for the last version of the last group, as client-go does. The error is a NoMatch error,
// unless that version has several singulars for the name.
func (s *snapshot) noSingular(name string) error {
	if len(s.ordered) > 0 {
		g := s.groups.Get(s.ordered[len(s.ordered)-1].name)
		v := g.versions[len(g.versions)-1]
		if e := v.names.Get(name); e != nil && len(e.plurals) > 0 {
			return fmt.Errorf("resource %q is ambiguous: it has several singulars, one for each of %q", name, e.plurals)
		}
	}
	return noResource(schema.GroupVersionResource{Resource: name})
}

// isExplicit reports whether a version restricts a lookup. Empty and internal versions do not.
func isExplicit(version string) bool { return version != "" && version != runtime.APIVersionInternal }

func (s *snapshot) mapping(gk schema.GroupKind, versions []string) (*meta.RESTMapping, error) {
	g := s.groups.Get(gk.Group)
	if g == nil {
		return nil, noKind(gk, versions)
	}
	restricted := false
	for _, version := range versions {
		if !isExplicit(version) {
			continue
		}
		restricted = true
		if v := g.version(version); v != nil {
			if e := v.kinds.Get(gk.Kind); e != nil {
				return g.mapping(v, gk.Kind, e), nil
			}
		}
	}
	if !restricted {
		for i := range g.versions {
			if e := g.versions[i].kinds.Get(gk.Kind); e != nil {
				return g.mapping(&g.versions[i], gk.Kind, e), nil
			}
		}
	}
	return nil, noKind(gk, versions)
}

func (s *snapshot) verbs(r schema.GroupVersionResource) ([]string, error) {
	g := s.groups.Get(r.Group)
	if g == nil {
		return nil, noResource(r)
	}
	v := g.version(r.Version)
	if v == nil {
		return nil, noResource(r)
	}
	if e := v.names.Get(r.Resource); e != nil {
		if found := resourceNamed(e.resources, r.Resource); found != nil {
			return slices.Clone(found.verbs), nil
		}
	}
	return nil, noResource(r)
}

func (s *snapshot) mappings(gk schema.GroupKind, versions []string) ([]*meta.RESTMapping, error) {
	var all []*meta.RESTMapping
	if g := s.groups.Get(gk.Group); g != nil {
		restricted := slices.ContainsFunc(versions, isExplicit)
		for i := range g.versions {
			v := &g.versions[i]
			if restricted && !slices.Contains(versions, v.version) {
				continue
			}
			if e := v.kinds.Get(gk.Kind); e != nil {
				if all == nil {
					all = make([]*meta.RESTMapping, 0, len(g.versions)-i)
				}
				all = append(all, g.mapping(v, gk.Kind, e))
			}
		}
	}
	if len(all) == 0 {
		return nil, noKind(gk, versions)
	}
	return all, nil
}

func noKind(gk schema.GroupKind, versions []string) error {
	return &meta.NoKindMatchError{GroupKind: gk, SearchedVersions: versions}
}

func (s *snapshot) category(category string) ([]schema.GroupResource, bool) {
	list := s.categories.Get(category)
	size := 0
	for _, o := range list {
		for _, v := range s.groups.Get(o.name).versions {
			size += len(v.categories.Get(category))
		}
	}
	if size == 0 {
		return nil, false
	}
	found := make([]schema.GroupResource, 0, size)
	for _, o := range list {
		for _, v := range s.groups.Get(o.name).versions {
			// A resource is repeated for each version and for each repetition of the category, as in client-go.
			for _, r := range v.categories.Get(category) {
				found = append(found, schema.GroupResource{Group: o.name, Resource: r.name})
			}
		}
	}
	return found, true
}
