package desire

import (
	"errors"
	"slices"
	"testing"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testNames decide.Names = "platform.example.com"

var (
	widgets       = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	widgetKind    = schema.GroupKind{Group: "example.com", Kind: "Widget"}
	configMapKind = schema.GroupKind{Kind: "ConfigMap"}
	namespaceKind = schema.GroupKind{Kind: "Namespace"}

	errLookup       = errors.New("the lookup failed")
	errUndiscovered = errors.New("the discovery of the group fails")
)

// testMapper maps the kinds of the tests.
type testMapper struct {
	*meta.DefaultRESTMapper
	verbs    map[string][]string // by resource; all needed verbs by default
	failures map[string]error    // by kind
}

func newMapper() *testMapper {
	m := &testMapper{
		DefaultRESTMapper: meta.NewDefaultRESTMapper(nil), verbs: map[string][]string{}, failures: map[string]error{},
	}
	for _, version := range []string{"v1", "v2"} {
		m.Add(schema.GroupVersionKind{Group: "example.com", Version: version, Kind: "Widget"}, meta.RESTScopeNamespace)
	}
	for _, kind := range []string{"ConfigMap", "Secret", "ServiceAccount", "PersistentVolumeClaim"} {
		m.Add(schema.GroupVersionKind{Version: "v1", Kind: kind}, meta.RESTScopeNamespace)
	}
	m.Add(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, meta.RESTScopeRoot)
	return m
}

func (m *testMapper) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if err := m.failures[kind.Kind]; err != nil {
		return nil, err
	}
	return m.DefaultRESTMapper.RESTMapping(kind, versions...)
}

func (m *testMapper) Verbs(resource schema.GroupVersionResource) ([]string, error) {
	if verbs, has := m.verbs[resource.Resource]; has {
		if verbs == nil {
			return nil, errLookup
		}
		return verbs, nil
	}
	return NeededVerbs, nil
}

func (m *testMapper) IsUnmapped(err error) bool {
	return meta.IsNoMatchError(err) || errors.Is(err, errUndiscovered)
}

// newInput returns the input for the children of the widget default/p. All kinds of the tests can be children, but not
// outside the namespace of the parent. The test fails if the UID of that namespace is read.
func newInput(t testing.TB, changes ...func(*Input)) Input {
	t.Helper()
	in := Input{
		Parent:   &decide.Parent{Unstructured: newObject("example.com/v1", "Widget", "default", "p"), Names: testNames},
		Resource: widgets, Bucket: "7", Kinds: map[schema.GroupKind]bool{}, Mapper: newMapper(),
		Namespace: func() (types.UID, error) {
			t.Error("the UID of the parent's namespace is not needed")
			return "", nil
		},
	}
	in.Parent.SetUID("parent")
	kinds := []string{"ConfigMap", "Secret", "ServiceAccount", "PersistentVolumeClaim", "Namespace", "Unknown"}
	for _, kind := range kinds {
		in.Kinds[schema.GroupKind{Kind: kind}] = false
	}
	in.Kinds[widgetKind] = false
	for _, change := range changes {
		change(&in)
	}
	return in
}

// crossNamespace allows children of the kinds outside the parent's namespace, whose UID is "namespace".
func crossNamespace(kinds ...schema.GroupKind) func(*Input) {
	return func(in *Input) {
		for _, kind := range kinds {
			in.Kinds[kind] = true
		}
		in.Namespace = func() (types.UID, error) { return "namespace", nil }
	}
}

// clusterScopedParent makes the parent cluster-scoped.
func clusterScopedParent(in *Input) { in.Parent.SetNamespace("") }

func newObject(apiVersion, kind, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
	object.SetName(name)
	if namespace != "" {
		object.SetNamespace(namespace)
	}
	return object
}

// configMap returns the desired config map a with changes.
func configMap(changes ...func(*Spec)) Spec {
	spec := Spec{Object: newObject("v1", "ConfigMap", "", "a")}
	spec.Object.Object["data"] = map[string]any{"key": "x"}
	for _, change := range changes {
		change(&spec)
	}
	return spec
}

// The following functions change a desired child.

func inNamespace(namespace string) func(*Spec) {
	return func(s *Spec) { s.Object.SetNamespace(namespace) }
}

func named(name string) func(*Spec) { return func(s *Spec) { s.Object.SetName(name) } }

func annotated(key, value string) func(*Spec) {
	return func(s *Spec) { setAnnotation(s.Object, key, value) }
}

func valued(value string) func(*Spec) {
	return func(s *Spec) { s.Object.Object["data"] = map[string]any{"key": value} }
}

func keeping(paths ...string) func(*Spec) { return func(s *Spec) { s.KeepExisting = paths } }

func retained(s *Spec) { s.Retain = true }

func recreatedOnImmutable(s *Spec) { s.OnImmutable = Recreate }

// stages returns the stages of a Desired.
func stages(all ...[]Spec) Desired { return Desired{Stages: all} }

// one returns the only child.
func one(t testing.TB, in Input, spec Spec) *Child {
	t.Helper()
	set, err := New(in, stages([]Spec{spec}))
	if err != nil {
		t.Fatal(err)
	}
	return set.Stages[0][0]
}

// namesOf returns the names of children.
func namesOf(children []*Child) (names []string) {
	for _, child := range children {
		names = append(names, child.Name)
	}
	return slices.Clip(names)
}
