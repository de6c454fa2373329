package restmapper

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/restmapper"
)

// fakeDiscovery is a discovery client with fixed results, from which client-go creates its mapper.
type fakeDiscovery struct {
	discovery.DiscoveryInterfaceWithContext
	groups    []*metav1.APIGroup
	resources []*metav1.APIResourceList
}

func (d *fakeDiscovery) ServerGroupsAndResourcesWithContext(
	context.Context,
) ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	return d.groups, d.resources, nil
}

// discoveryOf returns a discovery client for all versions that w serves, in the order of s.
func discoveryOf(w *catalog, s *snapshot) *fakeDiscovery {
	d := &fakeDiscovery{}
	for _, o := range s.ordered {
		group := &metav1.APIGroup{Name: o.name}
		for _, v := range s.groups.Get(o.name).versions {
			gv := schema.GroupVersion{Group: o.name, Version: v.version}
			group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{
				GroupVersion: gv.String(), Version: v.version,
			})
			list := &metav1.APIResourceList{GroupVersion: gv.String()}
			for _, r := range resourcesOf(w, gv) {
				list.APIResources = append(list.APIResources, metav1.APIResource{
					Name: r.name, SingularName: r.singular, Kind: r.kind, Namespaced: r.namespaced,
					ShortNames: r.shortNames, Categories: r.categories, Verbs: r.verbs,
				})
			}
			d.resources = append(d.resources, list)
		}
		group.PreferredVersion = group.Versions[0]
		d.groups = append(d.groups, group)
	}
	return d
}

// resourcesOf returns the resources of a version in the order of discovery.
func resourcesOf(w *catalog, gv schema.GroupVersion) (resources []*resource) {
	if d := w.discovered[gv.Group][gv.Version]; d != nil {
		return d.resources
	}
	for _, c := range w.crds[gv.Group] {
		if slices.Contains(c.served(), gv.Version) {
			resources = append(resources, c.resource)
		}
	}
	slices.SortFunc(resources, func(a, b *resource) int { return strings.Compare(a.name, b.name) })
	return resources
}

