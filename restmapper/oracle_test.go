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

// served is discovery as an API server would answer it, for client-go to make its mapper of.
type served struct {
	discovery.DiscoveryInterfaceWithContext
	groups    []*metav1.APIGroup
	resources []*metav1.APIResourceList
}

func (s *served) ServerGroupsAndResourcesWithContext(context.Context) ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	return s.groups, s.resources, nil
}

// serve makes discovery of what a world serves, in the order of a snapshot of it.
func serve(w *world, s *snapshot) *served {
	d := &served{}
	for _, o := range s.ordered {
		group := &metav1.APIGroup{Name: o.name}
		for _, v := range s.groups.get(o.name).versions {
			gv := schema.GroupVersion{Group: o.name, Version: v.version}
			group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: v.version})
			list := &metav1.APIResourceList{GroupVersion: gv.String()}
			for _, r := range resourcesOf(w, gv) {
				list.APIResources = append(list.APIResources, metav1.APIResource{
					Name: r.name, SingularName: r.singular, Kind: r.kind, Namespaced: r.namespaced, ShortNames: r.shortNames, Categories: r.categories,
				})
			}
			d.resources = append(d.resources, list)
		}
		group.PreferredVersion = group.Versions[0]
		d.groups = append(d.groups, group)
	}
	return d
}

// resourcesOf are a version's resources in discovery's order.
func resourcesOf(w *world, gv schema.GroupVersion) (resources []*resource) {
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

// oracle is client-go's mapper.
func (s *served) oracle(t testing.TB) (meta.RESTMapperWithContext, restmapper.CategoryExpanderWithContext) {
	t.Helper()
	groups, err := restmapper.GetAPIGroupResourcesWithContext(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	mapper := restmapper.NewDiscoveryRESTMapperWithContext(groups)
	return restmapper.NewShortcutExpanderWithContext(mapper, s, nil), restmapper.NewDiscoveryCategoryExpanderWithContext(s)
}

// questions are all names in all combinations that may matter.
type questions struct {
	resources  []schema.GroupVersionResource
	kinds      []schema.GroupKind
	versions   [][]string
	categories []string
}

func questionsAbout(s *served) questions {
	groups, versions, names, kinds := set("", "a", "nosuch"), set("", "nosuch", "__internal"), set("", "nosuch", "list", "lists"), set("", "nosuch", "List")
	q := questions{versions: [][]string{nil, {""}, {"nosuch"}, {"__internal"}}}
	categories := set("", "nosuch")
	for _, list := range s.resources {
		gv, _ := schema.ParseGroupVersion(list.GroupVersion)
		groups[gv.Group], versions[gv.Version] = true, true
		if prefix, _, ok := strings.Cut(gv.Group, "."); ok {
			groups[prefix] = true
		}
		for _, r := range list.APIResources {
			for _, n := range append([]string{r.Name, r.SingularName, strings.ToUpper(r.Name), r.SingularName + "list"}, r.ShortNames...) {
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
	var some []string
	for v := range versions {
		q.versions = append(q.versions, []string{v})
		some = append(some, v)
	}
	slices.Sort(some)
	q.versions = append(q.versions, some)
	slices.Reverse(some)
	q.versions = append(q.versions, slices.Clone(some))
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

// compare asks both mappers everything, and tells of the first answers that differ.
func compare(t testing.TB, w *world, s *snapshot) {
	t.Helper()
	d := serve(w, s)
	want, categories := d.oracle(t)
	q, ctx := questionsAbout(d), t.Context()
	wrong := 0
	check := func(question string, got, want any, gotErr, wantErr error) {
		t.Helper()
		if !sameError(gotErr, wantErr) || wantErr == nil && !reflect.DeepEqual(got, want) {
			if wrong++; wrong <= 10 {
				t.Errorf("%s\n\tgot  %v, %v\n\twant %v, %v", question, got, gotErr, want, wantErr)
			}
		}
	}
	for _, r := range q.resources {
		kind, err := s.kindFor(r)
		wantKind, wantErr := want.KindForWithContext(ctx, r)
		check(fmt.Sprintf("KindFor(%v)", r), kind, wantKind, err, wantErr)
		kinds, err := s.kindsFor(r)
		wantKinds, wantErr := want.KindsForWithContext(ctx, r)
		check(fmt.Sprintf("KindsFor(%v)", r), kinds, wantKinds, err, wantErr)
		if isRandom(s, r) {
			continue
		}
		resource, err := s.resourceFor(r)
		wantResource, wantErr := want.ResourceForWithContext(ctx, r)
		check(fmt.Sprintf("ResourceFor(%v)", r), resource, wantResource, err, wantErr)
		resources, err := s.resourcesFor(r)
		wantResources, wantErr := want.ResourcesForWithContext(ctx, r)
		check(fmt.Sprintf("ResourcesFor(%v)", r), resources, wantResources, err, wantErr)
		if r.Group == "" && r.Version == "" {
			singular, err := s.singular(r.Resource)
			wantSingular, wantErr := want.ResourceSingularizerWithContext(ctx, r.Resource)
			check(fmt.Sprintf("ResourceSingularizer(%v)", r.Resource), singular, wantSingular, err, wantErr)
		}
	}
	for _, gk := range q.kinds {
		for _, versions := range q.versions {
			mapping, err := s.mapping(gk, versions)
			wantMapping, wantErr := want.RESTMappingWithContext(ctx, gk, versions...)
			check(fmt.Sprintf("RESTMapping(%v, %q)", gk, versions), mapping, wantMapping, err, wantErr)
			mappings, err := s.mappings(gk, versions)
			wantMappings, wantErr := want.RESTMappingsWithContext(ctx, gk, versions...)
			check(fmt.Sprintf("RESTMappings(%v, %q)", gk, versions), mappings, wantMappings, err, wantErr)
		}
	}
	for _, c := range q.categories {
		got, ok := s.category(c)
		want, wantOK := categories.ExpandWithContext(ctx, c)
		if ok != wantOK || !slices.Equal(got, want) {
			t.Errorf("Expand(%q)\n\tgot  %v, %v\n\twant %v, %v", c, got, ok, want, wantOK)
		}
	}
	if wrong > 10 {
		t.Errorf("and %d more", wrong-10)
	}
}

// isRandom tells a full resource whose name several resources of its version share: client-go takes one at random.
func isRandom(s *snapshot, r schema.GroupVersionResource) bool {
	r = coerce(s.expand(r))
	if r.Group == "" || r.Version == "" {
		return false
	}
	for m := range s.matches(r) {
		return len(m.plurals) > 1
	}
	return false
}

// sameError compares errors by what a caller can tell them by.
func sameError(a, b error) bool {
	var aKind, bKind *meta.NoKindMatchError
	if errors.As(a, &aKind) && errors.As(b, &bKind) {
		return aKind.GroupKind == bKind.GroupKind && slices.Equal(aKind.SearchedVersions, bKind.SearchedVersions)
	}
	var aAmbiguous, bAmbiguous *meta.AmbiguousResourceError
	if errors.As(a, &aAmbiguous) && errors.As(b, &bAmbiguous) {
		return reflect.DeepEqual(aAmbiguous, bAmbiguous)
	}
	return (a == nil) == (b == nil) && meta.IsNoMatchError(a) == meta.IsNoMatchError(b) && meta.IsAmbiguousError(a) == meta.IsAmbiguousError(b)
}
