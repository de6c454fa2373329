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
	crvalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// ofType returns a Blueprint whose type has the given fields in addition to its names.
func ofType(fields string) string {
	return `
spec:
  type: {group: shop.example.com, version: v1, kind: Crate, ` + fields + `}
  resources: []`
}

const plain = `schema: {properties: {spec: {type: object, properties: {size: {type: integer}}}}}`

func TestDefinition(t *testing.T) {
	crd := compile(t, ofType(`
    shortNames: [cr], printerColumns: [{name: Size, type: integer, jsonPath: .spec.size}],
    schema: {required: [spec], properties: {spec: {type: object, properties: {size: {type: integer}}},
      status: {type: object, properties: {url: {type: string}}}}}`), blueprint.Options{}).Definition()
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
	if d := cmp.Diff([]string{"Size", "Ready", "Reason", "Message", "Age"}, columns); d != "" {
		t.Errorf("columns (-want +got):\n%s", d)
	}
	status := v.Schema.OpenAPIV3Schema.Properties["status"]
	for _, name := range []string{"url", "conditions", "observedGeneration"} {
		if _, has := status.Properties[name]; !has {
			t.Errorf("the status lacks %s", name)
		}
	}
	if keys := status.Properties["conditions"].XListMapKeys; !slices.Equal(keys, []string{"type"}) {
		t.Errorf("the list map keys of the conditions are %v", keys)
	}
	if got := v.Schema.OpenAPIV3Schema.Required; !slices.Equal(got, []string{"spec"}) {
		t.Errorf("required: %v", got)
	}
}