// oracle returns client-go's mapper and category expander.
func (d *fakeDiscovery) oracle(t testing.TB) (meta.RESTMapperWithContext, restmapper.CategoryExpanderWithContext) {
	t.Helper()
	groups, err := restmapper.GetAPIGroupResourcesWithContext(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	mapper := restmapper.NewDiscoveryRESTMapperWithContext(groups)
	return restmapper.NewShortcutExpanderWithContext(mapper, d, nil), restmapper.NewDiscoveryCategoryExpanderWithContext(d)
}

// queries contains the arguments of all lookups to compare.
type queries struct {
	resources  []schema.GroupVersionResource
	kinds      []schema.GroupKind
	versions   [][]string
	categories []string
}

// queriesFor returns queries for all combinations of the names in d and of some names that d does not contain.
func queriesFor(d *fakeDiscovery) queries {
	groups, versions := set("", "a", "nosuch"), set("", "nosuch", "__internal")
	names, kinds := set("", "nosuch", "list", "lists"), set("", "nosuch", "List")
	q := queries{versions: [][]string{nil, {""}, {"nosuch"}, {"__internal"}}}
	categories := set("", "nosuch")
	for _, list := range d.resources {
		gv, _ := schema.ParseGroupVersion(list.GroupVersion)
		groups[gv.Group], versions[gv.Version] = true, true
		if prefix, _, ok := strings.Cut(gv.Group, "."); ok {
			groups[prefix] = true
		}
		for _, r := range list.APIResources {
			forms := []string{r.Name, r.SingularName, strings.ToUpper(r.Name), r.SingularName + "list"}
			for _, n := range append(forms, r.ShortNames...) {
				names[n] = true
			}
			kinds[r.Kind], kinds[strings.ToLower(r.Kind)], kinds[r.Kind+"List"] = true, true, true
			for _, c := range r.Categories {
				categories[c] = true
			}
		}
	}
	for g := range groups {
		for n := range names {
			for v := range versions {
				q.resources = append(q.resources, schema.GroupVersionResource{Group: g, Version: v, Resource: n})
			}
		}
		for k := range kinds {
			q.kinds = append(q.kinds, schema.GroupKind{Group: g, Kind: k})
		}
	}
	var all []string
	for v := range versions {
		q.versions = append(q.versions, []string{v})
		all = append(all, v)
	}
	slices.Sort(all)
	q.versions = append(q.versions, slices.Clone(all))
	slices.Reverse(all)
	q.versions = append(q.versions, all)
	for c := range categories {
		q.categories = append(q.categories, c)
	}
	return q
}

func set(names ...string) map[string]bool {
	s := map[string]bool{}
	for _, n := range names {
		s[n] = true
	}
	return s
}

// comparison compares the results of a snapshot with those of client-go's mapper.
type comparison struct {
	testing.TB
	snapshot *snapshot
	queries
	oracle     meta.RESTMapperWithContext
	categories restmapper.CategoryExpanderWithContext
	failures   int
}

// compare reports the first lookups whose results differ from client-go's.
func compare(t testing.TB, w *catalog, s *snapshot) {
	t.Helper()
	d := discoveryOf(w, s)
	c := &comparison{TB: t, snapshot: s, queries: queriesFor(d)}
	c.oracle, c.categories = d.oracle(t)
	c.compareResources()
	c.compareKinds()
	c.compareCategories()
	c.compareVerbs(d.resources)
	if c.failures > maxFailures {
		t.Errorf("%d more results differ", c.failures-maxFailures)
	}
}

// maxFailures is the number of differences that are reported in detail.
const maxFailures = 10

func (c *comparison) check(query string, got, want any, gotErr, wantErr error) {
	c.Helper()
	if sameError(gotErr, wantErr) && (wantErr != nil || reflect.DeepEqual(got, want)) {
		return
	}
	if c.failures++; c.failures <= maxFailures {
		c.Errorf("%s\n\tgot  %v, %v\n\twant %v, %v", query, got, gotErr, want, wantErr)
	}
}

func (c *comparison) compareResources() {
	ctx, s := c.Context(), c.snapshot
	for _, r := range c.resources {
		kind, err := s.kindFor(r)
		wantKind, wantErr := c.oracle.KindForWithContext(ctx, r)
		c.check(fmt.Sprintf("KindFor(%v)", r), kind, wantKind, err, wantErr)
		kinds, err := s.kindsFor(r)
		wantKinds, wantErr := c.oracle.KindsForWithContext(ctx, r)
		c.check(fmt.Sprintf("KindsFor(%v)", r), kinds, wantKinds, err, wantErr)
		if isRandom(s, r) {
			continue
		}
		resource, err := s.resourceFor(r)
		wantResource, wantErr := c.oracle.ResourceForWithContext(ctx, r)
		c.check(fmt.Sprintf("ResourceFor(%v)", r), resource, wantResource, err, wantErr)
		resources, err := s.resourcesFor(r)
		wantResources, wantErr := c.oracle.ResourcesForWithContext(ctx, r)
		c.check(fmt.Sprintf("ResourcesFor(%v)", r), resources, wantResources, err, wantErr)
		if r.Group == "" && r.Version == "" {
			singular, err := s.singular(r.Resource)
			wantSingular, wantErr := c.oracle.ResourceSingularizerWithContext(ctx, r.Resource)
			c.check(fmt.Sprintf("ResourceSingularizer(%v)", r.Resource), singular, wantSingular, err, wantErr)
		}
	}
}

func (c *comparison) compareKinds() {
	ctx := c.Context()
	for _, gk := range c.kinds {
		for _, versions := range c.versions {
			mapping, err := c.snapshot.mapping(gk, versions)
			wantMapping, wantErr := c.oracle.RESTMappingWithContext(ctx, gk, versions...)
			c.check(fmt.Sprintf("RESTMapping(%v, %q)", gk, versions), mapping, wantMapping, err, wantErr)
			mappings, err := c.snapshot.mappings(gk, versions)
			wantMappings, wantErr := c.oracle.RESTMappingsWithContext(ctx, gk, versions...)
			c.check(fmt.Sprintf("RESTMappings(%v, %q)", gk, versions), mappings, wantMappings, err, wantErr)
		}
	}
}

func (c *comparison) compareCategories() {
	for _, name := range c.queries.categories {
		got, ok := c.snapshot.category(name)
		want, wantOK := c.categories.ExpandWithContext(c.Context(), name)
		if ok != wantOK || !slices.Equal(got, want) {
			c.Errorf("Expand(%q)\n\tgot  %v, %v\n\twant %v, %v", name, got, ok, want, wantOK)
		}
	}
}

func (c *comparison) compareVerbs(lists []*metav1.APIResourceList) {
	for _, list := range lists {
		gv, _ := schema.ParseGroupVersion(list.GroupVersion)
		for _, r := range list.APIResources {
			got, err := c.snapshot.verbs(gv.WithResource(r.Name))
			c.check(fmt.Sprintf("Verbs(%v)", gv.WithResource(r.Name)), got, []string(r.Verbs), err, nil)
		}
		for _, name := range []string{"nosuch", ""} {
			_, err := c.snapshot.verbs(gv.WithResource(name))
			c.check(fmt.Sprintf("Verbs(%v)", gv.WithResource(name)), nil, nil, err, noResource(gv.WithResource(name)))
		}
	}
}

// isRandom reports whether r is a full resource with a name that several resources of its version share. For such a
// name, client-go returns an arbitrary resource.
func isRandom(s *snapshot, r schema.GroupVersionResource) bool {
	q := query{r: r}
	s.expand(&q)
	if q.r.Group == "" || !isExplicit(q.r.Version) {
		return false
	}
	for m := range s.matches(&q) {
		return len(m.plurals) > 1
	}
	return false
}

// sameError reports whether callers would treat two errors in the same way.
func sameError(a, b error) bool {
	var aKind, bKind *meta.NoKindMatchError
	if errors.As(a, &aKind) && errors.As(b, &bKind) {
		return aKind.GroupKind == bKind.GroupKind && slices.Equal(aKind.SearchedVersions, bKind.SearchedVersions)
	}
	var aAmbiguous, bAmbiguous *meta.AmbiguousResourceError
	if errors.As(a, &aAmbiguous) && errors.As(b, &bAmbiguous) {
		return reflect.DeepEqual(aAmbiguous, bAmbiguous)
	}
	return (a == nil) == (b == nil) && meta.IsNoMatchError(a) == meta.IsNoMatchError(b) &&
		meta.IsAmbiguousError(a) == meta.IsAmbiguousError(b)
}
