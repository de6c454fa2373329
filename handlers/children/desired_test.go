package children

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/dynamic-controller/engine/handlers/children/internal/desire"
	"github.com/dynamic-controller/engine/handlers/internal/fakeserver"
)

// All options of children reach package desire.
func TestDesired_Conversion(t *testing.T) {
	a, b := newConfigMap("a", "x"), newConfigMap("b", "x")
	kinds := []schema.GroupVersionKind{widgetKind.WithVersion("v1")}
	got := Desired{
		Stages: [][]Child{
			{{Object: a, Retain: true}, {Object: b, Adopt: true, OnImmutable: OnImmutableRecreate}},
			nil,
			{{Object: a, KeepExisting: []KeptField{{Path: "data.key", Reason: "test"}, {Path: WholeObject}}}},
		},
		Partial: true, Absent: []*unstructured.Unstructured{b}, Kinds: kinds,
	}.desire()
	want := desire.Desired{
		Stages: [][]desire.Spec{
			{{Object: a, Retain: true}, {Object: b, Adopt: true, OnImmutable: desire.Recreate}},
			{},
			{{Object: a, KeepExisting: []string{"data.key", "*"}}},
		},
		Absent: []*unstructured.Unstructured{b}, Kinds: kinds,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Messages of package decide name a child like all other messages.
func TestCall_NewDesiredSet_IdentifiesChildren(t *testing.T) {
	r := newReconciler(t, Config{Client: newFakeServer()})
	unknown := newObject("v1", "Unknown", "", "c")
	r.kinds[schema.GroupKind{Kind: "Unknown"}] = true
	c := callFor(t, r, newWidget())
	desired := oneStage(newConfigMap("a", "x"), newObject("example.com/v1", "Widget", "default", "b"), unknown)
	set, err := c.newDesiredSet(desired.desire())
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for child := range set.all() {
		if ids = append(ids, child.id.String()); child.desired != nil && child.desired.ID != child.id.String() {
			t.Errorf("got the ID %s, want %s", child.desired.ID, child.id)
		}
		if child.known == nil || child.result.ObjectIdentifiers != child.id || child.result.Kind != child.kind {
			t.Errorf("got %+v", child)
		}
	}
	if want := []string{"configmaps.v1 default/a", "widgets.v1.example.com default/b", ". c"}; !slices.Equal(ids, want) {
		t.Errorf("got %q, want %q", ids, want)
	}
}

func TestMapper(t *testing.T) {
	m := mapper{fakeserver.NewMapper()}
	if verbs, err := m.Verbs(configMaps); err != nil || !slices.Equal(verbs, desire.NeededVerbs) {
		t.Errorf("without the method Verbs: got %q, %v", verbs, err)
	}
	m = mapper{verbsOf{m.RESTMapper, []string{"get"}}}
	if verbs, err := m.Verbs(configMaps); err != nil || !slices.Equal(verbs, []string{"get"}) {
		t.Errorf("with the method Verbs: got %q, %v", verbs, err)
	}
	_, unknown := m.RESTMapping(schema.GroupKind{Kind: "Unknown"})
	undiscovered := &discovery.ErrGroupDiscoveryFailed{}
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false}, {errors.New("test"), false}, {unknown, true}, {undiscovered, true},
		{errors.Join(errors.New("test"), &meta.NoKindMatchError{}), true},
	} {
		if got := m.IsUnmapped(test.err); got != test.want {
			t.Errorf("%v: got %t", test.err, got)
		}
	}
}
