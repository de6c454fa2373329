package blueprint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// IncompatibleChanges compares the schema of an existing CustomResourceDefinition with the one that replaces it. It
// returns the changes that could make an existing object invalid or remove fields from it, or nil if there are none.
//
// It does not compare x-kubernetes-validations, because a rule can restrict transitions, and the API server does not
// evaluate it for a value that an update does not change. The status fields that the platform defines are not compared
// either.
func IncompatibleChanges(before, after *apiextensionsv1.CustomResourceDefinition) Problems {
	c := &collector{}
	for _, next := range after.Spec.Versions {
		for _, last := range before.Spec.Versions {
			if last.Name == next.Name && last.Schema != nil && next.Schema != nil {
				compareSchemas(authorsPart(last.Schema.OpenAPIV3Schema), authorsPart(next.Schema.OpenAPIV3Schema), typePath+".schema", c)
			}
		}
	}
	return c.problems
}

// authorsPart returns the schema without the fields of the status that the platform defines.
func authorsPart(root *apiextensionsv1.JSONSchemaProps) *apiextensionsv1.JSONSchemaProps {
	out := *root
	out.Properties = maps.Clone(root.Properties)
	if status, has := out.Properties["status"]; has {
		status.Properties = without(status.Properties, writtenStatus)
		out.Properties["status"] = status
	}
	return &out
}

func compareSchemas(before, after *apiextensionsv1.JSONSchemaProps, path string, c *collector) {
	if !acceptsType(before, after) {
		c.add(path, "", "the type changes from %s to %s", schemaType(before), schemaType(after))
		return
	}
	if before.Nullable && !after.Nullable && !isFree(after) {
		c.add(path, "", "null is no longer accepted")
	}
	if after.XEmbeddedResource && !before.XEmbeddedResource {
		c.add(path, "", "it must be a Kubernetes object now")
	}
	compareEnums(before, after, path, c)
	compareBounds(before, after, path, c)
	compareFields(before, after, path, c)
	compareLists(before, after, path, c)
	for _, combined := range []struct {
		keyword string
		before  any
		after   any
		none    bool
	}{
		{"allOf", before.AllOf, after.AllOf, len(after.AllOf) == 0},
		{"anyOf", before.AnyOf, after.AnyOf, len(after.AnyOf) == 0},
		{"oneOf", before.OneOf, after.OneOf, len(after.OneOf) == 0},
		{"not", before.Not, after.Not, after.Not == nil},
	} {
		if !combined.none && !equality.Semantic.DeepEqual(combined.before, combined.after) {
			c.add(path+"."+combined.keyword, "", "is added or changed")
		}
	}
}

// schemaType returns the type that the schema requires, or "any".
func schemaType(s *apiextensionsv1.JSONSchemaProps) string {
	if s.XIntOrString {
		return "integer or string"
	}
	return cmp.Or(s.Type, "any")
}

func acceptsType(before, after *apiextensionsv1.JSONSchemaProps) bool {
	from, to := schemaType(before), schemaType(after)
	switch {
	case from == to, to == "any":
		return true
	case to == "number":
		return from == "integer"
	case to == "integer or string":
		return from == "integer" || from == "string"
	}
	return false
}

// isFree reports whether an object's unknown fields are kept as they are.
func isFree(s *apiextensionsv1.JSONSchemaProps) bool {
	return s.XPreserveUnknownFields != nil && *s.XPreserveUnknownFields ||
		s.AdditionalProperties != nil && s.AdditionalProperties.Allows && s.AdditionalProperties.Schema == nil
}

// valuesOf returns the schema of a map's values, or nil.
func valuesOf(s *apiextensionsv1.JSONSchemaProps) *apiextensionsv1.JSONSchemaProps {
	if s.AdditionalProperties == nil {
		return nil
	}
	return s.AdditionalProperties.Schema
}

func compareFields(before, after *apiextensionsv1.JSONSchemaProps, path string, c *collector) {
	if isFree(before) && !isFree(after) {
		c.add(path, "", "unknown fields are no longer kept")
	}
	values := valuesOf(after)
	if last := valuesOf(before); last != nil && values != nil {
		compareSchemas(last, values, path+".additionalProperties", c)
	} else if last != nil && !isFree(after) {
		c.add(path+".additionalProperties", "", "is removed")
	}
	for _, name := range slices.Sorted(maps.Keys(before.Properties)) {
		at := child(path+".properties", name)
		last := before.Properties[name]
		next, has := after.Properties[name]
		switch {
		case has:
			compareSchemas(&last, &next, at, c)
		case values != nil:
			compareSchemas(&last, values, at, c)
		case !isFree(after):
			c.add(at, "", "the field is removed")
		}
	}
	compareNewFields(before, after, path, c)
	for _, name := range after.Required {
		if !slices.Contains(before.Required, name) && after.Properties[name].Default == nil {
			c.add(child(path+".properties", name), "", "the field is required now and has no default")
		}
	}
}

