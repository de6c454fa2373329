package handlers

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func stages(children ...*unstructured.Unstructured) Desired {
	return Desired{Stages: [][]*unstructured.Unstructured{children}}
}

func newChildren(t *testing.T, config ChildrenConfig) *Children {
	t.Helper()
	config.Mapper, config.Name = newMapper(), "platform.example.com"
	if config.Kinds == nil {
		config.Kinds = []ChildKind{
			{GroupKind: schema.GroupKind{Kind: "ConfigMap"}, Elsewhere: true}, {GroupKind: schema.GroupKind{Group: "example.com", Kind: "Widget"}},
		}
	}
	children, err := NewChildren(config)
	if err != nil {
		t.Fatal(err)
	}
	return children
}

// The parent is told of a kind before the first child of it is written, of all in one write, and never again.
func TestAKindIsRecordedBeforeItsFirstChild(t *testing.T) {
	server := newFakeServer(newWidget())
	children := newChildren(t, ChildrenConfig{Client: server})
	parent := newWidget()
	for _, want := range []struct {
		desired Desired
		writes  []string
	}{
		{stages(newConfigMap("a", "x"), newConfigMap("b", "x")), []string{"apply widgets first", "apply configmaps a", "apply configmaps b"}},
		{stages(newConfigMap("a", "x"), newConfigMap("b", "x")), nil},
		{stages(newConfigMap("a", "y"), newConfigMap("b", "x")), []string{"apply configmaps a"}},
		{Desired{Stages: stages(newConfigMap("a", "y")).Stages, Partial: true}, nil},
		{stages(newConfigMap("a", "y")), []string{"delete configmaps b"}},
		{stages(), []string{"delete configmaps a"}},
		{stages(), []string{"apply widgets first"}},
		{stages(), nil},
	} {
		_, err := children.Reconcile(t.Context(), first, parent, want.desired)
		if err != nil && !strings.HasPrefix(err.Error(), "requeue after") {
			t.Fatal(err)
		}
		if writes := server.took(); !slices.Equal(writes, want.writes) {
			t.Fatalf("written: %q, and not %q", writes, want.writes)
		}
	}
}

// Kinds of later calls are recorded with the first, and struck off when they are named no longer.
func TestKindsOfLaterCallsAreRecordedInOneWrite(t *testing.T) {
	server := newFakeServer(newWidget())
	children := newChildren(t, ChildrenConfig{Client: server})
	parent := newWidget()
	configMap, widget := newObject("v1", "ConfigMap", "", "").GroupVersionKind(), newWidget().GroupVersionKind()
	kinds := []schema.GroupVersionKind{configMap, widget, widget.GroupVersion().WithKind("Unknown")}
	a, b := newConfigMap("a", "x"), newObject("example.com/v1", "Widget", "", "b")
	for _, step := range []struct {
		name      string
		desired   Desired
		writes    []string
		inventory string
	}{
		{"the first of several kinds", Desired{Stages: stages(a).Stages, Partial: true, Kinds: kinds},
			[]string{"apply widgets first", "apply configmaps a"}, "ConfigMap=v1/configmaps,Widget.example.com=v1/widgets"},
		{"the next", Desired{Stages: stages(a, b).Stages, Kinds: kinds}, []string{"apply widgets b"}, "ConfigMap=v1/configmaps,Widget.example.com=v1/widgets"},
		{"one no more", Desired{Stages: stages(a).Stages, Kinds: kinds}, []string{"delete widgets b"}, "ConfigMap=v1/configmaps,Widget.example.com=v1/widgets"},
		{"none of a kind that is still named", Desired{Stages: stages(a).Stages, Kinds: kinds}, nil, "ConfigMap=v1/configmaps,Widget.example.com=v1/widgets"},
		{"the kind named no more", Desired{Stages: stages(a).Stages, Kinds: kinds[:1]}, []string{"apply widgets first"}, "ConfigMap=v1/configmaps"},
		{"nothing, with kinds that may come", Desired{Kinds: kinds}, []string{"apply widgets first", "delete configmaps a"}, "ConfigMap=v1/configmaps,Widget.example.com=v1/widgets"},
		{"nothing at all", Desired{}, []string{"apply widgets first"}, ""},
	} {
		_, err := children.Reconcile(t.Context(), first, parent, step.desired)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if writes := server.took(); !slices.Equal(writes, step.writes) {
			t.Errorf("%s: written: %q, and not %q", step.name, writes, step.writes)
		}
		if got := parent.GetAnnotations()[children.inventoryKey()]; got != step.inventory {
			t.Errorf("%s: recorded is %q, and not %q", step.name, got, step.inventory)
		}
	}
}

