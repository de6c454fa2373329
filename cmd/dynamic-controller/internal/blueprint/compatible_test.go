package blueprint_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// definition returns the CustomResourceDefinition of a type whose spec has the given keywords.
func definition(t *testing.T, spec string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	text := ofType("schema: {properties: {spec: {type: object, " + spec + "}}}")
	return compile(t, text, blueprint.Options{}).Definition()
}

func TestIncompatibleChanges(t *testing.T) {
	const at = "spec.type.schema.properties.spec"
	const a = at + ".properties.a"
	for reason, c := range map[string]struct {
		before, after string
		want          []string
	}{
		"nothing changes": {
			before: "properties: {a: {type: string}}",
			after:  "properties: {a: {type: string}}",
		},
		"a field is added": {
			before: "properties: {a: {type: string}}",
			after:  "properties: {a: {type: string}, b: {type: integer}}",
		},
		"a default and a description are changed": {
			before: "properties: {a: {type: string, default: x}}",
			after:  "properties: {a: {type: string, default: v, description: w}}",
		},
		"a field is removed": {
			before: "properties: {a: {type: string}, b: {type: string}}",
			after:  "properties: {b: {type: string}}",
			want:   []string{a + ": the field is removed"},
		},
		"a nested field is removed": {
			before: "properties: {a: {type: object, properties: {my/b: {type: string}}}}",
			after:  "properties: {a: {type: object}}",
			want:   []string{a + `.properties["my/b"]: the field is removed`},
		},
		"a field becomes a key of a map with the same type": {
			before: "properties: {a: {type: string}}",
			after:  "additionalProperties: {type: string}",
		},
		"a field becomes a key of a map with another type": {
			before: "properties: {a: {type: string}}",
			after:  "additionalProperties: {type: integer}",
			want:   []string{a + ": the type changes from string to integer"},
		},
		"a field accepts any value": {
			before: "properties: {a: {type: string}}",
			after:  "x-kubernetes-preserve-unknown-fields: true",
		},
		"a type is changed": {
			before: "properties: {a: {type: integer}}",
			after:  "properties: {a: {type: string}}",
			want:   []string{a + ": the type changes from integer to string"},
		},
		"an integer becomes a number": {
			before: "properties: {a: {type: integer}}",
			after:  "properties: {a: {type: number}}",
		},
		"a number becomes an integer": {
			before: "properties: {a: {type: number}}",
			after:  "properties: {a: {type: integer}}",
			want:   []string{a + ": the type changes from number to integer"},
		},
		"a string becomes an integer or a string": {
			before: "properties: {a: {type: string}}",
			after:  "properties: {a: {x-kubernetes-int-or-string: true}}",
		},
		"an integer or a string becomes a string": {
			before: "properties: {a: {x-kubernetes-int-or-string: true}}",
			after:  "properties: {a: {type: string}}",
			want:   []string{a + ": the type changes from integer or string to string"},
		},
		"any value becomes a string": {
			before: "properties: {a: {x-kubernetes-preserve-unknown-fields: true}}",
			after:  "properties: {a: {type: string}}",
			want:   []string{a + ": the type changes from any to string"},
		},
		"the type of items is changed": {
			before: "properties: {a: {type: array, items: {type: string}}}",
			after:  "properties: {a: {type: array, items: {type: integer}}}",
			want:   []string{a + ".items: the type changes from string to integer"},
		},
		"the type of a map's values is changed": {
			before: "properties: {a: {type: object, additionalProperties: {type: string}}}",
			after:  "properties: {a: {type: object, additionalProperties: {type: integer}}}",
			want:   []string{a + ".additionalProperties: the type changes from string to integer"},
		},
		"a map becomes an object": {
			before: "properties: {a: {type: object, additionalProperties: {type: string}}}",
			after:  "properties: {a: {type: object, properties: {b: {type: integer}}}}",
			want: []string{
				a + ".additionalProperties: is removed", a + ".properties.b: the type changes from string to integer",
			},
		},
		"unknown fields are no longer preserved": {
			before: "properties: {a: {type: object, x-kubernetes-preserve-unknown-fields: true}}",
			after:  "properties: {a: {type: object}}",
			want:   []string{a + ": unknown fields are no longer preserved"},
		},
		"a field of an open object gets a type": {
			before: "x-kubernetes-preserve-unknown-fields: true",
			after:  "x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: string}}",
			want:   []string{a + ": the type changes from any to string"},
		},
		"null is no longer accepted": {
			before: "properties: {a: {type: string, nullable: true}}",
			after:  "properties: {a: {type: string}}",
			want:   []string{a + ": null is no longer accepted"},
		},
		"a field becomes required": {
			before: "properties: {a: {type: string}}",
			after:  "required: [a], properties: {a: {type: string}}",
			want:   []string{a + ": the field becomes required and has no default"},
		},
		"a new field is required": {
			before: "properties: {b: {type: string}}",
			after:  "required: [a], properties: {a: {type: string}, b: {type: string}}",
			want:   []string{a + ": the field becomes required and has no default"},
		},
		"a field with a default becomes required": {
			before: "properties: {b: {type: string}}",
			after:  "required: [a], properties: {a: {type: string, default: x}, b: {type: string}}",
		},
		"a field is no longer required": {
			before: "required: [a], properties: {a: {type: string}}",
			after:  "properties: {a: {type: string}}",
		},
		"a value of an enum is removed": {
			before: "properties: {a: {type: string, enum: [x, u, z]}}",
			after:  "properties: {a: {type: string, enum: [u]}}",
			want:   []string{a + ".enum: is added or accepts fewer values"},
		},
		"a value of an enum is added": {
			before: "properties: {a: {type: string, enum: [x]}}",
			after:  "properties: {a: {type: string, enum: [u, x]}}",
		},
		"an enum is added": {
			before: "properties: {a: {type: string}}",
			after:  "properties: {a: {type: string, enum: [x]}}",
			want:   []string{a + ".enum: is added or accepts fewer values"},
		},
		"an enum is removed": {
			before: "properties: {a: {type: string, enum: [x]}}",
			after:  "properties: {a: {type: string}}",
		},
		"bounds are added": {
			before: "properties: {a: {type: string}}",
			after:  "properties: {a: {type: string, maxLength: 3, minLength: 1, pattern: x, format: date}}",
			want: []string{
				a + ".maxLength: is added or accepts fewer values", a + ".minLength: is added or accepts fewer values",
				a + ".format: is added or accepts fewer values", a + ".pattern: is added or accepts fewer values",
			},
		},
		"bounds are narrower": {
			before: "properties: {a: {type: integer, minimum: 1, maximum: 9, multipleOf: 2}}",
			after:  "properties: {a: {type: integer, minimum: 2, maximum: 8, multipleOf: 4}}",
			want: []string{
				a + ".maximum: is added or accepts fewer values", a + ".minimum: is added or accepts fewer values",
				a + ".multipleOf: is added or accepts fewer values",
			},
		},
		"a bound becomes exclusive": {
			before: "properties: {a: {type: integer, minimum: 1}}",
			after:  "properties: {a: {type: integer, minimum: 1, exclusiveMinimum: true}}",
			want:   []string{a + ".exclusiveMinimum: is added or accepts fewer values"},
		},
		"bounds are wider": {
			before: "properties: {a: {type: integer, minimum: 2, maximum: 8, multipleOf: 4, format: int32}}",
			after:  "properties: {a: {type: integer, minimum: 1, maximum: 9, multipleOf: 2, format: int64}}",
		},
		"bounds are removed": {
			before: "properties: {a: {type: array, items: {type: string}, maxItems: 2, minItems: 1}}",
			after:  "properties: {a: {type: array, items: {type: string}, minItems: 0}}",
		},
		"a list becomes a set": {
			before: "properties: {a: {type: array, items: {type: string}}}",
			after:  "properties: {a: {type: array, x-kubernetes-list-type: set, items: {type: string}}}",
			want:   []string{a + ".x-kubernetes-list-type: changes from atomic to set, which does not allow duplicate items"},
		},
		"a set becomes a list": {
			before: "properties: {a: {type: array, x-kubernetes-list-type: set, items: {type: string}}}",
			after:  "properties: {a: {type: array, items: {type: string}}}",
		},
		"an alternative is added": {
			before: "properties: {a: {type: string}}",
			after:  "properties: {a: {type: string, anyOf: [{pattern: x}]}}",
			want:   []string{a + ".anyOf: is added or accepts fewer values"},
		},
		"an alternative is removed": {
			before: "properties: {a: {type: string, not: {pattern: x}}}",
			after:  "properties: {a: {type: string}}",
		},
		"rules are ignored": {
			before: "properties: {a: {type: string}}",
			after:  "properties: {a: {type: string}}, x-kubernetes-validations: [{rule: 'true'}]",
		},
		"only the type is reported if it changes": {
			before: "properties: {a: {type: object, properties: {b: {type: string}}}}",
			after:  "properties: {a: {type: string, maxLength: 1}}",
			want:   []string{a + ": the type changes from object to string"},
		},
	} {
		t.Run(reason, func(t *testing.T) {
			var got []string
			for _, p := range blueprint.IncompatibleChanges(definition(t, c.before), definition(t, c.after)) {
				got = append(got, p.String())
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestIncompatibleChanges_ignoresPlatformStatus(t *testing.T) {
	before, after := definition(t, "properties: {}"), definition(t, "properties: {}")
	status := before.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"]
	conditions := status.Properties["conditions"]
	conditions.MaxItems = nil
	status.Properties["conditions"] = conditions
	if got := blueprint.IncompatibleChanges(before, after); got != nil {
		t.Errorf("platform status fields are compared: %v", got)
	}
	status.Properties["url"] = apiextensionsv1.JSONSchemaProps{Type: "string"}
	if got := blueprint.IncompatibleChanges(before, after); len(got) != 1 ||
		got[0].Path != "spec.type.schema.properties.status.properties.url" {
		t.Errorf("after removing a status field of the author: got %v", got)
	}
}
