package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/discovery"
	clientgo "k8s.io/client-go/restmapper"

	"github.com/dynamic-controller/engine/restmapper"
)

// The mapper answers as client-go's does on the same cluster: on one of built-in types and generated CRDs, before and
// after the CRDs change under it, and as one that starts then.
func TestM3_AnswersAreThoseOfClientGo(t *testing.T) {
	h := newHarness(t)
	count := 240
	if testing.Short() {
		count = 40
	}
	mapper, _ := h.mapper()
	h.compareAnswers("built-in types", mapper)

	r := rand.New(rand.NewPCG(3, 3))
	suffix := utilrand.String(5) + ".example.com"
	crds := generateCRDs(r, count, suffix)
	for _, crd := range crds {
		h.createCRD(crd)
	}
	h.compareAnswers("CRDs created", mapper)

	for i, crd := range crds {
		switch i % 4 {
		case 0:
			h.deleteCRD(crd.Name)
		case 1:
			h.updateCRD(crd.Name, func(crd *apiextensionsv1.CustomResourceDefinition) {
				crd.Spec.Names.ShortNames = []string{"wd", utilrand.String(4)}
				crd.Spec.Names.Categories = []string{"generated"}
				last := &crd.Spec.Versions[len(crd.Spec.Versions)-1]
				last.Served = !last.Served
				added := *last.DeepCopy()
				added.Name, added.Served, added.Storage = "v7", true, false
				crd.Spec.Versions = append(crd.Spec.Versions, added)
			})
		}
	}
	for i := 0; i < len(crds); i += 8 { // with another scope and kind
		again := newCRD(crds[i].Spec.Group, crds[i].Spec.Names.Plural, "", fmt.Sprintf("Again%d", i), "v3", "v1")
		again.Spec.Scope = apiextensionsv1.ClusterScoped
		h.eventually("the CRD is gone", func() error {
			_, err := h.crds.ApiextensionsV1().CustomResourceDefinitions().Create(h.Context(), again, metav1.CreateOptions{})
			return err
		})
	}
	h.compareAnswers("CRDs changed", mapper)

	fresh, _ := h.mapper()
	h.compareAnswers("a fresh start", fresh)
}

// generateCRDs makes CRDs of the same kinds in many groups, with several versions and clashing names.
func generateCRDs(r *rand.Rand, n int, suffix string) []*apiextensionsv1.CustomResourceDefinition {
	const groupCount = 24
	versions := []string{"v1", "v2", "v10", "v1beta1", "v1beta2", "v2alpha1", "foo", "v11alpha2"}
	var crds []*apiextensionsv1.CustomResourceDefinition
	for i := range n {
		kind := fmt.Sprintf("Gen%d", i/groupCount)
		// Two groups are the prefixes of others.
		group := fmt.Sprintf("g%d.%s", i%groupCount, suffix)
		if g := i % groupCount; g >= 22 {
			group = fmt.Sprintf("g%d.%s.%d.net", g-22, suffix, g)
		}
		r.Shuffle(len(versions), func(i, j int) { versions[i], versions[j] = versions[j], versions[i] })
		crd := newCRD(group, strings.ToLower(kind)+"s", strings.ToLower(kind), kind, versions[:1+r.IntN(4)]...)
		if i%3 == 0 {
			crd.Spec.Scope = apiextensionsv1.ClusterScoped
		}
		if i%5 == 0 {
			crd.Spec.Names.Plural, crd.Spec.Names.Singular = fmt.Sprintf("odd%d", i), ""
			crd.Name = crd.Spec.Names.Plural + "." + group
		}
		for j := range crd.Spec.Versions {
			crd.Spec.Versions[j].Served = j == 0 || r.IntN(4) > 0
		}
		// Some are taken by built-in types, and some by others of the same group, which the API server then refuses.
		crd.Spec.Names.ShortNames = []string{[]string{"po", "wd", "deploy", "gen0", "odd5"}[r.IntN(5)], fmt.Sprintf("g%d", r.IntN(2*n))}
		crd.Spec.Names.Categories = [][]string{nil, {"all"}, {"generated"}, {"generated", "all"}}[r.IntN(4)]
		crds = append(crds, crd)
	}
	return crds
}

// settled is the cluster's discovery. Its resources are in the order of the groups, as client-go's own comments have it:
// what an aggregated document is made into has none, so that of two groups that claim a short name any may get it.
type settled struct {
	discovery.DiscoveryInterfaceWithContext
	groups    []*metav1.APIGroup
	resources []*metav1.APIResourceList
}

func (s *settled) ServerGroupsAndResourcesWithContext(context.Context) ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	return s.groups, s.resources, nil
}

func (h *harness) discover() *settled {
	h.Helper()
	client := must(discovery.NewDiscoveryClientForConfig(h.config))
	groups, resources, err := client.ServerGroupsAndResourcesWithContext(h.Context())
	h.noError(err)
	byVersion := map[string]*metav1.APIResourceList{}
	for _, list := range resources {
		byVersion[list.GroupVersion] = list
	}
	s := &settled{groups: groups}
	for _, g := range groups {
		for _, v := range g.Versions {
			if list := byVersion[v.GroupVersion]; list != nil {
				s.resources = append(s.resources, list)
			}
		}
	}
	return s
}

