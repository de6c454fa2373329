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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	clientgo "k8s.io/client-go/restmapper"

	"github.com/dynamic-controller/engine/restmapper"
)

// The test compares the mapper's answers with those of client-go's mapper for the same API server. It does so before
// and after CRDs are created, changed and deleted, and again with a newly started mapper.
func TestM3_AnswersMatchClientGo(t *testing.T) {
	h := newHarness(t)
	count := 210 / *every
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
	for i := 0; i < len(crds); i += 8 { // create the deleted CRDs again with another scope and kind
		again := newCRD(crds[i].Spec.Group, crds[i].Spec.Names.Plural, "", fmt.Sprintf("Again%d", i), "v3", "v1")
		again.Spec.Scope = apiextensionsv1.ClusterScoped
		h.recreateCRD(again)
	}
	h.compareAnswers("CRDs changed", mapper)

	fresh, _ := h.mapper()
	h.compareAnswers("a newly started mapper", fresh)
}

// recreateCRD creates a CRD whose predecessor of the same name has been deleted. The API server removes the predecessor
// once it has listed the instances. It repeats a failed list with an exponential backoff, so that the removal can take
// longer than the usual deadline while many CRDs change.
func (h *harness) recreateCRD(crd *apiextensionsv1.CustomResourceDefinition) {
	h.Helper()
	client := h.crds.ApiextensionsV1().CustomResourceDefinitions()
	h.eventuallyWithin(5*deadline, "the CRD is created again", func() error {
		_, err := client.Create(h.Context(), crd, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		predecessor, getErr := client.Get(h.Context(), crd.Name, metav1.GetOptions{})
		if getErr != nil {
			return getErr
		}
		return fmt.Errorf("%w; its conditions are %v", err, predecessor.Status.Conditions)
	})
}

// generateCRDs returns n CRDs, each with up to four versions. The CRDs define the same kinds in many groups, and some
// of their names conflict.
func generateCRDs(r *rand.Rand, n int, suffix string) []*apiextensionsv1.CustomResourceDefinition {
	const groupCount = 24
	versions := []string{"v1", "v2", "v10", "v1beta1", "v1beta2", "v2alpha1", "foo", "v11alpha2"}
	var crds []*apiextensionsv1.CustomResourceDefinition
	for i := range n {
		kind := fmt.Sprintf("Gen%d", i/groupCount)
		// The names of two groups are prefixes of the names of other groups.
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
		// Some short names conflict with those of built-in types. Others conflict within the group, and the API server does
		// not accept them.
		crd.Spec.Names.ShortNames = []string{
			[]string{"po", "wd", "deploy", "gen0", "odd5"}[r.IntN(5)], fmt.Sprintf("g%d", r.IntN(2*n)),
		}
		crd.Spec.Names.Categories = [][]string{nil, {"all"}, {"generated"}, {"generated", "all"}}[r.IntN(4)]
		crds = append(crds, crd)
	}
	return crds
}

// settled contains the cluster's discovery results, with the resources in the order of the groups. With aggregated
// discovery, client-go does not keep this order, and its answer for a short name that two groups share is random.
type settled struct {
	discovery.DiscoveryInterfaceWithContext
	groups    []*metav1.APIGroup
	resources []*metav1.APIResourceList
}

func (s *settled) ServerGroupsAndResourcesWithContext(
	context.Context,
) ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
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

// compareAnswers compares the mapper's answers with those of client-go's mapper. It repeats the comparison until all
// answers match, because discovery lags behind the mapper.
func (h *harness) compareAnswers(when string, m *restmapper.Mapper) {
	h.Helper()
	first := rand.IntN(*every) // the same in each attempt, so that none of them skips a difference of an earlier one
	h.eventually(when, func() error {
		asked, differences := h.discover().compare(h.Context(), m, first)
		if len(differences) > 0 {
			examples := strings.Join(differences[:min(5, len(differences))], "\n")
			return fmt.Errorf("%d of %d answers differ; the first ones are:\n%s", len(differences), asked, examples)
		}
		h.Logf("%s: %d answers compared", when, asked)
		return nil
	})
}

// compare asks every Nth question, from the given one on.
func (s *settled) compare(ctx context.Context, m *restmapper.Mapper, first int) (asked int, differences []string) {
	groups := must(clientgo.GetAPIGroupResourcesWithContext(ctx, s))
	want := clientgo.NewShortcutExpanderWithContext(clientgo.NewDiscoveryRESTMapperWithContext(groups), s, nil)
	categories := clientgo.NewDiscoveryCategoryExpanderWithContext(s)
	check := func(what string, question, got, answer any, gotErr, wantErr error) {
		asked++
		if !sameErrors(gotErr, wantErr) || wantErr == nil && !reflect.DeepEqual(got, answer) {
			differences = append(differences, fmt.Sprintf("%s %v\n\tgot  %v, %v\n\twant %v, %v",
				what, question, got, gotErr, answer, wantErr))
		}
	}
	resources, kinds, names := s.questions()
	for i := first; i < len(resources); i += *every {
		r := resources[i]
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
	for i := first; i < len(kinds); i += *every {
		k := kinds[i]
		got, err := m.RESTMapping(k.kind, k.versions...)
		wantMapping, wantErr := want.RESTMappingWithContext(ctx, k.kind, k.versions...)
		check("RESTMapping", k, got, wantMapping, err, wantErr)
		gotAll, err := m.RESTMappings(k.kind, k.versions...)
		wantAll, wantErr := want.RESTMappingsWithContext(ctx, k.kind, k.versions...)
		check("RESTMappings", k, gotAll, wantAll, err, wantErr)
	}
	for i := first; i < len(names); i += *every {
		name := names[i]
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

// questions returns lookups for every name in discovery. Some lookups omit fields, and some contain wrong values.
func (s *settled) questions() (resources []schema.GroupVersionResource, kinds []kindQuestion, names []string) {
	for _, list := range s.resources {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			panic(err)
		}
		for _, r := range list.APIResources {
			own := append([]string{
				r.Name, r.SingularName, strings.ToUpper(r.Name), strings.ToLower(r.Kind) + "list", "nosuch",
			}, r.ShortNames...)
			for _, name := range own {
				resources = append(resources, resourceQuestions(gv, name)...)
			}
			names = append(names, own...)
			kinds = append(kinds, kindQuestions(gv, r.Kind)...)
		}
	}
	return unique(resources), unique(kinds), unique(names)
}

func resourceQuestions(gv schema.GroupVersion, name string) []schema.GroupVersionResource {
	prefix, _, _ := strings.Cut(gv.Group, ".")
	return []schema.GroupVersionResource{
		{Group: gv.Group, Version: gv.Version, Resource: name},
		{Group: gv.Group, Resource: name},
		{Version: gv.Version, Resource: name},
		{Resource: name},
		{Group: prefix, Resource: name},
		{Group: prefix, Version: gv.Version, Resource: name},
		{Group: gv.Group, Version: "nosuch", Resource: name},
	}
}

func kindQuestions(gv schema.GroupVersion, kind string) (questions []kindQuestion) {
	for _, kind := range []string{kind, strings.ToLower(kind), kind + "List", "List", "NoSuch"} {
		for _, versions := range [][]string{nil, {gv.Version}, {"nosuch"}, {"nosuch", "v1", gv.Version}, {"", "v2"}} {
			questions = append(questions, kindQuestion{schema.GroupKind{Group: gv.Group, Kind: kind}, versions})
		}
	}
	return questions
}

// unique removes repeated questions.
func unique[T any](questions []T) []T {
	asked := sets.New[string]()
	return slices.DeleteFunc(questions, func(question T) bool {
		key := fmt.Sprint(question)
		repeated := asked.Has(key)
		asked.Insert(key)
		return repeated
	})
}

func sameErrors(a, b error) bool {
	var aKind, bKind *meta.NoKindMatchError
	if errors.As(a, &aKind) && errors.As(b, &bKind) {
		return aKind.GroupKind == bKind.GroupKind && slices.Equal(aKind.SearchedVersions, bKind.SearchedVersions)
	}
	return (a == nil) == (b == nil) && meta.IsNoMatchError(a) == meta.IsNoMatchError(b) &&
		meta.IsAmbiguousError(a) == meta.IsAmbiguousError(b)
}