// A mapper that cannot tell does not say that there is no such kind.
func TestAKindThatTheMapperCannotTellIsAnError(t *testing.T) {
	server := newFakeServer(newWidget())
	children := newChildren(t, ChildrenConfig{Client: server})
	children.config.Mapper = brokenMapper{children.config.Mapper}
	_, err := children.Reconcile(t.Context(), first, newWidget(), Desired{Kinds: []schema.GroupVersionKind{newWidget().GroupVersionKind()}})
	if err == nil || !strings.Contains(err.Error(), "find the resource of Widget.example.com") {
		t.Errorf("got %v", err)
	}
	if writes := server.took(); len(writes) > 0 {
		t.Errorf("written: %q", writes)
	}
}

type brokenMapper struct{ meta.RESTMapper }

func (brokenMapper) RESTMapping(schema.GroupKind, ...string) (*meta.RESTMapping, error) {
	return nil, errors.New("discovery fails")
}

// What makes no sense is refused as a whole, before anything is written, each child by its name.
func TestWhatMakesNoSenseIsRefusedBeforeAnythingIsWritten(t *testing.T) {
	server := newFakeServer(newWidget())
	children := newChildren(t, ChildrenConfig{Client: server, Selector: labels.SelectorFromSet(labels.Set{"app": "p"})})
	labelled := newConfigMap("labelled", "x")
	labelled.SetLabels(map[string]string{"app": "p"})
	placed := newObject("v1", "Namespace", "somewhere", "placed")
	for why, child := range map[string]*unstructured.Unstructured{
		"a name":          newConfigMap("", "x"),
		"cluster-scoped":  placed,
		"do not match":    newConfigMap("unlabelled", "x"),
		"wanted twice":    labelled,
		"not all strings": withNumber(labelled.DeepCopy()),
		"parent itself":   withLabels(newObject("example.com/v1", "Widget", "", "first"), map[string]string{"app": "p"}),
	} {
		_, err := children.Reconcile(t.Context(), first, newWidget(), stages(labelled, child))
		if err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), child.GetName()) {
			t.Errorf("%s: %v", why, err)
		}
	}
	if writes := server.took(); len(writes) > 0 {
		t.Errorf("written: %q", writes)
	}
}

// withNumber has a label that is no string, as a template may make it.
func withNumber(object *unstructured.Unstructured) *unstructured.Unstructured {
	object.SetName("numbered")
	if err := unstructured.SetNestedField(object.Object, int64(1), "metadata", "labels", "version"); err != nil {
		panic(err)
	}
	return object
}

func withLabels(object *unstructured.Unstructured, labels map[string]string) *unstructured.Unstructured {
	object.SetLabels(labels)
	return object
}

// One child that fails keeps neither the others of its stage from being made nor its error from being told; the next
// stage and the pruning wait.
func TestAFailingChildHidesNoOther(t *testing.T) {
	theirs := newObject("v1", "ConfigMap", "default", "theirs")
	server := newFakeServer(newWidget(), theirs)
	children := newChildren(t, ChildrenConfig{Client: server})
	parent := newWidget()
	_, err := children.Reconcile(t.Context(), first, parent, stages(newConfigMap("old", "x")))
	if err != nil {
		t.Fatal(err)
	}
	server.took()
	made, err := children.Reconcile(t.Context(), first, parent, Desired{Stages: [][]*unstructured.Unstructured{
		{newConfigMap("theirs", "x"), newConfigMap("fine", "x")}, {newConfigMap("later", "x")},
	}})
	if !errors.Is(err, ErrNotOurs) || !strings.Contains(err.Error(), "default/theirs") {
		t.Errorf("got %v", err)
	}
	if len(made) != 1 || made[0].GetName() != "fine" {
		t.Errorf("made %v", made)
	}
	if writes := server.took(); !slices.Equal(writes, []string{"apply configmaps fine"}) {
		t.Errorf("written: %q", writes)
	}
}

