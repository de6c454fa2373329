package blueprint

import (
	"encoding/json"
	"maps"
	"math"
	"reflect"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// IncompatibleChanges compares the schemas of an existing CustomResourceDefinition with those of its replacement. It
// returns the changes that can invalidate existing objects or remove fields from them, or nil if there are none.
//
// It ignores x-kubernetes-validations. The API server does not evaluate these rules for values that an update leaves
// unchanged, and some rules apply only to updates. It also ignores the status fields that the platform defines.
func IncompatibleChanges(before, after *apiextensionsv1.CustomResourceDefinition) Problems {
	c := &collector{}
	for _, next := range after.Spec.Versions {
		for _, last := range before.Spec.Versions {
			if last.Name == next.Name && last.Schema != nil && next.Schema != nil {
				from, to := authorsPart(last.Schema.OpenAPIV3Schema), authorsPart(next.Schema.OpenAPIV3Schema)
				from.compare(to, typePath+".schema", c)
			}
		}
	}
	return c.problems
}

// jsonSchema is an OpenAPI v3 schema, decoded from JSON.
type jsonSchema map[string]any

// authorsPart returns the schema without the status fields that the platform defines.
func authorsPart(root *apiextensionsv1.JSONSchemaProps) jsonSchema {
	var out jsonSchema
	data, err := json.Marshal(root)
	if err != nil || json.Unmarshal(data, &out) != nil {
		return jsonSchema{} // cannot happen: the schema was decoded from JSON or accepted by the API server
	}
	for _, name := range PlatformStatus {
		unstructured.RemoveNestedField(out, "properties", "status", "properties", name)
	}
	return out
}

// restrictions maps each keyword that restricts values to a function. The function reports whether the new value of the
// keyword can reject objects that the old value accepts. before is nil if the keyword is new. Removing a keyword never
// rejects more objects.
var restrictions = []struct {
	keyword  string
	restrict func(before, after any) bool
}{
	{"enum", removesValues},
	{"maximum", lowered}, {"minimum", raised},
	{"maxLength", lowered}, {"minLength", raisedCount},
	{"maxItems", lowered}, {"minItems", raisedCount},
	{"maxProperties", lowered}, {"minProperties", raisedCount},
	{"multipleOf", func(before, after any) bool { return math.Mod(number(before, math.NaN()), number(after, 1)) != 0 }},
	{"format", func(before, after any) bool {
		return before != after && (before != "int32" || after != "int64") && (before != "float" || after != "double")
	}},
	{"exclusiveMaximum", changed}, {"exclusiveMinimum", changed}, {"pattern", changed}, {"uniqueItems", changed},
	{"allOf", changed}, {"anyOf", changed}, {"oneOf", changed}, {"not", changed},
	{"x-kubernetes-embedded-resource", changed},
}

func changed(before, after any) bool { return !reflect.DeepEqual(before, after) }

func lowered(before, after any) bool { return number(after, 0) < number(before, math.Inf(1)) }

func raised(before, after any) bool { return number(after, 0) > number(before, math.Inf(-1)) }

func raisedCount(before, after any) bool { return number(after, 0) > number(before, 0) }

func number(value any, absent float64) float64 {
	if n, ok := value.(float64); ok {
		return n
	}
	return absent
}

func removesValues(before, after any) bool {
	last, _ := before.([]any)
	next, _ := after.([]any)
	return last == nil || slices.ContainsFunc(last, func(value any) bool {
		return !slices.ContainsFunc(next, func(v any) bool { return reflect.DeepEqual(v, value) })
	})
}

// compare reports the incompatible changes from schema s to schema after.
func (s jsonSchema) compare(after jsonSchema, path string, c *collector) {
	if from, to := s.typeName(), after.typeName(); !acceptsType(from, to) {
		c.add(path, "", "the type changes from %s to %s", from, to)
		return
	}
	if s["nullable"] == true && after["nullable"] != true && !after.isFree() {
		c.add(path, "", "null is no longer accepted")
	}
	for _, r := range restrictions {
		if value, has := after[r.keyword]; has && r.restrict(s[r.keyword], value) {
			c.add(path+"."+r.keyword, "", "is added or accepts fewer values")
		}
	}
	s.compareFields(after, path, c)
	if last, next := s.get("items"), after.get("items"); last != nil && next != nil {
		last.compare(next, path+".items", c)
	}
	const listType, listKeys = "x-kubernetes-list-type", "x-kubernetes-list-map-keys"
	switch last, next := s.text(listType, "atomic"), after.text(listType, "atomic"); {
	case next != last && next != "atomic":
		c.add(path+"."+listType, "", "changes from %s to %s, which does not allow duplicate items", last, next)
	case next == last && changed(s[listKeys], after[listKeys]):
		c.add(path+"."+listKeys, "", "the keys change")
	}
}

func (s jsonSchema) compareFields(after jsonSchema, path string, c *collector) {
	if s.isFree() && !after.isFree() {
		c.add(path, "", "unknown fields are no longer preserved")
	}
	const values = "additionalProperties"
	if last, next := s.get(values), after.get(values); last != nil && next != nil {
		last.compare(next, path+"."+values, c)
	} else if last != nil && !after.isFree() {
		c.add(path+"."+values, "", "is removed")
	}
	names := maps.Clone(s.get("properties"))
	if names == nil {
		names = jsonSchema{}
	}
	maps.Copy(names, after.get("properties"))
	for _, name := range slices.Sorted(maps.Keys(names)) {
		switch last, next := s.field(name), after.field(name); {
		case last != nil && next != nil:
			last.compare(next, child(path+".properties", name), c)
		case last != nil:
			c.add(child(path+".properties", name), "", "the field is removed")
		}
	}
	was, _ := s["required"].([]any)
	required, _ := after["required"].([]any)
	for _, name := range required {
		name, _ := name.(string)
		if _, hasDefault := after.get("properties").get(name)["default"]; !hasDefault && !slices.Contains(was, any(name)) {
			c.add(child(path+".properties", name), "", "the field becomes required and has no default")
		}
	}
}

// get returns the schema, or the map of schemas, under a keyword, or nil if the keyword is absent.
func (s jsonSchema) get(keyword string) jsonSchema {
	value, _ := s[keyword].(map[string]any)
	return value
}

func (s jsonSchema) text(keyword, absent string) string {
	if value, ok := s[keyword].(string); ok {
		return value
	}
	return absent
}

// field returns the schema of a field, or nil if the API server prunes the field.
func (s jsonSchema) field(name string) jsonSchema {
	switch field, values := s.get("properties").get(name), s.get("additionalProperties"); {
	case field != nil:
		return field
	case values != nil:
		return values
	case s.isFree():
		return jsonSchema{"x-kubernetes-preserve-unknown-fields": true}
	}
	return nil
}

// isFree reports whether unknown fields of an object are preserved.
func (s jsonSchema) isFree() bool {
	return s["x-kubernetes-preserve-unknown-fields"] == true || s["additionalProperties"] == true
}

// typeName returns the type that the schema requires, or "any".
func (s jsonSchema) typeName() string {
	if s["x-kubernetes-int-or-string"] == true {
		return "integer or string"
	}
	return s.text("type", "any")
}

func acceptsType(from, to string) bool {
	return from == to || to == "any" || to == "number" && from == "integer" ||
		to == "integer or string" && (from == "integer" || from == "string")
}