// compareNewFields compares new fields with the schema that applied to them before. Existing objects can have such
// fields if the schema was a map or kept unknown fields.
func compareNewFields(before, after *apiextensionsv1.JSONSchemaProps, path string, c *collector) {
	for _, name := range slices.Sorted(maps.Keys(after.Properties)) {
		next := after.Properties[name]
		if _, had := before.Properties[name]; had {
			continue
		}
		at := child(path+".properties", name)
		if values := valuesOf(before); values != nil {
			compareSchemas(values, &next, at, c)
		} else if isFree(before) {
			compareSchemas(&apiextensionsv1.JSONSchemaProps{XPreserveUnknownFields: before.XPreserveUnknownFields}, &next, at, c)
		}
	}
}

func compareLists(before, after *apiextensionsv1.JSONSchemaProps, path string, c *collector) {
	if before.Items != nil && after.Items != nil && before.Items.Schema != nil && after.Items.Schema != nil {
		compareSchemas(before.Items.Schema, after.Items.Schema, path+".items", c)
	}
	const atomic = "atomic"
	last, next := atomic, atomic
	if before.XListType != nil {
		last = *before.XListType
	}
	if after.XListType != nil {
		next = *after.XListType
	}
	switch {
	case next != last && next != atomic:
		c.add(path+".x-kubernetes-list-type", "", "changes from %s to %s, which does not allow duplicate items", last, next)
	case next == last && !slices.Equal(before.XListMapKeys, after.XListMapKeys):
		c.add(path+".x-kubernetes-list-map-keys", "", "are changed")
	}
}

func compareEnums(before, after *apiextensionsv1.JSONSchemaProps, path string, c *collector) {
	if after.Enum == nil {
		return
	}
	if before.Enum == nil {
		c.add(path+".enum", "", "is added")
		return
	}
	var removed []string
	for _, value := range before.Enum {
		if !slices.ContainsFunc(after.Enum, func(v apiextensionsv1.JSON) bool { return sameJSON(v.Raw, value.Raw) }) {
			removed = append(removed, cut(string(value.Raw), maxQuoted))
		}
	}
	if len(removed) > maxValuesTold {
		removed = append(removed[:maxValuesTold], fmt.Sprintf("and %d more", len(removed)-maxValuesTold))
	}
	if len(removed) > 0 {
		c.add(path+".enum", "", "values are removed: %v", removed)
	}
}

func sameJSON(a, b []byte) bool {
	var left, right bytes.Buffer
	return json.Compact(&left, a) == nil && json.Compact(&right, b) == nil && bytes.Equal(left.Bytes(), right.Bytes())
}

// compareBounds compares the keywords that limit a scalar, or the number of items or fields.
func compareBounds(before, after *apiextensionsv1.JSONSchemaProps, path string, c *collector) {
	for _, bound := range []struct {
		keyword  string
		narrowed bool
	}{
		{"maximum", lowered(before.Maximum, after.Maximum)},
		{"exclusiveMaximum", after.ExclusiveMaximum && !before.ExclusiveMaximum},
		{"minimum", raised(before.Minimum, after.Minimum)},
		{"exclusiveMinimum", after.ExclusiveMinimum && !before.ExclusiveMinimum},
		{"multipleOf", after.MultipleOf != nil && (before.MultipleOf == nil || math.Mod(*before.MultipleOf, *after.MultipleOf) != 0)},
		{"maxLength", lowered(before.MaxLength, after.MaxLength)},
		{"minLength", raised(orZero(before.MinLength), after.MinLength)},
		{"maxItems", lowered(before.MaxItems, after.MaxItems)},
		{"minItems", raised(orZero(before.MinItems), after.MinItems)},
		{"maxProperties", lowered(before.MaxProperties, after.MaxProperties)},
		{"minProperties", raised(orZero(before.MinProperties), after.MinProperties)},
		{"uniqueItems", after.UniqueItems && !before.UniqueItems},
		{"pattern", after.Pattern != "" && after.Pattern != before.Pattern},
		{"format", after.Format != "" && after.Format != before.Format && !slices.Contains(widerFormats[before.Format], after.Format)},
	} {
		if bound.narrowed {
			c.add(path+"."+bound.keyword, "", "is added or accepts fewer values")
		}
	}
}

// widerFormats maps a format to the formats that accept all of its values.
var widerFormats = map[string][]string{"int32": {"int64"}, "float": {"double"}}

func lowered[N int64 | float64](before, after *N) bool {
	return after != nil && (before == nil || *after < *before)
}

func raised[N int64 | float64](before, after *N) bool {
	return after != nil && (before == nil || *after > *before)
}

func orZero(n *int64) *int64 {
	if n == nil {
		return new(int64)
	}
	return n
}
