package children

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A child that is recreated would lose the values that it keeps.
func TestReconcile_KeptFieldsExcludeRecreation(t *testing.T) {
	keep := []KeptField{{Path: "data.key"}}
	for name, test := range map[string]struct {
		keep        []KeptField
		onImmutable OnImmutable
		value       string // after a change of the desired child, or empty if it is invalid
	}{
		"kept, and recreated":     {keep, OnImmutableRecreate, ""},
		"kept, and not recreated": {keep, OnImmutableFail, "one"},
		"kept by default":         {keep, "", "one"},
		"recreated, and not kept": {nil, OnImmutableRecreate, "two"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newReconciling(t, newWidget())
			for _, value := range []string{"one", "two"} {
				child := Child{Object: newConfigMap("a", value), KeepExisting: test.keep, OnImmutable: test.onImmutable}
				_, err := s.reconciler.Reconcile(t.Context(), first, s.parent, Desired{Stages: [][]Child{{child}}})
				if isInvalid := err != nil && strings.Contains(err.Error(), "KeepExisting"); isInvalid != (test.value == "") {
					t.Errorf("with value %s: got error %v", value, err)
				}
			}
			if test.value == "" {
				if writes := s.TakeWrites(); len(writes) > 0 {
					t.Errorf("wrote %q", writes)
				}
				return
			}
			got, _, _ := unstructured.NestedString(getConfigMap(t, s.Server, "default", "a").Object, "data", "key")
			if got != test.value {
				t.Errorf("the value is %q, want %q", got, test.value)
			}
		})
	}
}
