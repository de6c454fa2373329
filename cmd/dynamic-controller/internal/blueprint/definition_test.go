package blueprint_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	schemacel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// ofType is a Blueprint whose type has these fields besides its names.
func ofType(fields string) string {
	return `
spec:
  type: {group: shop.example.com, version: v1, kind: Crate, ` + fields + `}
  resources: []`
}

const plain = `schema: {properties: {spec: {type: object, properties: {size: {type: integer}}}}}`

func TestDefinition(t *testing.T) {
	crd, err := blueprint.Definition(read(ofType(`
    shortNames: [cr], printerColumns: [{name: Size, type: integer, jsonPath: .spec.size}],
    schema: {required: [spec], properties: {spec: {type: object, properties: {size: {type: integer}}},
      status: {type: object, properties: {url: {type: string}}}}}`)))
	if err != nil {
		t.Fatal(err)
	}
	names := crd.Spec.Names
	if crd.Name != "crates.shop.example.com" || names.Plural != "crates" || names.Singular != "crate" ||
		names.ListKind != "CrateList" || crd.Spec.Scope != "Namespaced" {
		t.Errorf("names %s %+v %s", crd.Name, names, crd.Spec.Scope)
	}
	v := crd.Spec.Versions[0]
	if v.Name != "v1" || !v.Served || !v.Storage || v.Subresources.Status == nil {
		t.Errorf("version %+v", v)
	}
	var columns []string
	for _, c := range v.AdditionalPrinterColumns {
		columns = append(columns, c.Name)
	}
	if d := cmp.Diff([]string{"Size", "Ready", "Message", "Age"}, columns); d != "" {
		t.Errorf("columns (-want +got):\n%s", d)
	}
	status := v.Schema.OpenAPIV3Schema.Properties["status"]
	for _, name := range []string{"url", "conditions", "observedGeneration"} {
		if _, has := status.Properties[name]; !has {
			t.Errorf("status has no %s", name)
		}
	}
	if keys := status.Properties["conditions"].XListMapKeys; !slices.Equal(keys, []string{"type"}) {
		t.Errorf("conditions are a map by %v", keys)
	}
	if got := v.Schema.OpenAPIV3Schema.Required; !slices.Equal(got, []string{"spec"}) {
		t.Errorf("required: %v", got)
	}
}