func TestDefinition_invalid(t *testing.T) {
	for reason, c := range map[string]struct {
		text string
		want []string
	}{
		"invalid names": {
			ofType("plural: Crates, " + plain),
			[]string{
				`spec.type.plural: Invalid value: "Crates": a DNS-1035 label`,
				`spec.type.plural: Invalid value: "Crates.shop.example.com": a lowercase RFC 1123 subdomain`,
			},
		},
		"fields next to spec and status": {
			ofType("schema: {properties: {spec: {type: object}, metadata: {type: object}, size: {type: integer}}}"),
			[]string{
				"spec.type.schema.properties.metadata: must not be set; Kubernetes defines it",
				"spec.type.schema.properties.size: must be under spec or status",
			},
		},
		"no spec": {
			ofType("schema: {properties: {}}"), []string{"spec.type.schema.properties: must contain spec"},
		},
		"fields outside of properties": {
			ofType("schema: {type: object, spec: {type: object}, status: {type: object}}"),
			[]string{
				"spec.type.schema.spec: must be under properties",
				"spec.type.schema.status: must be under properties",
			},
		},
		"a status field of the platform": {
			ofType("schema: {properties: {spec: {type: object}, status: {type: object, properties: {conditions: {type: " +
				"string}}}}}"),
			[]string{"spec.type.schema.properties.status.properties.conditions: must not be set; the platform defines it"},
		},
		"an unknown keyword": {
			ofType("schema: {properties: {spec: {type: object, propertys: {}}}}"),
			[]string{"spec.type.schema.properties.spec.propertys: unknown field; did you mean properties?"},
		},
		"a keyword in the wrong case": {
			ofType("schema: {properties: {spec: {type: object, properties: {a: {type: array, items: {type: string, " +
				"maxlength: 3}}}}}}"),
			[]string{"spec.type.schema.properties.spec.properties.a.items.maxlength: unknown field; did you mean maxLength?"},
		},
		"a type name instead of a schema": {
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
		"a nested openAPIV3Schema": {
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
		"a schema that is not structural": {
			ofType("schema: {properties: {spec: {type: object, properties: {size: {}}}}}"),
			[]string{"spec.type.schema.properties[spec].properties[size].type: Required value"},
		},
		"a recursive schema": {
			ofType("schema: {properties: {spec: {type: object, properties: {size: {$ref: '#'}}}}}"),
			[]string{"spec.type.schema.properties[spec].properties[size].$ref: Forbidden"},
		},
		"a default of the wrong type": {
			ofType("schema: {properties: {spec: {type: object, properties: {size: {type: integer, default: x}}}}}"),
			[]string{
				`spec.type.schema.properties[spec].properties[size].default: Invalid value: "string": in body must be of type ` +
					`integer`,
			},
		},
		"a rule that does not compile": {
			ofType("schema: {properties: {spec: {type: object, x-kubernetes-validations: [{rule: self.nome == 1}], " +
				"properties: {size: {type: integer}}}}}"),
			[]string{"spec.type.schema.properties[spec].x-kubernetes-validations[0].rule: Invalid value"},
		},
		"an invalid JSON path of a column": {
			ofType("printerColumns: [{name: A, type: string, jsonPath: 'a[['}], " + plain),
			[]string{"spec.type.printerColumns[0].jsonPath: Invalid value"},
		},
		"a protected API group": {
			"{spec: {type: {group: apps.k8s.io, version: v1, kind: Crate, " + plain + "}, resources: []}}",
			[]string{"metadata.annotations[api-approved.kubernetes.io]: Required value"},
		},
	} {
		t.Run(reason, func(t *testing.T) {
			_, err := blueprint.Compile(read(c.text), blueprint.Options{})
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
				t.Errorf("more problems than expected: %q", got[len(c.want):])
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
		t.Errorf("the manifest is invalid: %v", errs)
	}
	if got := crd.Spec.Group + "/" + crd.Spec.Versions[0].Name; got != blueprint.GroupVersion.String() ||
		crd.Name != blueprint.GroupVersionResource.GroupResource().String() {
		t.Errorf("the manifest defines %s in %s", crd.Name, got)
	}
	spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	resources := spec.Properties["resources"]
	conditions, lists := resources.Items.Schema.Properties["includeWhen"], resources.Items.Schema.Properties["forEach"]
	if *resources.MaxItems != blueprint.MaxResources || *conditions.MaxItems != blueprint.MaxConditions ||
		*lists.MaxItems != blueprint.MaxIterators {
		t.Errorf("the manifest allows %d resources, %d conditions and %d lists", *resources.MaxItems, *conditions.MaxItems,
			*lists.MaxItems)
	}
}

// The validation rules of the manifest reject Blueprints before they are stored.
func TestManifest_rules(t *testing.T) {
	crd, err := blueprint.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	schema, err := structural.NewStructural(internal(t, crd).Spec.Validation.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	validator := crvalidation.NewSchemaValidatorFromOpenAPI(schema.ToKubeOpenAPI())
	rules := schemacel.NewValidator(schema, true, celconfig.PerCallLimit)
	of := func(fields string) string { return "{spec: {type: {crd: a.b.c}, resources: [], " + fields + "}}" }
	for reason, c := range map[string]struct{ text, want string }{
		"a defined type":   {ofType(plain), ""},
		"an existing type": {"{spec: {type: {crd: a.b.c}, resources: []}}", ""},
		"both a defined and an existing type": {
			"{spec: {type: {crd: a.b.c, group: x, version: v1, kind: X, schema: {}}, resources: []}}",
			"set either crd, or group, version, kind and schema",
		},
		"neither a defined nor an existing type": {
			"{spec: {type: {}, resources: []}}", "set either crd, or group, version, kind and schema",
		},
		"a defined type without a schema": {
			"{spec: {type: {group: x, version: v1, kind: X}, resources: []}}",
			"group, version, kind and schema are required unless crd is set",
		},
		"an existing type with a scope": {
			"{spec: {type: {crd: a.b.c, scope: Cluster}, resources: []}}", "must not be set with crd",
		},
		"an existing type with short names": {
			"{spec: {type: {crd: a.b.c, shortNames: [x]}, resources: []}}", "must not be set with crd",
		},
		"an existing type with columns": {
			"{spec: {type: {crd: a.b.c, printerColumns: []}, resources: []}}", "must not be set with crd",
		},
		"a service account":                            {of("serviceAccountName: shop.a"), ""},
		"an invalid name of a service account":         {of("serviceAccountName: Shop_"), "spec.serviceAccountName"},
		"a username instead of a service account name": {of("serviceAccountName: 'a:b'"), "spec.serviceAccountName"},
		"an unknown deletion policy":                   {of("deletionPolicy: Keep"), "spec.deletionPolicy"},
		"an unknown deletion policy of a child": {
			"{spec: {type: {crd: a.b.c}, resources: [{id: a, deletionPolicy: Keep, template: {}}]}}",
			"spec.resources[0].deletionPolicy",
		},
		"an unknown policy for immutable children": {
			"{spec: {type: {crd: a.b.c}, resources: [{id: a, onImmutable: Always, template: {}}]}}",
			"spec.resources[0].onImmutable",
		},
		"a policy for existing objects that are immutable": {
			"{spec: {type: {crd: a.b.c}, resources: [{id: a, onImmutable: Fail, externalRef: {}}]}}",
			"onImmutable must not be set with externalRef",
		},
		"namespaces and patterns": {of("allowedNamespaces: [shop, team-*, '*', '*-a-*']"), ""},
		"an invalid namespace":    {of("allowedNamespaces: [shop, Team]"), "spec.allowedNamespaces[1]"},
		"an unsupported pattern":  {of("allowedNamespaces: ['team-[ab]']"), "spec.allowedNamespaces[0]"},
		"an empty namespace":      {of("allowedNamespaces: ['']"), "spec.allowedNamespaces[0]"},
		"an overlong namespace":   {of("allowedNamespaces: [" + strings.Repeat("a", 64) + "]"), "spec.allowedNamespaces[0]"},
		"too many namespaces":     {of("allowedNamespaces: [" + strings.Repeat("a, ", 65) + "]"), "spec.allowedNamespaces"},
	} {
		t.Run(reason, func(t *testing.T) {
			text := object(c.text).Object
			errs, _ := rules.Validate(context.Background(), nil, schema, text, nil, celconfig.RuntimeCELCostBudget)
			errs = append(errs, crvalidation.ValidateCustomResource(nil, text, validator)...)
			if got := errs.ToAggregate(); c.want == "" && got != nil || c.want != "" &&
				(got == nil || !strings.Contains(got.Error(), c.want)) {
				t.Errorf("got %v, want %q", got, c.want)
			}
		})
	}
}

func TestDefinitionName(t *testing.T) {
	if got := blueprint.DefinitionName(read("{spec: {type: {crd: a.b.c}, resources: []}}")); got != "a.b.c" {
		t.Errorf("for a Blueprint that refers to a CustomResourceDefinition: %s", got)
	}
	if got := blueprint.DefinitionName(read(ofType("plural: cases, " + plain))); got != "cases.shop.example.com" {
		t.Errorf("for a Blueprint that defines a type: %s", got)
	}
}
