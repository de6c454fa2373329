package desire

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestDecoded_ConvertsValues(t *testing.T) {
	written := func() Spec {
		return configMap(func(s *Spec) { s.Object.Object["data"] = map[string]string{"key": "x"} })
	}
	spec := written()
	spec.Retain = true
	kinds := []schema.GroupVersionKind{configMapKind.WithVersion("v1")}
	desired := Desired{
		Stages: [][]Spec{nil, {spec}}, Absent: []*unstructured.Unstructured{written().Object}, Kinds: kinds,
	}
	got, err := desired.Decoded()
	if err != nil {
		t.Fatal(err)
	}
	want := configMap(retained)
	if d := cmp.Diff(Desired{
		Stages: [][]Spec{nil, {want}}, Absent: []*unstructured.Unstructured{want.Object}, Kinds: kinds,
	}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if d := cmp.Diff(written().Object, spec.Object); d != "" {
		t.Errorf("the caller's object has been changed: %s", d)
	}
}

// Invalid objects are left out, so that the others can be used while the parent is being deleted.
func TestDecoded_LeavesOutInvalidObjects(t *testing.T) {
	invalid := func(s *Spec) { s.Object.Object["data"] = map[string]any{"token": func() {}} }
	secret := newObject("v1", "Secret", "", "s")
	secret.Object["data"] = map[string]any{"token": func() {}}
	got, err := Desired{
		Stages: [][]Spec{{configMap(invalid), configMap(named("b"))}, {{Object: secret}, {}}},
		Absent: []*unstructured.Unstructured{nil, configMap(invalid).Object, configMap().Object},
	}.Decoded()
	want := "stage 0, child 0: ConfigMap a: data.token: must have a type that JSON can represent, but is a func()\n" +
		"stage 1, child 0: Secret s: data: must have values that JSON can represent\n" +
		"stage 1, child 1: must have an object\n" +
		"absent object 0: must have an object\n" +
		"absent object 1: ConfigMap a: data.token: must have a type that JSON can represent, but is a func()"
	if err == nil || err.Error() != want || !errors.Is(err, errNoObject) {
		t.Errorf("got %v, want %s", err, want)
	}
	if d := cmp.Diff(Desired{
		Stages: [][]Spec{{configMap(named("b"))}, nil}, Absent: []*unstructured.Unstructured{configMap().Object},
	}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
