package blueprint_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// crates defines a type that has a field of each kind.
const crates = `
metadata: {name: crates.shop.example.com}
spec:
  group: shop.example.com
  scope: Namespaced
  names: {kind: Crate, plural: crates}
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec:
              type: object
              required: [size]
              properties:
                size: {type: integer}
                ratio: {type: number}
                color: {type: string, enum: [red, green]}
                lid: {type: boolean}
                port: {x-kubernetes-int-or-string: true}
                tags: {type: array, items: {type: string}}
                set: {type: array, x-kubernetes-list-type: set, items: {type: string}}
                labels: {type: object, additionalProperties: {type: string}}
                owner: {type: object, properties: {email: {type: string, nullable: true}}}
                free: {type: object, x-kubernetes-preserve-unknown-fields: true,
                  properties: {known: {type: object, properties: {a: {type: string}}}}}
                open: {type: object}
                bytes: {type: string, format: byte}
                raw: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
                parts: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name, kind],
                  items: {type: object, properties: {name: {type: string}, kind: {type: string}}}}
                ports: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [protocol],
                  items: {type: object, properties: {protocol: {type: string, default: TCP}}}}
`

func definitionOf(t testing.TB, text string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	var crd apiextensionsv1.CustomResourceDefinition
	raw, err := yaml.ToJSON([]byte(text))
	if err == nil {
		err = yaml.Unmarshal(raw, &crd)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &crd
}

// describing returns Options in which only the schema of Crates is known.
func describing(t testing.TB, crd *apiextensionsv1.CustomResourceDefinition) blueprint.Options {
	t.Helper()
	described, err := blueprint.SchemaOf(crd, "v1")
	if err != nil {
		t.Fatal(err)
	}
	return blueprint.Options{SchemaFor: func(kind schema.GroupVersionKind) common.Schema {
		if kind.Kind != "Crate" {
			return nil
		}
		return described
	}}
}

func TestCompile_fields(t *testing.T) {
	options := describing(t, definitionOf(t, crates))
	for reason, c := range map[string]struct {
		spec string
		want []string // paths are relative to spec.resources[0].template.spec
	}{
		"valid values": {spec: `{size: 3, ratio: 1, color: red, lid: true, port: 80, tags: [a], set: [a],
			labels: {a: b}, owner: {email: a}, free: {any: [thing]}, open: {any: thing}, bytes: aGk=,
			raw: {apiVersion: v1, kind: A, metadata: {name: a, x: y}}, parts: [{name: a}], ports: [{}]}`},
		"expressions of valid types": {spec: `{size: "${self.spec.size}", ratio: "${self.spec.size}",
			color: "${self.spec.name}", lid: "${self.spec.live}", port: "${self.spec.port}", tags: "${self.spec.tags}",
			labels: "${self.spec.labels}", owner: "${self.spec.owner}", free: "${{'a': 1}}", open: "${{'a': 1}}",
			bytes: "${self.spec.name}", raw: "${self.spec.free}", parts: "${self.spec.tags.map(t, {'name': t})}"}`},
		"an unknown field, with a suggestion": {
			spec: `{siez: 3, Color: red, whatever: x, owner: {mail: x}, parts: [{name: a, sort: b}]}`,
			want: []string{
				".Color: unknown field in shop.example.com/v1 Crate; did you mean color?",
				".owner.mail: unknown field in shop.example.com/v1 Crate; did you mean email?",
				".parts[0].sort: unknown field in shop.example.com/v1 Crate",
				".siez: unknown field in shop.example.com/v1 Crate; did you mean size?",
				".whatever: unknown field in shop.example.com/v1 Crate",
			},
		},
		"an unknown field without a similar name": {
			spec: `{sixes: 3, tig: [], log: x, od: x}`,
			want: []string{
				".log: unknown field in shop.example.com/v1 Crate",
				".od: unknown field in shop.example.com/v1 Crate",
				".sixes: unknown field in shop.example.com/v1 Crate",
				".tig: unknown field in shop.example.com/v1 Crate",
			},
		},
		"an unknown field with an optional value": {
			spec: `{sizes: "${self.spec.?size}"}`,
			want: []string{".sizes: unknown field in shop.example.com/v1 Crate; did you mean size?"},
		},
		"a value of another type": {
			spec: `{size: "3", ratio: x, color: 3, lid: "true", port: [80], tags: a, labels: {a: 1}, owner: x, raw: x, open: ` +
				`x, parts: [x]}`,
			want: []string{
				".color: must be a string; put it in quotes",
				".labels.a: must be a string; put it in quotes",
				".lid: must be a boolean, not a string",
				".open: must be a map",
				".owner: must be an object",
				".parts[0]: must be an object",
				".port: must be a number or a string",
				".ratio: must be a number, not a string",
				".raw: must be an object",
				".size: must be an integer, not a string",
				".tags: must be a list of strings",
			},
		},
		"an expression of another type": {
			spec: `{size: "${self.spec.name}", color: "${self.spec.size}", lid: "${[true]}", port: "${self.spec.live}", ` +
				`tags: "${[1]}", labels: "${{'a': 1}}", owner: "${self.spec.tags}", raw: "${1}"}`,
			want: []string{
				".color: ${self.spec.size}: must be a string, not an integer; convert it with string()",
				".labels: ${{'a': 1}}: must be a map of strings, not map(string, int)",
				".lid: ${[true]}: must be a boolean, not list(bool)",
				".owner: ${self.spec.tags}: must be an object, not list(string)",
				".port: ${self.spec.live}: must be a number or a string, not a boolean",
				".raw: ${1}: must be an object, not an integer",
				".size: ${self.spec.name}: must be an integer, not a string",
				".tags: ${[1]}: must be a list of strings, not list(int)",
			},
		},
		"text around an expression where no string is allowed": {
			spec: `{size: "${self.spec.size}0", color: "${self.spec.name}ish", port: "a${self.spec.name}"}`,
			want: []string{".size: must be an integer, but an expression with text around it is a string"},
		},
		"an optional value of the right type": {
			spec: `{size: "${self.spec.?size}", color: "${optional.none()}", tags: ["${self.spec.?name}"], lid: ` +
				`"${self.spec.?name}"}`,
			want: []string{".lid: ${self.spec.?name}: must be a boolean, not optional_type(string)"},
		},
		"null in any field": {
			spec: `{size: null, color: "${null}", tags: null, owner: {email: null}, parts: null}`,
		},
		"null in a set": {
			spec: `{set: [null], tags: [null]}`,
			want: []string{".set[0]: must not be null"},
		},
		"a fraction in a number field": {spec: `{size: 1.5}`},
		"a missing required field":     {spec: `{}`},
		"a value that the enum does not allow": {
			spec: `{color: blue}`,
			want: []string{`.color: must be one of "red", "green"`},
		},
		"an empty string in an enum field": {spec: `{color: ""}`},
		"an escaped expression": {
			spec: `{color: "$${red}"}`,
			want: []string{`.color: must be one of "red", "green"`},
		},
		"bytes that are not base64":   {spec: `{bytes: "text!"}`, want: []string{".bytes: must be base64-encoded"}},
		"fields below an open object": {spec: `{free: {known: {b: c}}}`},
		"known fields of an open object": {
			spec: `{free: {known: {a: 1}}}`,
			want: []string{".free.known.a: must be a string; put it in quotes"},
		},
		"items of a map without their keys": {
			spec: `{parts: [{}, {kind: a}, "${{}}"]}`,
			want: []string{".parts[0]: must have name or kind, which identifies the item"},
		},
		"an expression that does not compile is reported once": {
			spec: `{size: "${self.}"}`,
			want: []string{".size: ${self.}: syntax error (line 1, column 6)"},
		},
	} {
		t.Run(reason, func(t *testing.T) {
			got := problemsOf(t, ofWebsites("\n    - {id: a, template: {apiVersion: shop.example.com/v1, kind: Crate, "+
				"metadata: {name: a}, spec: "+c.spec+"}}"), options)
			for i := range got {
				got[i] = strings.TrimPrefix(got[i], "spec.resources[0].template.spec")
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("problems (-want +got):\n%s", d)
			}
		})
	}
}

func TestCompile_fieldsOfMetadata(t *testing.T) {
	options := describing(t, definitionOf(t, crates))
	got := problemsOf(t, ofWebsites(`
    - id: a
      template: {apiVersion: shop.example.com/v1, kind: Crate,
        metadata: {name: a, lables: {a: b}, labels: {a: b}, finalizers: a}, specs: {}}
    - id: b
      template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a, lables: {a: b}}, whatever: x}`), options)
	want := []string{
		"spec.resources[0].template.metadata.finalizers: must not be set in a template",
		"spec.resources[0].template.metadata.lables: unknown field in shop.example.com/v1 Crate; did you mean labels?",
		"spec.resources[0].template.specs: unknown field in shop.example.com/v1 Crate; did you mean spec?",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("problems (-want +got):\n%s", d)
	}
}

// Schemas of other kinds rarely limit sizes, and the author cannot change them. The cost of expressions that read these
// kinds is therefore not estimated. It is limited at run time.
func TestCompile_noCostEstimateForOtherKinds(t *testing.T) {
	text := `
    - {id: a, template: {apiVersion: shop.example.com/v1, kind: Crate, metadata: {name: a}}, readyWhen:
        ["a.spec.parts.all(p, a.spec.set.all(s, a.spec.tags.exists(t, t == p.name + s)))"]}`
	if got := problemsOf(t, ofWebsites(text), describing(t, definitionOf(t, crates))); got != nil {
		t.Errorf("rejected: %q", got)
	}
}

// In v1beta1, a CustomResourceDefinition could preserve all unknown fields.
func TestCompile_preserveUnknownFields(t *testing.T) {
	crd := definitionOf(t, crates)
	crd.Spec.PreserveUnknownFields = true
	if got := problemsOf(t, ofWebsites(`
    - {id: a, template: {apiVersion: shop.example.com/v1, kind: Crate, metadata: {name: a},
        spec: {whatever: x}}}`), describing(t, crd)); got != nil {
		t.Errorf("rejected: %q", got)
	}
}

// Parts that the schema leaves open are not checked.
func TestCompile_incompleteSchemas(t *testing.T) {
	for reason, s := range map[string]*spec.Schema{
		"none":          {},
		"no type":       {SchemaProps: spec.SchemaProps{Properties: map[string]spec.Schema{"a": *spec.StringProperty()}}},
		"no properties": {SchemaProps: spec.SchemaProps{Type: []string{"object"}}},
		"all unknown fields are preserved": {SchemaProps: spec.SchemaProps{Type: []string{"object"},
			Properties: map[string]spec.Schema{"metadata": {}}},
			VendorExtensible: spec.VendorExtensible{Extensions: spec.Extensions{"x-kubernetes-preserve-unknown-fields": true}}},
		"a field without a type": {
			SchemaProps: spec.SchemaProps{Type: []string{"object"}, Properties: map[string]spec.Schema{"spec": {}}},
		},
		"a list of any values": {SchemaProps: spec.SchemaProps{Type: []string{"object"},
			Properties: map[string]spec.Schema{"spec": {SchemaProps: spec.SchemaProps{Type: []string{"object"},
				Properties: map[string]spec.Schema{"list": {SchemaProps: spec.SchemaProps{Type: []string{"array"}}}, "any": {}},
			}}}}},
	} {
		t.Run(reason, func(t *testing.T) {
			options := blueprint.Options{SchemaFor: func(schema.GroupVersionKind) common.Schema {
				return &openapi.Schema{Schema: s}
			}}
			if got := problemsOf(t, ofWebsites(`
    - {id: a, template: {apiVersion: v1, kind: A, metadata: {name: a},
        spec: {list: [1, {a: b}], any: [x]}}}`), options); got != nil {
				t.Errorf("rejected: %q", got)
			}
		})
	}
}

// endless is a schema that contains itself.
type endless struct{ common.Schema }

func (endless) Type() string { return "object" }
func (e endless) Properties() map[string]common.Schema {
	parts := map[string]common.Schema{"word": &openapi.Schema{Schema: spec.StringProperty()}}
	for i := range 20 {
		parts[fmt.Sprint("f", i)] = e
	}
	return parts
}

// Kubernetes' own schemas are recursive. The check goes only as deep as the template.
func TestCompile_recursiveSchema(t *testing.T) {
	options := blueprint.Options{SchemaFor: func(schema.GroupVersionKind) common.Schema {
		return endless{&openapi.Schema{Schema: &spec.Schema{}}}
	}}
	const depth = 60
	text := `
    - {id: a, readyWhen: ["a.f1.f2.word == 'x'"], template: {apiVersion: v1, kind: A, metadata: {name: a},
        ` + strings.Repeat("f1: {", depth) + "word: 1, fx: 1" + strings.Repeat("}", depth) + "}}"
	at := "spec.resources[0].template" + strings.Repeat(".f1", depth)
	want := []string{
		at + ".fx: unknown field in v1 A",
		at + ".word: must be a string; put it in quotes",
	}
	if d := cmp.Diff(want, problemsOf(t, ofWebsites(text), options)); d != "" {
		t.Errorf("problems (-want +got):\n%s", d)
	}
}

// Checking a template is cheap, whatever the schema. Schemas of other Blueprints can be hostile, too.
func TestCompile_hostileTemplates(t *testing.T) {
	crd := definitionOf(t, crates)
	properties := map[string]apiextensionsv1.JSONSchemaProps{"a": {Type: "string"}}
	for i := range 4000 {
		properties[fmt.Sprintf("%060d", i)] = apiextensionsv1.JSONSchemaProps{Type: "string"}
	}
	wide := apiextensionsv1.JSONSchemaProps{Type: "object", Properties: properties}
	list := apiextensionsv1.JSONSchemaProps{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &wide}}
	crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = apiextensionsv1.JSONSchemaProps{Type: "array",
		Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &list}}
	options := describing(t, crd)
	for reason, c := range map[string]struct{ spec, want string }{
		"many lists of a wide schema": {"[" + strings.Repeat("[{a: x}],", 8_000) + "]", ""},
		"many unknown fields": {"[[{" + func() string {
			var s strings.Builder
			for i := range 1_800 {
				fmt.Fprintf(&s, "%060d: x, ", 1_000_000+i)
			}
			return s.String()
		}() + "}]]", "and 190 more"},
	} {
		t.Run(reason, func(t *testing.T) {
			b := read(ofWebsites("\n    - {id: a, template: {apiVersion: shop.example.com/v1, kind: Crate, metadata: {name: " +
				"a}, spec: " + c.spec + "}}"))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := blueprint.Compile(b, options)
			runtime.ReadMemStats(&after)
			allocated := (after.TotalAlloc - before.TotalAlloc) >> 20
			t.Logf("%d MiB", allocated)
			if allocated > 100 {
				t.Errorf("Compile allocated %d MiB", allocated)
			}
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
