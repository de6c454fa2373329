package acceptance

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

func TestCheckStatusSchema(t *testing.T) {
	type version = apiextensionsv1.CustomResourceDefinitionVersion
	type props = apiextensionsv1.JSONSchemaProps
	yes := true
	setStatus := func(v *version, to props) { v.Schema.OpenAPIV3Schema.Properties["status"] = to }
	inStatus := func(v *version, field string, to props) {
		v.Schema.OpenAPIV3Schema.Properties["status"].Properties[field] = to
	}
	conditions := func(v *version) props { return v.Schema.OpenAPIV3Schema.Properties["status"].Properties["conditions"] }

	for name, test := range map[string]struct {
		change func(*version)
		want   string
	}{
		"all fields declared": {
			func(*version) {},
			"",
		},
		"no status subresource": {
			func(v *version) { v.Subresources = nil },
			"version v1 has no status subresource",
		},
		"only the scale subresource": {
			func(v *version) { v.Subresources.Status = nil },
			"version v1 has no status subresource",
		},
		"no schema": {
			func(v *version) { v.Schema = nil },
			"version v1 has no schema",
		},
		"a schema without status": {
			func(v *version) { delete(v.Schema.OpenAPIV3Schema.Properties, "status") },
			"the schema of version v1 has no status",
		},
		"a schema without the generation": {
			func(v *version) {
				delete(v.Schema.OpenAPIV3Schema.Properties["status"].Properties, "observedGeneration")
			},
			"the schema of version v1 has no status.observedGeneration",
		},
		"a generation that is a string": {
			func(v *version) { inStatus(v, "observedGeneration", props{Type: "string"}) },
			"the schema of version v1 has no status.observedGeneration of the required type",
		},
		"conditions without a reason": {
			func(v *version) { delete(conditions(v).Items.Schema.Properties, "reason") },
			"the schema of version v1 has no status.conditions[0].reason",
		},
		"status with unknown fields preserved": {
			func(v *version) { setStatus(v, props{Type: "object", XPreserveUnknownFields: &yes}) },
			"",
		},
		"root with unknown fields preserved": {
			func(v *version) { v.Schema.OpenAPIV3Schema = &props{Type: "object", XPreserveUnknownFields: &yes} },
			"",
		},
		"status with fields of one type": {
			func(v *version) {
				setStatus(v, props{Type: "object",
					AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{Schema: &props{Type: "string"}}})
			},
			"the schema of version v1 has no status.conditions of the required type",
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := testVersion("v1")
			test.change(&v)
			crd := &apiextensionsv1.CustomResourceDefinition{}
			crd.Spec.Versions = []version{v}
			if _, got := checkStatusSchema(crd); got != test.want {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
		})
	}
}

func TestStatusRevision_IsReportedIfDeclared(t *testing.T) {
	for kind, want := range map[string]bool{"": false, "string": true, "integer": false} {
		v := testVersion("v1")
		if kind != "" {
			v.Schema.OpenAPIV3Schema.Properties["status"].Properties["revision"] = apiextensionsv1.JSONSchemaProps{Type: kind}
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{v}
		if got, problem := checkStatusSchema(crd); got != want || problem != "" {
			t.Errorf("%q: got %t, %q", kind, got, problem)
		}
	}
}

// testVersion returns a version that the platform can serve.
func testVersion(name string) apiextensionsv1.CustomResourceDefinitionVersion {
	type props = map[string]apiextensionsv1.JSONSchemaProps
	condition := props{"observedGeneration": {Type: "integer"}}
	for _, field := range []string{"type", "status", "lastTransitionTime", "reason", "message"} {
		condition[field] = apiextensionsv1.JSONSchemaProps{Type: "string"}
	}
	listType := "map"
	return apiextensionsv1.CustomResourceDefinitionVersion{
		Name:         name,
		Served:       true,
		Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
			Type: "object",
			Properties: props{"status": {Type: "object", Properties: props{
				"observedGeneration": {Type: "integer"},
				"conditions": {
					Type: "array", XListType: &listType, XListMapKeys: []string{"type"},
					Items: &apiextensionsv1.JSONSchemaPropsOrArray{
						Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: condition},
					},
				},
			}}},
		}},
	}
}
