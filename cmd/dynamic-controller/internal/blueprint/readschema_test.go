package blueprint

import (
	"encoding/json"
	"reflect"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// Each schema is compared with each spec. The code of the API server must return the spec unchanged if, and only if, it
// can be read under the schema.
func TestReadSchema_AgreesWithTheAPIServer(t *testing.T) {
	schemas := []string{
		"{}",
		"{properties: {size: {type: integer}}}",
		"{properties: {size: {type: integer, default: 3}}}",
		"{properties: {size: {type: integer, default: 3, nullable: true}}}",
		"{properties: {size: {type: integer, nullable: true}}}",
		"{properties: {inner: {type: object, properties: {size: {type: integer, default: 3}}}}}",
		"{properties: {inner: {type: object, default: {}, properties: {size: {type: integer, default: 3}}}}}",
		"{properties: {inner: {type: object, additionalProperties: {type: integer}}}}",
		"{properties: {inner: {type: object, additionalProperties: {type: object, properties: {size: {type: integer, " +
			"default: 3}}}}}}",
		"{properties: {list: {type: array, items: {type: object, properties: {size: {type: integer, default: 3}}}}}}",
		"{properties: {list: {type: array, items: {type: object, properties: {size: {type: integer}}}}}}",
		"{properties: {list: {type: array, items: {type: integer, default: 3}}}}",
		"{x-kubernetes-preserve-unknown-fields: true}",
		"{x-kubernetes-preserve-unknown-fields: true, properties: {inner: {type: object, properties: {size: {type: " +
			"integer}}}}}",
		"{properties: {list: {x-kubernetes-preserve-unknown-fields: true}, inner: {x-kubernetes-preserve-unknown-fields: " +
			"true}}}",
		"{properties: {list: {x-kubernetes-preserve-unknown-fields: true, type: array, items: {type: object, properties: " +
			"{other: {type: string, default: x}}}}}}",
		"{properties: {inner: {type: object, x-kubernetes-embedded-resource: true, properties: {size: {type: integer}}}}}",
	}
	specs := []string{
		"{}", "{size: 3}", "{size: 5}", "{size: null}", "{inner: {}}", "{inner: {size: 3}}", "{inner: {size: null}}",
		"{inner: {other: x}}", "{inner: {a: {}}}", "{inner: {a: {size: 3}}}", "{list: []}", "{list: [{}]}",
		"{list: [{size: 3}]}", "{list: [{size: 3, other: x}]}", "{list: [1, null]}", "{list: [[{other: x}]]}", "{other: x}",
		"{inner: {apiVersion: v1, kind: X, metadata: {name: a}}}", "{inner: {metadata: {name: a}, size: 3}}",
		"{inner: {size: 3, other: {deep: 1}}}",
	}
	same := 0
	for _, schema := range schemas {
		crd := crdWithSpec(t, schema)
		s, err := readSchemaOf(crd, "")
		if err != nil || s == nil {
			t.Fatal(schema, err)
		}
		server, err := structuralOf("x", crd.Spec.Versions[0].Schema)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range specs {
			before := objectOf(t, "{apiVersion: g/v1, kind: X, spec: "+spec+"}")
			after := runtime.DeepCopyJSON(before)
			pruning.Prune(after, server, true)
			defaulting.PruneNonNullableNullsWithoutDefaults(after, server)
			defaulting.Default(after, server)
			if want := reflect.DeepEqual(before, after); s.keeps(before) != want {
				t.Errorf("schema %s: the API server reads %s as %v; got %t", schema, spec, after["spec"], !want)
			} else if want {
				same++
			}
		}
	}
	if all := len(schemas) * len(specs); same < all/4 || same > all*3/4 {
		t.Errorf("%d of %d cases are unchanged", same, all)
	}
}

func objectOf(t *testing.T, text string) (object map[string]any) {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = json.Unmarshal(data, &object)
	}
	if err != nil {
		t.Fatal(text, err)
	}
	return object
}

// crdWithSpec returns a CustomResourceDefinition with the schema of the field spec.
func crdWithSpec(t *testing.T, spec string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	var root apiextensionsv1.JSONSchemaProps
	if err := yaml.Unmarshal([]byte("{type: object, properties: {spec: "+spec+"}}"), &root); err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{
		Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &root},
	}}
	return crd
}

// The schemas of types whose objects are read with a conversion, or without pruning, are not used.
func TestReadSchema_IsUnknown(t *testing.T) {
	for name, change := range map[string]func(*apiextensionsv1.CustomResourceDefinition){
		"unknown fields are preserved": func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Spec.PreserveUnknownFields = true
		},
		"another version is stored": func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Spec.Versions[0].Storage = false
		},
		"no schema": func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Spec.Versions[0].Schema = nil },
	} {
		crd := crdWithSpec(t, "{}")
		change(crd)
		if s, err := readSchemaOf(crd, ""); s != nil || err != nil {
			t.Errorf("%s: got %v, %v", name, s, err)
		}
	}
	if s, err := readSchemaOf(nil, ""); s != nil || err != nil {
		t.Errorf("no type: got %v, %v", s, err)
	}
}
