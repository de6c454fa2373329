package decide

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/yaml"
)

func parsed(t *testing.T, text string) (value map[string]any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	return value
}

// A field of others that the desired child gets and loses again is undesired again. A cache without managedFields does
// not change which fields are undesired.
func TestOthersPaths_OutlastTheDesiredChild(t *testing.T) {
	a, b := fieldpath.MakePathOrDie("data", "a"), fieldpath.MakePathOrDie("data", "b")
	others := othersPaths{existing: []fieldpath.Path{a, b}}
	for _, step := range []struct {
		applied string // the fields that the Reconciler has applied, or empty for an object without managedFields
		data    string
		want    string
	}{
		{`{"f:data":{"f:a":{}}}`, `{a: x, b: x}`, "[.data.b]"},
		{"", `{a: x, b: x}`, "[.data.b]"},
		{`{"f:data":{"f:a":{},"f:b":{}}}`, `{a: x, b: x}`, "[]"},
		{`{"f:data":{"f:a":{}}}`, `{a: x, b: x}`, "[.data.b]"},
		{"", `{a: x}`, "[]"},
		{`{"f:data":{"f:a":{}}}`, `{a: x, b: x}`, "[]"}, // someone has set it again
	} {
		object := &unstructured.Unstructured{Object: map[string]any{"data": parsed(t, step.data)}}
		if step.applied != "" {
			object.SetManagedFields([]metav1.ManagedFieldsEntry{{
				Manager: "platform", Operation: metav1.ManagedFieldsOperationApply, FieldsType: "FieldsV1",
				FieldsV1: metav1.NewFieldsV1(step.applied),
			}})
		}
		others.update(object, "platform")
		if got := fmt.Sprint(others.undesired); got != step.want {
			t.Errorf("applied %s, data %s: got %s, want %s", step.applied, step.data, got, step.want)
		}
	}
}