// compareAnswers asks again until discovery has settled.
func (h *harness) compareAnswers(when string, m *restmapper.Mapper) {
	h.Helper()
	h.eventually(when, func() error {
		asked, differences := h.discover().compare(h.Context(), m)
		if len(differences) > 0 {
			return fmt.Errorf("%d of %d answers differ, first\n%s", len(differences), asked, strings.Join(differences[:min(5, len(differences))], "\n"))
		}
		h.Logf("%s: %d answers compared", when, asked)
		return nil
	})
}

func (s *settled) compare(ctx context.Context, m *restmapper.Mapper) (asked int, differences []string) {
	groups := must(clientgo.GetAPIGroupResourcesWithContext(ctx, s))
	want := clientgo.NewShortcutExpanderWithContext(clientgo.NewDiscoveryRESTMapperWithContext(groups), s, nil)
	categories := clientgo.NewDiscoveryCategoryExpanderWithContext(s)
	check := func(what string, question, got, answer any, gotErr, wantErr error) {
		asked++
		if !sameErrors(gotErr, wantErr) || wantErr == nil && !reflect.DeepEqual(got, answer) {
			differences = append(differences, fmt.Sprintf("%s %v\n\tgot  %v, %v\n\twant %v, %v", what, question, got, gotErr, answer, wantErr))
		}
	}
	resources, kinds, names := s.questions()
	for _, r := range resources {
		gotKind, err := m.KindFor(r)
		wantKind, wantErr := want.KindForWithContext(ctx, r)
		check("KindFor", r, gotKind, wantKind, err, wantErr)
		gotKinds, err := m.KindsFor(r)
		wantKinds, wantErr := want.KindsForWithContext(ctx, r)
		check("KindsFor", r, gotKinds, wantKinds, err, wantErr)
		got, err := m.ResourceFor(r)
		wantResource, wantErr := want.ResourceForWithContext(ctx, r)
		check("ResourceFor", r, got, wantResource, err, wantErr)
		gotAll, err := m.ResourcesFor(r)
		wantAll, wantErr := want.ResourcesForWithContext(ctx, r)
		check("ResourcesFor", r, gotAll, wantAll, err, wantErr)
	}
	for _, k := range kinds {
		got, err := m.RESTMapping(k.kind, k.versions...)
		wantMapping, wantErr := want.RESTMappingWithContext(ctx, k.kind, k.versions...)
		check("RESTMapping", k, got, wantMapping, err, wantErr)
		gotAll, err := m.RESTMappings(k.kind, k.versions...)
		wantAll, wantErr := want.RESTMappingsWithContext(ctx, k.kind, k.versions...)
		check("RESTMappings", k, gotAll, wantAll, err, wantErr)
	}
	for _, name := range names {
		got, err := m.ResourceSingularizer(name)
		wantSingular, wantErr := want.ResourceSingularizerWithContext(ctx, name)
		check("ResourceSingularizer", name, got, wantSingular, err, wantErr)
	}
	for _, category := range []string{"all", "generated", "api-extensions", "nosuch", ""} {
		got, ok := m.Expand(category)
		wantAll, wantOK := categories.ExpandWithContext(ctx, category)
		check("Expand", category, got, wantAll, nil, nil)
		check("Expand", category, ok, wantOK, nil, nil)
	}
	return asked, differences
}

type kindQuestion struct {
	kind     schema.GroupKind
	versions []string
}

// questions are about every name that discovery has, in full, in part and wrong.
func (s *settled) questions() (resources []schema.GroupVersionResource, kinds []kindQuestion, names []string) {
	asked := map[string]bool{}
	isNew := func(question any) bool {
		key := fmt.Sprintf("%T%v", question, question)
		defer func() { asked[key] = true }()
		return !asked[key]
	}
	for _, list := range s.resources {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			panic(err)
		}
		prefix, _, _ := strings.Cut(gv.Group, ".")
		for _, r := range list.APIResources {
			for _, name := range append([]string{r.Name, r.SingularName, strings.ToUpper(r.Name), strings.ToLower(r.Kind) + "list", "nosuch"}, r.ShortNames...) {
				for _, q := range []schema.GroupVersionResource{
					{Group: gv.Group, Version: gv.Version, Resource: name},
					{Group: gv.Group, Resource: name},
					{Version: gv.Version, Resource: name},
					{Resource: name},
					{Group: prefix, Resource: name},
					{Group: prefix, Version: gv.Version, Resource: name},
					{Group: gv.Group, Version: "nosuch", Resource: name},
				} {
					if isNew(q) {
						resources = append(resources, q)
					}
				}
				if isNew(name) {
					names = append(names, name)
				}
			}
			for _, kind := range []string{r.Kind, strings.ToLower(r.Kind), r.Kind + "List", "List", "NoSuch"} {
				for _, versions := range [][]string{nil, {gv.Version}, {"nosuch"}, {"nosuch", "v1", gv.Version}, {"", "v2"}} {
					if q := (kindQuestion{schema.GroupKind{Group: gv.Group, Kind: kind}, versions}); isNew(q) {
						kinds = append(kinds, q)
					}
				}
			}
		}
	}
	return resources, kinds, names
}

func sameErrors(a, b error) bool {
	var aKind, bKind *meta.NoKindMatchError
	if errors.As(a, &aKind) && errors.As(b, &bKind) {
		return aKind.GroupKind == bKind.GroupKind && slices.Equal(aKind.SearchedVersions, bKind.SearchedVersions)
	}
	return (a == nil) == (b == nil) && meta.IsNoMatchError(a) == meta.IsNoMatchError(b) && meta.IsAmbiguousError(a) == meta.IsAmbiguousError(b)
}
