package expression

import (
	"fmt"
	"testing"

	"k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// All replicas must reject the same expressions.
func TestTypes_LimitsAreDeterministic(t *testing.T) {
	wide := func(n int, of spec.Schema) spec.Schema {
		s := spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}, Properties: map[string]spec.Schema{}}}
		for i := range n {
			s.Properties[fmt.Sprintf("f%03d", i)] = of
		}
		return s
	}
	s := wide(300, wide(200, *spec.StringProperty()))
	for range 10 {
		env, err := NewEnv(Variable{Name: "self", Schema: &openapi.Schema{Schema: &s}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := env.Compile("self.f000.other"); err == nil {
			t.Fatal("the first fields are not checked")
		}
		if _, err := env.Compile("self.f299.other"); err != nil {
			t.Fatalf("fields beyond the limit are checked: %v", err)
		}
	}
}
