package published

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/openapi/openapitest"
)

func ExampleSchemas_For() {
	// In place of openapi.NewClientWithContext.
	s := New(addressed{openapi.ToClientWithContext(openapitest.NewEmbeddedFileClient())})
	described, _, err := s.For(context.Background(), schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"})
	if err != nil {
		fmt.Println(err)
		return
	}
	spec := described.Properties()["spec"]
	fmt.Println(spec.Properties()["replicas"].Type())
	container := spec.Properties()["template"].Properties()["spec"].Properties()["containers"].Items()
	fmt.Println(container.Properties()["ports"].XListMapKeys())
	// Output:
	// integer
	// [containerPort protocol]
}

// addressed gives documents addresses: those of files have none.
type addressed struct{ openapi.ClientWithContext }

func (a addressed) PathsWithContext(ctx context.Context) (map[string]openapi.GroupVersionWithContext, error) {
	paths, err := a.ClientWithContext.PathsWithContext(ctx)
	for path, gv := range paths {
		paths[path] = address{gv, path}
	}
	return paths, err
}

type address struct {
	openapi.GroupVersionWithContext
	path string
}

func (a address) ServerRelativeURL() string { return a.path }

const odd = `{"components": {"schemas": {
	"a.Kind": {
		"type": "object", "x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "Pod"}],
		"properties": {
			"self": {"$ref": "#/components/schemas/a.Kind"},
			"list": {"type": "array", "items": {"$ref": "#/components/schemas/a.Kind"}},
			"wrapped": {"allOf": [{"$ref": "#/components/schemas/b.Other"}], "default": {}, "description": "x"},
			"missing": {"$ref": "#/components/schemas/c.Missing"},
			"quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
			"either": {"oneOf": [{"type": "string"}, {"type": "object"}]},
			"both": {"type": "object", "allOf": [{"type": "object"}, {"type": "object"}]},
			"strings": {"type": "object", "additionalProperties": {"type": "string", "default": ""}},
			"anything": {"type": "object", "additionalProperties": true},
			"closed": {"type": "object", "additionalProperties": false},
			"old": {"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.api.resource.Quantity"},
			"raw": {"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.runtime.RawExtension"},
			"null": null,
			"types": {"type": ["string", "null"]}
		}},
	"b.Other": {"type": "object", "properties": {"back": {"$ref": "#/components/schemas/a.Kind"}, "word": {"type": "string", "enum": ["x"]}}},
	"c.One": {"type": "object", "properties": {"a": {}}, "x-kubernetes-group-version-kind": [{"version": "v1", "kind": "Two"}]},
	"c.Two": {"type": "object", "properties": {"b": {}}, "x-kubernetes-group-version-kind": [{"version": "v1", "kind": "Two"}]},
	"io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": "string"},
	"io.k8s.apimachinery.pkg.runtime.RawExtension": {"type": "object"}
}}}`

func TestDocument(t *testing.T) {
	d, err := read("", []byte(odd))
	if err != nil {
		t.Fatal(err)
	}
	fields := d.kinds[pod].Properties()
	for _, open := range []string{"self", "missing", "either", "both", "raw", "types"} {
		if s := fields[open]; s.Type() != "" || s.Properties() != nil || s.IsXIntOrString() {
			t.Errorf("%s is described: %q", open, s.Type())
		}
	}
	if s := fields["null"]; s != nil {
		t.Errorf("what is null is described: %v", s)
	}
	if s := fields["list"]; s.Type() != "array" || s.Items() == nil || s.Items().Type() != "" {
		t.Errorf("a list of what it is in is of %v", s.Items())
	}
	for _, quantity := range []string{"quantity", "old"} {
		if !fields[quantity].IsXIntOrString() {
			t.Errorf("%s is no number that may be a string", quantity)
		}
	}
	if two := d.kinds[pod.GroupVersion().WithKind("Two")]; two != nil {
		t.Errorf("what is described twice is %v", two.Properties())
	}
	other := fields["wrapped"]
	if word := other.Properties()["word"]; word.Type() != "string" || !slices.Equal(word.Enum(), []any{"x"}) || other.Default() == nil {
		t.Errorf("what is referred to is %v, with the default %v", word.Type(), other.Default())
	}
	if back := other.Properties()["back"]; back.Type() != "" {
		t.Errorf("within itself it is a %s", back.Type())
	}
	if v := fields["strings"].AdditionalProperties(); v == nil || v.Schema().Type() != "string" || v.Schema().Default() != "" {
		t.Errorf("values are %v", v)
	}
	if v := fields["anything"].AdditionalProperties(); v == nil || v.Schema() != nil || !v.Allows() {
		t.Errorf("any values are %v", v)
	}
	if v := fields["closed"].AdditionalProperties(); v != nil {
		t.Errorf("no values are %v", v)
	}
}

// What refers to itself many times over is not unfolded.
func TestDocument_thatRefersToItself(t *testing.T) {
	var text strings.Builder
	text.WriteString(`{"components": {"schemas": {`)
	for i := range 40 {
		text.WriteString(strings.ReplaceAll(`"d.N": {"type": "object", "properties": {`, "N", fmt.Sprint(i)))
		for j := range 40 {
			fmt.Fprintf(&text, `"f%d": {"$ref": "#/components/schemas/d.%d"}, `, j, j)
		}
		fmt.Fprintf(&text, `"end": {"type": "string"}}, "x-kubernetes-group-version-kind": [{"version": "v1", "kind": "Pod%d"}]}, `, i)
	}
	text.WriteString(`"end": {}}}}`)
	d, err := read("", []byte(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	depth, at := 0, d.kinds[pod.GroupVersion().WithKind("Pod0")].Properties()
	for i := range 40 {
		for j := range 40 {
			if next := at[fmt.Sprint("f", (i*7+j)%40)].Properties(); next != nil {
				depth, at = depth+1, next
				break
			}
		}
	}
	if depth != 39 {
		t.Errorf("it goes down %d definitions", depth)
	}
}
