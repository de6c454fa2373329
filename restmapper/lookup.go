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

// The answers are those of client-go's ShortcutExpander over its discovery mapper, which asks one mapper a version and
// orders what they say by the groups' and versions' priorities.

// expand replaces a short name by its resource. A name that discovery itself has is none, whatever its version.
func (s *snapshot) expand(r schema.GroupVersionResource) schema.GroupVersionResource {
	k := s.names.get(r.Resource)
	if k == nil || k.short == 0 {
		return r
	}
	if r.Group == "" {
		if k.exact > 0 {
			return r
		}
		for _, o := range s.named(r.Resource) {
			if long := s.groups.get(o.name).long(r.Resource); long != "" {
				return schema.GroupVersionResource{Group: o.name, Resource: long}
			}
		}
		return r
	}
	if g := s.groups.get(r.Group); g != nil {
		if g.knows(r.Resource).exact {
			return r
		}
		if long := g.long(r.Resource); long != "" {
			return schema.GroupVersionResource{Group: g.order.name, Resource: long}
		}
	}
	for _, o := range s.named(r.Resource) {
		if !strings.HasPrefix(o.name, r.Group) {
			continue
		}
		if long := s.groups.get(o.name).long(r.Resource); long != "" {
			r.Group, r.Resource = o.name, long
			return r
		}
	}
	return r
}

// match is what one version of a group knows of a name.
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

// full finds the one version that may know what is asked for in full. Most names are nobody's short names: then there is
// nothing to expand, and isFinal says that nothing else may match.
func (s *snapshot) full(r schema.GroupVersionResource) (m match, ok, isFinal bool) {
	if r.Group == "" || r.Version == "" || r.Version == runtime.APIVersionInternal {
		return match{}, false, false
	}
	k := s.names.get(r.Resource)
	if k == nil && !everywhere(r.Resource) {
		return match{}, false, strings.ToLower(r.Resource) == r.Resource
	}
	isFinal = k == nil || k.short == 0
	g := s.groups.get(r.Group)
	if g == nil {
		return match{}, false, isFinal
	}
	v := g.version(r.Version)
	if v == nil {
		return match{}, false, isFinal
	}
	e := v.names.get(r.Resource)
	isFinal = (isFinal || e != nil && e.exact) && strings.ToLower(r.Resource) == r.Resource
	return match{g, v, e}, isFinal && e != nil && e.kind != "", isFinal
}

// matches finds the versions that know a resource, in order. A group alone matches as a prefix too: storageclass.storage
// is found in storage.k8s.io.
func (s *snapshot) matches(r schema.GroupVersionResource) iter.Seq[match] {
	return func(yield func(match) bool) {
		r := coerce(r)
		if r.Group != "" && (r.Version != "" || !s.isPrefix(r.Group)) {
			if g := s.groups.get(r.Group); g != nil {
				g.match(r, yield)
			}
			return
		}
		for _, o := range s.named(r.Resource) {
			if strings.HasPrefix(o.name, r.Group) && !s.groups.get(o.name).match(r, yield) {
				return
			}
		}
	}
}

func (g *group) match(r schema.GroupVersionResource, yield func(match) bool) bool {
	var e *nameEntry
	for i := range g.versions {
		v := &g.versions[i]
		if r.Version != "" && r.Version != v.version {
			continue
		}
		if e == nil || v.table != g.versions[i-1].table { // else the entry is the same
			e = v.names.get(r.Resource)
		}
		if e != nil && e.kind != "" && !yield(match{g, v, e}) {
			return false
		}
	}
	return true
}

// few is how many matches a lookup collects without a list on the heap. Most names have one or two.
const few = 8

// collect returns the matches, or how many there are if they are more than fit.
func (s *snapshot) collect(r schema.GroupVersionResource, into *[few]match) (n int) {
	for m := range s.matches(r) {
		if n < few {
			into[n] = m
		}
		n++
	}
	return n
}

// coerce does as client-go does: resources are in lower case, and the internal version is none.
func coerce(r schema.GroupVersionResource) schema.GroupVersionResource {
	r.Resource = strings.ToLower(r.Resource)
	if r.Version == runtime.APIVersionInternal {
		r.Version = ""
	}
	return r
}

func (s *snapshot) kindFor(r schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	if m, ok, isFinal := s.full(r); ok {
		return m.gvk(), nil
	} else if isFinal {
		return schema.GroupVersionKind{}, noResource(r)
	}
	r = s.expand(r)
	// Within a version a name has one kind, so the first version that knows it has the answer.
	for m := range s.matches(r) {
		return m.gvk(), nil
	}
	return schema.GroupVersionKind{}, noResource(r)
}

func (s *snapshot) kindsFor(r schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	if m, ok, isFinal := s.full(r); ok {
		return []schema.GroupVersionKind{m.gvk()}, nil
	} else if isFinal {
		return nil, noResource(r)
	}
	r = s.expand(r)
	var found [few]match
	n := s.collect(r, &found)
	if n == 0 {
		return nil, noResource(r)
	}
	kinds := make([]schema.GroupVersionKind, 0, n)
	if n <= few {
		for _, m := range found[:n] {
			kinds = append(kinds, m.gvk())
		}
		return kinds, nil
	}
	for m := range s.matches(r) {
		kinds = append(kinds, m.gvk())
	}
	return kinds, nil
}