func TestDefinition_refused(t *testing.T) {
	for reason, c := range map[string]struct {
		text string
		want []string
	}{
		"crd is instead of the rest": {
			"{spec: {type: {crd: a.b, kind: C}, resources: []}}",
			[]string{"spec.type: set either crd, or group, version, kind and schema"},
		},
		"without it the rest is required": {
			"{spec: {type: {}, resources: []}}",
			[]string{
				"spec.type.group: is required without crd", "spec.type.version: is required without crd",
				"spec.type.kind: is required without crd", "spec.type.schema: is required without crd",
			},
		},
		"Blueprints are no type for a Blueprint": {
			"{spec: {type: {crd: blueprints.platform.example.com}, resources: []}}",
			[]string{"spec.type.crd: Blueprint is reserved for the platform"},
		},
		"nor by another name": {
			"{spec: {type: {group: platform.example.com, version: v1, kind: Blueprint, " + plain + "}, resources: []}}",
			[]string{"spec.type: Blueprint is reserved for the platform"},
		},
		"names are Kubernetes' to judge": {
			ofType("plural: Crates, " + plain),
			[]string{
				`spec.type.plural: Invalid value: "Crates": a DNS-1035 label`,
				`spec.type.plural: Invalid value: "Crates.shop.example.com": a lowercase RFC 1123 subdomain`,
			},
		},
		"a schema says spec and status alone": {
			ofType("schema: {properties: {spec: {type: object}, metadata: {type: object}, size: {type: integer}}}"),
			[]string{
				"spec.type.schema.properties.metadata: must not be set; Kubernetes defines it",
				"spec.type.schema.properties.size: must be under spec or status",
			},
		},
		"a schema has a spec": {
			ofType("schema: {properties: {}}"), []string{"spec.type.schema.properties: must have spec"},
		},
		"a field outside of properties": {
			ofType("schema: {type: object, spec: {type: object}, status: {type: object}}"),
			[]string{
				"spec.type.schema.spec: must be under properties",
				"spec.type.schema.status: must be under properties",
			},
		},
		"the platform's status is its own": {
			ofType("schema: {properties: {spec: {type: object}, status: {type: object, properties: {conditions: {type: " +
				"string}}}}}"),
			[]string{"spec.type.schema.properties.status.properties.conditions: must not be set; the platform defines it"},
		},
		"an unknown keyword": {
			ofType("schema: {properties: {spec: {type: object, propertys: {}}}}"),
			[]string{"spec.type.schema.properties.spec.propertys: unknown field; did you mean properties?"},
		},
		"keywords have their case": {
			ofType("schema: {properties: {spec: {type: object, properties: {a: {type: array, items: {type: string, " +
				"maxlength: 3}}}}}}"),
			[]string{"spec.type.schema.properties.spec.properties.a.items.maxlength: unknown field; did you mean maxLength?"},
		},
		"a type instead of a schema": {
			ofType("schema: {properties: {spec: {type: object, properties: {a: string, b: {type: object, " +
				"additionalProperties: string, properties: null}}}}}"),
			[]string{
				"spec.type.schema.properties.spec.properties.a: must be an object",
				"spec.type.schema.properties.spec.properties.b.additionalProperties: must be an object",
			},
		},
		"values of the wrong type": {
			ofType("schema: {properties: {spec: {type: object, properties: {a: {type: string, required: true}}, anyOf: " +
				"[{required: a}]}}}"),
			[]string{
				"spec.type.schema.properties.spec.anyOf[0].required: must be a list of strings",
				"spec.type.schema.properties.spec.properties.a.required: must be a list of strings",
			},
		},
		"so is a schema within one": {
			ofType("schema: {openAPIV3Schema: {type: object}}"),
			[]string{"spec.type.schema.openAPIV3Schema: unknown field"},
		},
		"a column of an unknown field": {
			ofType("printerColumns: [{name: A, type: string, jsonPath: .spec.sise}, {name: B, type: string, jsonPath: " +
				".spec.labels.any}, {name: C, type: string, jsonPath: .metadata.uid}, " +
				"{name: D, type: string, jsonPath: '.spec.tags[0]'}, {name: E, type: integer, jsonPath: " +
				".status.observedGeneration}, " +
				"{name: F, type: string, jsonPath: .spec.size.unit}], " +
				"schema: {properties: {spec: {type: object, properties: {size: {type: string}, labels: {type: object, " +
				"additionalProperties: {type: string}}, tags: {type: array, items: {type: string}}}}}}"),
			[]string{
				"spec.type.printerColumns[0].jsonPath: unknown field .spec.sise; did you mean size?",
				"spec.type.printerColumns[5].jsonPath: unknown field .spec.size.unit",
			},
		},
		"a duplicate problem is reported once": {
			"{spec: {type: {group: shop.example.com, version: \"1.0\", kind: Crate, " + plain + "}, resources: []}}",
			[]string{`spec.type.version: Invalid value: "1.0": a DNS-1035 label`},
		},
		"an unknown type": {
			ofType("schema: {properties: {spec: {type: object, properties: {size: {type: int}}}}}"),
			[]string{`spec.type.schema.properties[spec].properties[size].type: Unsupported value: "int"`},
		},
		"so is a schema that is not structural": {
			ofType("schema: {properties: {spec: {type: object, properties: {size: {}}}}}"),
			[]string{"spec.type.schema.properties[spec].properties[size].type: Required value"},
		},
		"so is recursion": {
			ofType("schema: {properties: {spec: {type: object, properties: {size: {$ref: '#'}}}}}"),
			[]string{"spec.type.schema.properties[spec].properties[size].$ref: Forbidden"},
		},
		"so is a default that does not fit": {
			ofType("schema: {properties: {spec: {type: object, properties: {size: {type: integer, default: x}}}}}"),
			[]string{
				`spec.type.schema.properties[spec].properties[size].default: Invalid value: "string": in body must be of type ` +
					`integer`,
			},
		},
		"so is a rule that does not compile": {
			ofType("schema: {properties: {spec: {type: object, x-kubernetes-validations: [{rule: self.nome == 1}], " +
				"properties: {size: {type: integer}}}}}"),
			[]string{"spec.type.schema.properties[spec].x-kubernetes-validations[0].rule: Invalid value"},
		},
		"so is a column that prints nothing": {
			ofType("printerColumns: [{name: A, type: string, jsonPath: 'a[['}], " + plain),
			[]string{"spec.type.printerColumns[0].jsonPath: Invalid value"},
		},
		"Kubernetes' own groups are not for everyone": {
			"{spec: {type: {group: apps.k8s.io, version: v1, kind: Crate, " + plain + "}, resources: []}}",
			[]string{"metadata.annotations[api-approved.kubernetes.io]: Required value"},
		},
	} {
		t.Run(reason, func(t *testing.T) {
			_, err := blueprint.Definition(read(c.text))
			if err == nil {
				t.Fatal("accepted")
			}
			got := strings.Split(err.Error(), "\n")
			for i, want := range c.want {
				if i >= len(got) || !strings.HasPrefix(got[i], want) {
					t.Fatalf("got %q, want %q", got, c.want)
				}
			}
			if len(got) > len(c.want) {
				t.Errorf("got more: %q", got[len(c.want):])
			}
		})
	}
}

