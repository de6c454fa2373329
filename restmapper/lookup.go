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
	if r.Group != "" {
		if g := s.groups.get(r.Group); g != nil {
			if g.hasExact(r.Resource) {
				return r
			}
			if long, ok := g.long(r.Resource); ok {
				return schema.GroupVersionResource{Group: g.order.name, Resource: long}
			}
		}
		for _, o := range s.named(r.Resource) {
			if !strings.HasPrefix(o.name, r.Group) {
				continue
			}
			if long, ok := s.groups.get(o.name).long(r.Resource); ok {
				r.Group, r.Resource = o.name, long
				return r
			}
		}
		return r
	}
	groups := s.named(r.Resource)
	for _, o := range groups {
		if s.groups.get(o.name).hasExact(r.Resource) {
			return r
		}
	}
	for _, o := range groups {
		if long, ok := s.groups.get(o.name).long(r.Resource); ok {
			return schema.GroupVersionResource{Group: o.name, Resource: long}
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

// matches finds the versions that know a resource, in order. A group alone matches as a prefix too: storageclass.storage
// is found in storage.k8s.io.
func (s *snapshot) matches(r schema.GroupVersionResource) iter.Seq[match] {
	return func(yield func(match) bool) {
		r := coerce(r)
		if r.Group != "" && r.Version != "" {
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
	for i := range g.versions {
		v := &g.versions[i]
		if r.Version != "" && r.Version != v.version {
			continue
		}
		if e := v.name(r.Resource); e != nil && e.kind != "" && !yield(match{g, v, e}) {
			return false
		}
	}
	return true
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
	r = s.expand(r)
	// Within a version a name has one kind, so the first version that knows it has the answer.
	for m := range s.matches(r) {
		return m.gvk(), nil
	}
	return schema.GroupVersionKind{}, noResource(r)
}

func (s *snapshot) kindsFor(r schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	r = s.expand(r)
	n := 0
	for range s.matches(r) {
		n++
	}
	if n == 0 {
		return nil, noResource(r)
	}
	kinds := make([]schema.GroupVersionKind, 0, n)
	for m := range s.matches(r) {
		kinds = append(kinds, m.gvk())
	}
	return kinds, nil
}

func (s *snapshot) resourceFor(r schema.GroupVersionResource) (schema.GroupVersionResource, error) {
	r = s.expand(r)
	for m := range s.matches(r) {
		plurals := m.resourcesOf(r)
		if len(plurals) == 1 {
			return m.resource(plurals[0]), nil
		}
		return schema.GroupVersionResource{}, &meta.AmbiguousResourceError{PartialResource: r, MatchingResources: s.allResources(r)}
	}
	return schema.GroupVersionResource{}, noResource(r)
}

func (s *snapshot) resourcesFor(r schema.GroupVersionResource) ([]schema.GroupVersionResource, error) {
	r = s.expand(r)
	if all := s.allResources(r); len(all) > 0 {
		return all, nil
	}
	return nil, noResource(r)
}

func (s *snapshot) allResources(r schema.GroupVersionResource) []schema.GroupVersionResource {
	n := 0
	for m := range s.matches(r) {
		n += len(m.resourcesOf(r))
	}
	if n == 0 {
		return nil
	}
	all := make([]schema.GroupVersionResource, 0, n)
	for m := range s.matches(r) {
		for _, plural := range m.resourcesOf(r) {
			all = append(all, m.resource(plural))
		}
	}
	return all
}

// resourcesOf are the plurals of the name. Of a full name client-go takes any one; here that is the resource of that
// name before one that has it as its singular.
func (m match) resourcesOf(r schema.GroupVersionResource) []string {
	if len(m.plurals) < 2 || r.Group == "" || r.Version == "" || r.Version == runtime.APIVersionInternal {
		return m.plurals
	}
	if i := slices.Index(m.plurals, m.nameEntry.name); i >= 0 {
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
			of := m.groupVersion.name(plural).singular
			isAmbiguous = isAmbiguous || singular != "" && of != singular
			singular = of
		}
		if singular != "" && !isAmbiguous {
			return singular, nil
		}
	}
	return name, noResource(coerce(r))
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
			if e := v.kind(gk.Kind); e != nil {
				return g.mapping(v, e), nil
			}
		}
	}
	if !asked {
		for i := range g.versions {
			if e := g.versions[i].kind(gk.Kind); e != nil {
				return g.mapping(&g.versions[i], e), nil
			}
		}
	}
	return nil, noKind(gk, versions)
}

func (s *snapshot) mappings(gk schema.GroupKind, versions []string) ([]*meta.RESTMapping, error) {
	all := s.groups.get(gk.Group).mappings(gk.Kind)
	if slices.ContainsFunc(versions, chosen) {
		all = slices.DeleteFunc(all, func(m *meta.RESTMapping) bool {
			return !slices.Contains(versions, m.GroupVersionKind.Version)
		})
	}
	if len(all) == 0 {
		return nil, noKind(gk, versions)
	}
	return all, nil
}

// noKind copies the versions: else those of every call would be put on the heap for the sake of this one.
func noKind(gk schema.GroupKind, versions []string) error {
	return &meta.NoKindMatchError{GroupKind: gk, SearchedVersions: slices.Clone(versions)}
}

func (s *snapshot) category(category string) ([]schema.GroupResource, bool) {
	var found []schema.GroupResource
	for _, o := range s.categories.get(category) {
		g := s.groups.get(o.name)
		for _, v := range g.versions {
			for _, r := range v.resources {
				// As often as it is named, and once a version, as client-go has it.
				for _, c := range r.categories {
					if c == category {
						found = append(found, schema.GroupResource{Group: g.order.name, Resource: r.name})
					}
				}
			}
		}
	}
	return found, len(found) > 0
}