func (s *snapshot) resourceFor(r schema.GroupVersionResource) (schema.GroupVersionResource, error) {
	if m, ok, isFinal := s.full(r); ok && len(m.plurals) > 0 {
		return m.resource(m.resourcesOf(r)[0]), nil
	} else if isFinal {
		return schema.GroupVersionResource{}, noResource(r)
	}
	r = s.expand(r)
	for m := range s.matches(r) {
		switch plurals := m.resourcesOf(r); len(plurals) {
		case 0: // a singular whose plural has got another one
			continue
		case 1:
			return m.resource(plurals[0]), nil
		}
		return schema.GroupVersionResource{}, &meta.AmbiguousResourceError{PartialResource: r, MatchingResources: s.allResources(r)}
	}
	return schema.GroupVersionResource{}, noResource(r)
}

func (s *snapshot) resourcesFor(r schema.GroupVersionResource) ([]schema.GroupVersionResource, error) {
	if m, ok, isFinal := s.full(r); ok && len(m.plurals) > 0 {
		return []schema.GroupVersionResource{m.resource(m.resourcesOf(r)[0])}, nil
	} else if isFinal {
		return nil, noResource(r)
	}
	r = s.expand(r)
	if all := s.allResources(r); len(all) > 0 {
		return all, nil
	}
	return nil, noResource(r)
}

func (s *snapshot) allResources(r schema.GroupVersionResource) []schema.GroupVersionResource {
	var found [few]match
	n := s.collect(r, &found)
	if n == 0 {
		return nil
	}
	size := 0
	if n <= few {
		for _, m := range found[:n] {
			size += len(m.resourcesOf(r))
		}
	} else {
		for m := range s.matches(r) {
			size += len(m.resourcesOf(r))
		}
	}
	all := make([]schema.GroupVersionResource, 0, size)
	if n <= few {
		for _, m := range found[:n] {
			all = m.appendResources(all, r)
		}
		return all
	}
	for m := range s.matches(r) {
		all = m.appendResources(all, r)
	}
	return all
}

func (m match) appendResources(all []schema.GroupVersionResource, r schema.GroupVersionResource) []schema.GroupVersionResource {
	for _, plural := range m.resourcesOf(r) {
		all = append(all, m.resource(plural))
	}
	return all
}

// resourcesOf are the plurals of the name. Of a full name client-go takes any one; here that is the resource of that
// name before one that has it as its singular.
func (m match) resourcesOf(r schema.GroupVersionResource) []string {
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
	name = s.expand(schema.GroupVersionResource{Resource: name}).Resource
	r := schema.GroupVersionResource{Resource: name}
	for m := range s.matches(r) {
		singular, isAmbiguous := "", false
		for _, plural := range m.plurals {
			of := m.names.get(plural).singular
			isAmbiguous = isAmbiguous || singular != "" && of != singular
			singular = of
		}
		if singular != "" && !isAmbiguous {
			return singular, nil
		}
	}
	return name, s.noSingular(coerce(r))
}

// noSingular is the error of the last version of all, as client-go has it: no match, unless that version knows the name
// but not what its one singular is.
func (s *snapshot) noSingular(r schema.GroupVersionResource) error {
	if len(s.ordered) > 0 {
		g := s.groups.get(s.ordered[len(s.ordered)-1].name)
		v := g.versions[len(g.versions)-1]
		if e := v.names.get(r.Resource); e != nil && len(e.plurals) > 0 {
			return fmt.Errorf("%s has no one singular: it may be any of %q", r.Resource, e.plurals)
		}
	}
	return noResource(r)
}

// chosen tells whether a version is one to search, and whether any was asked for.
func chosen(version string) bool { return version != "" && version != runtime.APIVersionInternal }

func (s *snapshot) mapping(gk schema.GroupKind, versions []string) (*meta.RESTMapping, error) {
	g := s.groups.get(gk.Group)
	if g == nil {
		return nil, noKind(gk, versions)
	}
	asked := false
	for _, version := range versions {
		if !chosen(version) {
			continue
		}
		asked = true
		if v := g.version(version); v != nil {
			if e := v.kinds.get(gk.Kind); e != nil {
				return g.mapping(v, gk.Kind, e), nil
			}
		}
	}
	if !asked {
		for i := range g.versions {
			if e := g.versions[i].kinds.get(gk.Kind); e != nil {
				return g.mapping(&g.versions[i], gk.Kind, e), nil
			}
		}
	}
	return nil, noKind(gk, versions)
}

func (s *snapshot) mappings(gk schema.GroupKind, versions []string) ([]*meta.RESTMapping, error) {
	var all []*meta.RESTMapping
	if g := s.groups.get(gk.Group); g != nil {
		asked := slices.ContainsFunc(versions, chosen)
		for i := range g.versions {
			v := &g.versions[i]
			if asked && !slices.Contains(versions, v.version) {
				continue
			}
			if e := v.kinds.get(gk.Kind); e != nil {
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
	list := s.categories.get(category)
	size := 0
	for _, o := range list {
		for _, v := range s.groups.get(o.name).versions {
			size += len(v.categories.get(category))
		}
	}
	if size == 0 {
		return nil, false
	}
	found := make([]schema.GroupResource, 0, size)
	for _, o := range list {
		for _, v := range s.groups.get(o.name).versions {
			// As often as it is named, and once a version, as client-go has it.
			for _, r := range v.categories.get(category) {
				found = append(found, schema.GroupResource{Group: o.name, Resource: r.name})
			}
		}
	}
	return found, true
}
