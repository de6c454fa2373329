package children

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/internal/fakeserver"
	"github.com/dynamic-controller/engine/handlers/internal/live"
)

func TestNew_RejectsInvalidConfig(t *testing.T) {
	server, mapper := newFakeServer(), fakeserver.NewMapper()
	for field, config := range map[string]Config{
		"Config.Client":       {Mapper: mapper, Name: "a.b"},
		"Config.Mapper":       {Client: server, Name: "a.b"},
		"Config.Name \"\"":    {Client: server, Mapper: mapper},
		"Config.Name \"A/b\"": {Client: server, Mapper: mapper, Name: "A/b"},
		"at most 100":         {Client: server, Mapper: mapper, Name: strings.Repeat("a", maxNameLength+1)},
		"Config.Kinds[0]":     {Client: server, Mapper: mapper, Name: "a.b", Kinds: []Kind{{}}},
	} {
		if _, err := New(config); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: got %v", field, err)
		}
	}
	_, err := New(Config{Kinds: []Kind{{}, {}}})
	for _, field := range []string{"Client", "Mapper", "Name", "Kinds[0]", "Kinds[1]"} {
		if err == nil || !strings.Contains(err.Error(), "Config."+field) {
			t.Errorf("the error for all fields does not contain %s: %v", field, err)
		}
	}
}

func TestNew_DuplicateKindCanCrossNamespacesIfOneEntryCan(t *testing.T) {
	server := newFakeServer(newWidget())
	kind := schema.GroupKind{Kind: "ConfigMap"}
	reconciler := newReconciler(t, Config{
		Client: server, Kinds: []Kind{{GroupKind: kind, CrossNamespace: true}, {GroupKind: kind}},
	})
	child := newConfigMap("a", "x")
	child.SetNamespace("other")
	result, err := reconciler.Reconcile(t.Context(), first, newWidget(), oneStage(child))
	children := result.Existing()
	if err != nil || len(children) != 1 || children[0].GetNamespace() != "other" {
		t.Errorf("got the children %v and the error %v", children, err)
	}
}

func TestReconcile_RecordsKindsInOneWriteBeforeTheirFirstChildren(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler := newReconciler(t, Config{Client: server})
	parent := newWidget()
	for step, c := range []struct {
		desired Desired
		writes  []string
	}{
		{
			oneStage(newConfigMap("a", "x"), newConfigMap("b", "x")),
			[]string{"patch widgets first", "apply configmaps a", "apply configmaps b"},
		},
		{oneStage(newConfigMap("a", "x"), newConfigMap("b", "x")), nil},
		{oneStage(newConfigMap("a", "y"), newConfigMap("b", "x")), []string{"apply configmaps a"}},
		{Desired{Stages: oneStage(newConfigMap("a", "y")).Stages, Partial: true}, nil},
		{oneStage(newConfigMap("a", "y")), []string{"delete configmaps b"}},
		{oneStage(), []string{"delete configmaps a"}},
		{oneStage(), []string{"patch widgets first"}},
		{oneStage(), nil},
	} {
		_, err := reconciler.Reconcile(t.Context(), first, parent, c.desired)
		failUnlessRequeued(t, err)
		if writes := server.TakeWrites(); !slices.Equal(writes, c.writes) {
			t.Fatalf("step %d: wrote %q, want %q", step, writes, c.writes)
		}
	}
}