func TestNonsenseInTheConfigIsAnError(t *testing.T) {
	server := newFakeServer()
	for name, config := range map[string]ChildrenConfig{
		"no client":           {Mapper: newMapper(), Name: "a.b"},
		"no mapper":           {Client: server, Name: "a.b"},
		"no name":             {Client: server, Mapper: newMapper()},
		"a long name":         {Client: server, Mapper: newMapper(), Name: strings.Repeat("a", longestName+1)},
		"a name of no domain": {Client: server, Mapper: newMapper(), Name: "A/b"},
		"a kind of no name":   {Client: server, Mapper: newMapper(), Name: "a.b", Kinds: []ChildKind{{}}},
		"an empty selector":   {Client: server, Mapper: newMapper(), Name: "a.b", Selector: labels.Everything()},
	} {
		if _, err := NewChildren(config); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// A copy of a child that is far from its parent has the child's labels and annotations, and is its maker's.
func TestACopyOfAChildElsewhereIsNobodys(t *testing.T) {
	server := newFakeServer(newWidget())
	children, parent := newChildren(t, ChildrenConfig{Client: server}), newWidget()
	made, err := children.Reconcile(t.Context(), first, parent, stages(farAway("a"), newConfigMap("near", "x")))
	if err != nil {
		t.Fatal(err)
	}
	for _, original := range made {
		mine := original.DeepCopy()
		mine.SetNamespace("backup")
		mine.SetUID("")
		mine.SetResourceVersion("")
		mine.SetManagedFields(nil)
		if _, err := server.Resource(configMaps).Namespace("backup").Create(t.Context(), mine, metav1.CreateOptions{FieldManager: "backup"}); err != nil {
			t.Fatal(err)
		}
	}
	left := func() (names []string) {
		found, err := Live(server).List(t.Context(), configMaps, "", labels.Everything())
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range found {
			names = append(names, object.GetNamespace()+"/"+object.GetName())
		}
		slices.Sort(names)
		return names
	}
	if _, err := children.Reconcile(t.Context(), first, parent, stages(farAway("a"), newConfigMap("near", "x"))); err != nil {
		t.Error(err)
	}
	if names := left(); !slices.Equal(names, []string{"backup/a", "backup/near", "default/near", "far/a"}) {
		t.Errorf("after a pass there are %q", names)
	}
	now := metav1.Now()
	parent.SetDeletionTimestamp(&now)
	for range 2 {
		if _, err := children.Reconcile(t.Context(), first, parent, Desired{}); err != nil && !strings.HasPrefix(err.Error(), "requeue after") {
			t.Error(err)
		}
	}
	if names := left(); !slices.Equal(names, []string{"backup/a", "backup/near", "default/near"}) {
		t.Errorf("after the parent's end there are %q", names)
	}
}

// A kind that is not known is an error of the child, so that an earlier stage can define it. Nothing is pruned meanwhile.
func TestAnEarlierStageMayDefineAKind(t *testing.T) {
	server := newFakeServer(newWidget())
	children, parent := newChildren(t, ChildrenConfig{Client: server}), newWidget()
	if _, err := children.Reconcile(t.Context(), first, parent, stages(newConfigMap("old", "x"))); err != nil {
		t.Fatal(err)
	}
	known, mapper := meta.NewDefaultRESTMapper(nil), children.config.Mapper
	known.Add(configMaps.GroupVersion().WithKind("ConfigMap"), meta.RESTScopeNamespace)
	children.config.Mapper = known
	server.took()
	desired := Desired{Stages: [][]*unstructured.Unstructured{
		{newConfigMap("definition", "x")}, {newObject("example.com/v1", "Widget", "", "defined")}, {newConfigMap("later", "x")},
	}}
	_, err := children.Reconcile(t.Context(), first, parent, desired)
	if err == nil || !strings.Contains(err.Error(), "Widget.example.com defined") {
		t.Errorf("got %v", err)
	}
	if writes := server.took(); !slices.Equal(writes, []string{"apply configmaps definition"}) {
		t.Errorf("written: %q", writes)
	}
	children.config.Mapper = mapper
	if _, err := children.Reconcile(t.Context(), first, parent, desired); err != nil {
		t.Error(err)
	}
	if writes := server.took(); !slices.Equal(writes, []string{"apply widgets first", "apply widgets defined", "apply configmaps later", "delete configmaps old"}) {
		t.Errorf("written: %q", writes)
	}
}
