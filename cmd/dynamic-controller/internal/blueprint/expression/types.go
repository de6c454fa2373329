package expression

import (
	"maps"
	"slices"

	"github.com/google/cel-go/common/types"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/common"
)

// declarations converts schemas to the types of one environment.
//
// Kubernetes' own conversion is designed for validation. It omits values that a schema does not describe, renames
// fields whose names are not identifiers, and converts strings with certain formats to timestamps. Templates copy
// values. So here, values that a schema does not describe are dyn, names do not change, and strings remain strings.
type declarations struct{ left int }

// typeOf returns the type of the values that a schema describes. Values that the schema does not describe are dyn.
func (d *declarations) typeOf(s common.Schema, name string, depth int) *apiservercel.DeclType {
	if d.left--; d.left < 0 || depth > maxSchemaDepth || isOpen(s) || s.IsXPreserveUnknownFields() {
		return apiservercel.DynType
	}
	switch s.Type() {
	case "object":
		if properties := s.Properties(); len(properties) > 0 {
			fields := make(map[string]*apiservercel.DeclField, len(properties))
			// Sorted, so that each replica checks the same fields within the limits.
			for _, field := range slices.Sorted(maps.Keys(properties)) {
				t := d.typeOf(properties[field], name+"."+field, depth+1)
				fields[field] = apiservercel.NewDeclField(field, t, slices.Contains(s.Required(), field), nil, nil)
			}
			return apiservercel.NewObjectType(name, fields)
		}
		if a := s.AdditionalProperties(); a != nil && a.Schema() != nil {
			values := d.typeOf(a.Schema(), name+".@values", depth+1)
			return apiservercel.NewMapType(apiservercel.StringType, values, maxItems(s.MaxProperties()))
		}
	case "array":
		if s.Items() != nil {
			return apiservercel.NewListType(d.typeOf(s.Items(), name+".@items", depth+1), maxItems(s.MaxItems()))
		}
	case "string":
		t := apiservercel.NewSimpleTypeWithMinSize("string", types.StringType, nil, apiservercel.MinStringSize)
		t.MaxElements = maxBytes(s)
		return t
	case "boolean":
		return apiservercel.BoolType
	case "integer":
		return apiservercel.IntType
	}
	return apiservercel.DynType // also for numbers, which JSON decodes as integers if they have no fraction
}

// isOpen reports whether the schema does not describe the parts of its values.
func isOpen(s common.Schema) bool {
	return s == nil || s.Type() == "" || isIntOrString(s) || s.IsXEmbeddedResource()
}

func isIntOrString(s common.Schema) bool { return s.IsXIntOrString() || s.Format() == "int-or-string" }

func maxItems(declared *int64) int64 {
	if declared == nil {
		return assumedItems
	}
	return max(*declared, 0)
}

func maxBytes(s common.Schema) int64 {
	if s.MaxLength() != nil {
		return 4 * max(*s.MaxLength(), 0) // a character has up to four bytes
	}
	var longest int64
	for _, v := range s.Enum() {
		if v, ok := v.(string); ok {
			longest = max(longest, int64(len(v)))
		}
	}
	if longest > 0 {
		return longest
	}
	return assumedLength
}

// TypesOf returns the JSON types that a schema allows, or nil if it allows any. An integer is a number, because the API
// server converts between them.
func TypesOf(s common.Schema) []string {
	switch {
	case s == nil:
		return nil
	case isIntOrString(s):
		return []string{"number", "string"}
	case s.IsXEmbeddedResource():
		return []string{"object"}
	case s.Type() == "":
		return nil
	case s.Type() == "integer":
		return []string{"number"}
	}
	return []string{s.Type()}
}

// Fits reports whether the value can be assigned to a field with the schema. An optional value is assignable if the
// value in it is.
func (p *Program) Fits(s common.Schema) bool { return assignable(p.output, s) }

func assignable(t *types.Type, s common.Schema) bool {
	allowed := TypesOf(s)
	allows := func(jsonType string) bool { return allowed == nil || slices.Contains(allowed, jsonType) }
	switch t.Kind() {
	case types.BoolKind:
		return allows("boolean")
	case types.IntKind, types.UintKind, types.DoubleKind:
		return allows("number")
	case types.StringKind, types.BytesKind, types.TimestampKind, types.DurationKind:
		return allows("string")
	case types.StructKind:
		return allows("object")
	case types.ListKind:
		return allows("array") && (isOpen(s) || assignable(t.Parameters()[0], s.Items()))
	case types.MapKind:
		if isOpen(s) || len(s.Properties()) > 0 || s.AdditionalProperties() == nil {
			return allows("object")
		}
		return allows("object") && assignable(t.Parameters()[1], s.AdditionalProperties().Schema())
	case types.OpaqueKind:
		if t.TypeName() == types.OptionalType.TypeName() {
			return assignable(t.Parameters()[0], s)
		}
	}
	return true // known only at evaluation
}