func TestReconcile_RecordsTheKindsOfLaterCalls(t *testing.T) {
	server := newFakeServer(newWidget())
	parent := newWidget()
	configMap, widget := newObject("v1", "ConfigMap", "", "").GroupVersionKind(), newWidget().GroupVersionKind()
	kinds := []schema.GroupVersionKind{configMap, widget, widget.GroupVersion().WithKind("Unknown")}
	reconciler := newReconciler(t, Config{
		Client: server, Kinds: []Kind{configMapKind, widgetKind, {GroupKind: kinds[2].GroupKind()}},
	})
	a, b := newConfigMap("a", "x"), newObject("example.com/v1", "Widget", "", "b")
	const both = "ConfigMap=v1/configmaps:0,Widget.example.com=v1/widgets:0"
	for _, step := range []struct {
		name      string
		desired   Desired
		writes    []string
		inventory string
	}{
		{
			"the first of several kinds", Desired{Stages: oneStage(a).Stages, Partial: true, Kinds: kinds},
			[]string{"patch widgets first", "apply configmaps a"}, both,
		},
		{"the second kind", Desired{Stages: oneStage(a, b).Stages, Kinds: kinds}, []string{"apply widgets b"}, both},
		{"one child fewer", Desired{Stages: oneStage(a).Stages, Kinds: kinds}, []string{"delete widgets b"}, both},
		{"a kind without children", Desired{Stages: oneStage(a).Stages, Kinds: kinds}, nil, both},
		{
			"a kind that is no longer in Kinds", Desired{Stages: oneStage(a).Stages, Kinds: kinds[:1]},
			[]string{"patch widgets first"}, "ConfigMap=v1/configmaps:0",
		},
		{"only Kinds", Desired{Kinds: kinds}, []string{"patch widgets first", "delete configmaps a"}, both},
		{"nothing", Desired{}, []string{"patch widgets first"}, ""},
	} {
		if _, err := reconciler.Reconcile(t.Context(), first, parent, step.desired); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if writes := server.TakeWrites(); !slices.Equal(writes, step.writes) {
			t.Errorf("%s: wrote %q, want %q", step.name, writes, step.writes)
		}
		if got := parent.GetAnnotations()[reconciler.names.Inventory()]; got != step.inventory {
			t.Errorf("%s: the inventory is %q, want %q", step.name, got, step.inventory)
		}
	}
}

// A failed lookup does not mean that the kind is unknown.
func TestReconcile_ReturnsMapperFailure(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler := newReconciler(t, Config{Client: server})
	reconciler.config.Mapper = failingMapper{reconciler.config.Mapper}
	desired := Desired{Kinds: []schema.GroupVersionKind{newWidget().GroupVersionKind()}}
	_, err := reconciler.Reconcile(t.Context(), first, newWidget(), desired)
	if err == nil || !strings.Contains(err.Error(), "find the resource for Widget.example.com") {
		t.Errorf("got %v", err)
	}
	if writes := server.TakeWrites(); len(writes) > 0 {
		t.Errorf("wrote %q", writes)
	}
}

type failingMapper struct{ meta.RESTMapper }

func (failingMapper) RESTMapping(schema.GroupKind, ...string) (*meta.RESTMapping, error) {
	return nil, errors.New("discovery failed")
}

// undiscoveredMapper returns the error of restmapper.Mapper for a group whose discovery fails. It lacks the kinds of
// example.com, or all kinds if it has no other mapper.
type undiscoveredMapper struct{ meta.RESTMapper }

func (m undiscoveredMapper) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if m.RESTMapper != nil && gk.Group != "example.com" {
		return m.RESTMapper.RESTMapping(gk, versions...)
	}
	return nil, fmt.Errorf("no matches for %s: %w", gk, &discovery.ErrGroupDiscoveryFailed{
		Groups: map[schema.GroupVersion]error{{Group: gk.Group, Version: "v1"}: errors.New("unavailable")},
	})
}

// Nothing is pruned while the discovery fails, because the kind can exist.
func TestReconcile_FailedDiscoveryAffectsOnlyTheChildrenInTheGroup(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
	if _, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(newConfigMap("old", "x"))); err != nil {
		t.Fatal(err)
	}
	mapper := reconciler.config.Mapper
	reconciler.config.Mapper = undiscoveredMapper{mapper}
	server.TakeWrites()
	desired := oneStage(newObject("example.com/v1", "Widget", "", "undiscovered"), newConfigMap("new", "x"))
	desired.Kinds = []schema.GroupVersionKind{newWidget().GroupVersionKind()}
	desired.Absent = []*unstructured.Unstructured{newObject("example.com/v1", "Widget", "", "absent")}
	result, err := reconciler.Reconcile(t.Context(), first, parent, desired)
	if groups, _ := discovery.GroupDiscoveryFailedErrorGroups(err); len(groups) != 1 {
		t.Errorf("got error %v", err)
	}
	if want := []string{"apply configmaps new"}; !slices.Equal(server.TakeWrites(), want) {
		t.Errorf("wrote other than %q", want)
	}
	var outcomes []string
	for _, child := range result.Children {
		outcomes = append(outcomes, fmt.Sprint(child.NamespacedKey, " ", child.Outcome, " ", child.Reason))
	}
	if want := []string{"undiscovered Failed RequestFailed", "default/new Created "}; !slices.Equal(outcomes, want) {
		t.Errorf("got %q, want %q", outcomes, want)
	}
	reconciler.config.Mapper = mapper
	_, err = reconciler.Reconcile(t.Context(), first, parent, desired)
	failUnlessRequeued(t, err)
	if writes := server.TakeWrites(); !slices.Contains(writes, "apply widgets undiscovered") ||
		!slices.Contains(writes, "delete configmaps old") {
		t.Errorf("wrote %q", writes)
	}
}