func internal(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) *apiextensions.CustomResourceDefinition {
	t.Helper()
	crd = crd.DeepCopy()
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(crd)
	var out apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, &out,
		nil); err != nil {
		t.Fatal(err)
	}
	out.Status.StoredVersions = []string{crd.Spec.Versions[0].Name}
	return &out
}

func TestManifest(t *testing.T) {
	crd, err := blueprint.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if errs := validation.ValidateCustomResourceDefinition(context.Background(), internal(t, crd)); len(errs) > 0 {
		t.Errorf("the API server would refuse it: %v", errs)
	}
	if got := crd.Spec.Group + "/" + crd.Spec.Versions[0].Name; got != blueprint.GroupVersion.String() ||
		crd.Name != blueprint.GroupVersionResource.GroupResource().String() {
		t.Errorf("it is %s of %s", crd.Name, got)
	}
	spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	resources := spec.Properties["resources"]
	conditions := resources.Items.Schema.Properties["includeWhen"]
	if *resources.MaxItems != blueprint.MaxResources || *conditions.MaxItems != blueprint.MaxConditions {
		t.Errorf("it allows %d resources and %d conditions", *resources.MaxItems, *conditions.MaxItems)
	}
}

// What the manifest's own rules refuse never becomes a Blueprint that somebody would have to look at.
func TestManifest_rules(t *testing.T) {
	crd, err := blueprint.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	schema, err := structural.NewStructural(internal(t, crd).Spec.Validation.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	validator := schemacel.NewValidator(schema, true, celconfig.PerCallLimit)
	for reason, c := range map[string]struct{ text, want string }{
		"names and a schema":       {ofType(plain), ""},
		"the name of a definition": {"{spec: {type: {crd: a.b.c}, resources: []}}", ""},
		"both": {
			"{spec: {type: {crd: a.b.c, group: x, version: v1, kind: X, schema: {}}, resources: []}}",
			"set either crd, or group, version, kind and schema",
		},
		"neither": {
			"{spec: {type: {}, resources: []}}", "set either crd, or group, version, kind and schema",
		},
		"half": {
			"{spec: {type: {group: x, version: v1, kind: X}, resources: []}}",
			"group, version, kind and schema are required without crd",
		},
		"a scope in addition to the name": {
			"{spec: {type: {crd: a.b.c, scope: Cluster}, resources: []}}", "must not be set with crd",
		},
		"short names in addition to the name": {
			"{spec: {type: {crd: a.b.c, shortNames: [x]}, resources: []}}", "must not be set with crd",
		},
		"columns in addition to the name": {
			"{spec: {type: {crd: a.b.c, printerColumns: []}, resources: []}}", "must not be set with crd",
		},
	} {
		t.Run(reason, func(t *testing.T) {
			errs, _ := validator.Validate(context.Background(), nil, schema, object(c.text).Object, nil,
				celconfig.RuntimeCELCostBudget)
			if got := errs.ToAggregate(); c.want == "" && got != nil || c.want != "" &&
				(got == nil || !strings.Contains(got.Error(), c.want)) {
				t.Errorf("got %v, want %q", got, c.want)
			}
		})
	}
}

func TestDefinitionName(t *testing.T) {
	if got := blueprint.DefinitionName(read("{spec: {type: {crd: a.b.c}, resources: []}}")); got != "a.b.c" {
		t.Errorf("of a name: %s", got)
	}
	if got := blueprint.DefinitionName(read(ofType("plural: cases, " + plain))); got != "cases.shop.example.com" {
		t.Errorf("of a type: %s", got)
	}
}
