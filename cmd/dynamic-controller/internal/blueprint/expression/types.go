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
// fields whose names are not identifiers, and converts strings of certain formats to timestamps. Templates, however,
// copy values. In this conversion, values that a schema does not describe have the type dyn, the names of fields do not
// change, and strings remain strings.
type declarations struct{ left int }

// typeOf converts a schema to a type. Values that the schema does not describe have the type dyn.
func (d *declarations) typeOf(s common.Schema, name string, depth int) *apiservercel.DeclType {
	if d.left--; d.left < 0 || depth > maxSchemaDepth || isOpen(s) || s.IsXPreserveUnknownFields() {
		return apiservercel.DynType
	}
	switch s.Type() {
	case "object":
		if properties := s.Properties(); len(properties) > 0 {
			fields := make(map[string]*apiservercel.DeclField, len(properties))
			// The fields are sorted so that all replicas declare the same fields if maxSchemaTypes is exceeded.
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
	return apiservercel.DynType // including numbers, which are decoded as integers if they have no fraction
}

// isOpen reports whether the schema does not describe the fields or items of the values that it accepts.
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
		return 4 * max(*s.MaxLength(), 0) // a character can have four bytes
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

// TypesOf returns the JSON types that a schema allows, or nil if it allows all types. Integers are reported as "number"
// because the API server converts between the two.
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

// Fits reports whether the value can be assigned to a field with the schema. An optional fits if the value that it
// contains fits.
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
	return true // the type is known only at evaluation
}