func TestReconcile_InvalidChildrenAreRejectedBeforeAnyWrite(t *testing.T) {
	server := newFakeServer(newWidget())
	kinds := []Kind{configMapKind, namespaceKind, widgetKind}
	reconciler := newReconciler(t, Config{Client: server, Kinds: kinds})
	valid := newConfigMap("valid", "x")
	numbered := newConfigMap("numbered", "x")
	if err := unstructured.SetNestedField(numbered.Object, int64(1), "metadata", "labels", "version"); err != nil {
		t.Fatal(err)
	}
	itself := newObject("example.com/v1", "Widget", "", "first")
	for reason, child := range map[string]*unstructured.Unstructured{
		"must have a name": newConfigMap("", "x"),
		"cluster-scoped":   newObject("v1", "Namespace", "somewhere", "placed"),
		"desired twice":    valid,
		"map of strings":   numbered,
		"parent itself":    itself,
	} {
		_, err := reconciler.Reconcile(t.Context(), first, newWidget(), oneStage(valid, child))
		if err == nil || !strings.Contains(err.Error(), reason) || !strings.Contains(err.Error(), child.GetName()) {
			t.Errorf("%s: got %v", reason, err)
		}
	}
	if writes := server.TakeWrites(); len(writes) > 0 {
		t.Errorf("wrote %q", writes)
	}
}

// The other children in the stage are applied. Later stages are not applied, and nothing is pruned.
func TestReconcile_FailedChildDoesNotAffectItsStage(t *testing.T) {
	server := newFakeServer(newWidget(), newObject("v1", "ConfigMap", "default", "unowned"))
	reconciler := newReconciler(t, Config{Client: server})
	parent := newWidget()
	if _, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(newConfigMap("old", "x"))); err != nil {
		t.Fatal(err)
	}
	server.TakeWrites()
	result, err := reconciler.Reconcile(t.Context(), first, parent, Desired{Stages: [][]Child{
		Stage(newConfigMap("unowned", "x"), newConfigMap("new", "x")), Stage(newConfigMap("later", "x")),
	}})
	existing := result.Existing()
	if !errors.Is(err, ErrNotOwned) ||
		!strings.HasPrefix(err.Error(), "child configmaps.v1 default/unowned of widgets.v1.example.com ") {
		t.Errorf("got %v", err)
	}
	if len(existing) != 1 || existing[0].GetName() != "new" {
		t.Errorf("returned %v", existing)
	}
	var outcomes []string
	for _, child := range result.Children {
		outcomes = append(outcomes, fmt.Sprint(child.NamespacedKey, child.Outcome, child.Reason))
	}
	if want := []string{
		"default/unownedConflictAdoptionNotEnabled", "default/newCreated", "default/laterWaitingEarlierStage",
	}; !slices.Equal(outcomes, want) {
		t.Errorf("the outcomes are %q, want %q", outcomes, want)
	}
	if writes := server.TakeWrites(); !slices.Equal(writes, []string{"patch widgets first", "apply configmaps new"}) {
		t.Errorf("wrote %q", writes)
	}
}

// A copy of a child in another namespace has the same labels and annotations.
func TestReconcile_IgnoresCopiesOfChildren(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
	desired := oneStage(newRemoteConfigMap("a"), newConfigMap("b", "x"))
	result, err := reconciler.Reconcile(t.Context(), first, parent, desired)
	originals := result.Existing()
	if err != nil {
		t.Fatal(err)
	}
	for _, original := range originals {
		duplicate := original.DeepCopy()
		duplicate.SetNamespace("backup")
		duplicate.SetUID("")
		duplicate.SetResourceVersion("")
		duplicate.SetManagedFields(nil)
		options := metav1.CreateOptions{FieldManager: "backup"}
		if _, err := server.Resource(configMaps).Namespace("backup").Create(t.Context(), duplicate, options); err != nil {
			t.Fatal(err)
		}
	}
	want := func(when string, want ...string) {
		t.Helper()
		objects, err := handlers.Live(server).List(t.Context(), configMaps, "", labels.Everything())
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, object := range objects {
			names = append(names, object.GetNamespace()+"/"+object.GetName())
		}
		if slices.Sort(names); !slices.Equal(names, want) {
			t.Errorf("%s: got %q, want %q", when, names, want)
		}
	}
	if _, err := reconciler.Reconcile(t.Context(), first, parent, desired); err != nil {
		t.Error(err)
	}
	const witness = "default/" + witnessName
	want("after a reconcile", "backup/a", "backup/b", "default/b", witness, "other/a")
	now := metav1.Now()
	parent.SetDeletionTimestamp(&now)
	for range 2 {
		_, err := reconciler.Reconcile(t.Context(), first, parent, Desired{})
		failUnlessRequeued(t, err)
	}
	want("after the cleanup", "backup/a", "backup/b", witness)
}

// Nothing is pruned while a kind is unknown.
func TestReconcile_EarlierStageCanDefineKind(t *testing.T) {
	server := newFakeServer(newWidget())
	reconciler, parent := newReconciler(t, Config{Client: server}), newWidget()
	if _, err := reconciler.Reconcile(t.Context(), first, parent, oneStage(newConfigMap("old", "x"))); err != nil {
		t.Fatal(err)
	}
	lagging, mapper := meta.NewDefaultRESTMapper(nil), reconciler.config.Mapper
	lagging.Add(configMaps.GroupVersion().WithKind("ConfigMap"), meta.RESTScopeNamespace)
	reconciler.config.Mapper = lagging
	server.TakeWrites()
	desired := Desired{Stages: [][]Child{
		Stage(newConfigMap("definition", "x")),
		Stage(newObject("example.com/v1", "Widget", "", "defined")),
		Stage(newConfigMap("later", "x")),
	}}
	_, err := reconciler.Reconcile(t.Context(), first, parent, desired)
	if err == nil || !strings.Contains(err.Error(), "Widget.example.com defined") {
		t.Errorf("got %v", err)
	}
	want := []string{"patch widgets first", "apply configmaps definition"}
	if writes := server.TakeWrites(); !slices.Equal(writes, want) {
		t.Errorf("wrote %q", writes)
	}
	reconciler.config.Mapper = mapper
	if _, err := reconciler.Reconcile(t.Context(), first, parent, desired); err != nil {
		t.Error(err)
	}
	want = []string{
		"patch widgets first", "apply widgets defined", "apply configmaps later", "delete configmaps old",
	}
	if writes := server.TakeWrites(); !slices.Equal(writes, want) {
		t.Errorf("wrote %q, want %q", writes, want)
	}
}

// The namespaces also restrict lists for cluster-scoped parents, but not lists of cluster-scoped kinds.
func TestReconcile_ListsEachNamespace(t *testing.T) {
	clusterScoped := newObject("v1", "Namespace", "", "first")
	clusterScoped.SetUID("namespace-uid")
	clusterScoped.SetResourceVersion("1")
	for name, parent := range map[string]*unstructured.Unstructured{
		"cluster-scoped parent": clusterScoped, "namespaced parent": newWidget(),
	} {
		t.Run(name, func(t *testing.T) {
			server, id := newFakeServer(parent), live.Identify(namespaces, parent)
			if parent.GetNamespace() != "" {
				id = first
			}
			reconciler := newReconciler(t, Config{
				Client: server, Namespaces: []string{"default", "far"},
				Kinds: []Kind{
					{GroupKind: configMapKind.GroupKind, CrossNamespace: true},
					{GroupKind: schema.GroupKind{Kind: "Namespace"}, CrossNamespace: true},
				},
			})
			desired := oneStage(inNamespace("far", "a"), inNamespace("default", "b"), newObject("v1", "Namespace", "", "c"))
			if _, err := reconciler.Reconcile(t.Context(), id, parent, desired); err != nil {
				t.Fatal(err)
			}
			server.TakeWrites()
			before := len(server.Actions())
			_, err := reconciler.Reconcile(t.Context(), id, parent, oneStage())
			failUnlessRequeued(t, err)
			want := []string{"delete configmaps b", "delete configmaps a", "delete namespaces c"}
			if writes := server.TakeWrites(); !slices.Equal(writes, want) {
				t.Errorf("wrote %q, want %q", writes, want)
			}
			var lists []string
			for _, action := range server.Actions()[before:] {
				if action.GetVerb() == "list" {
					lists = append(lists, action.GetResource().Resource+" "+action.GetNamespace())
				}
			}
			if want := []string{"configmaps default", "configmaps far", "namespaces "}; !slices.Equal(lists, want) {
				t.Errorf("sent the requests %q, want %q", lists, want)
			}
		})
	}
}
