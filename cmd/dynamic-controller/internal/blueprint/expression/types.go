package expression

import (
	"maps"
	"slices"

	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/common"
)

// Schemas of runtime-defined types can be as large as a request, and those that the server publishes are unfolded where
// they refer to themselves. What is beyond these limits is not checked: its type is dyn.
const (
	maxTypeDepth = 32
	maxTypes     = 20_000
)

// declared are the types of one environment, made from schemas.
//
// Kubernetes' own conversion serves validation: it leaves out what a schema does not describe, gives names that are no
// identifiers others, and makes times of strings. Templates copy: here what is not described is dyn, names stay, and a
// string is a string.
type declared struct{ left int }

func newDeclared() *declared { return &declared{left: maxTypes} }

// isOpen tells whether nothing is said of what is in a value.
func isOpen(s common.Schema) bool {
	return s == nil || s.Type() == "" || isIntOrString(s) || s.IsXEmbeddedResource()
}

func isIntOrString(s common.Schema) bool { return s.IsXIntOrString() || s.Format() == "int-or-string" }

// of returns the type of what the schema describes, whose name begins with the one given: dyn where that is nothing.
func (d *declared) of(s common.Schema, name string, depth int) *apiservercel.DeclType {
	if d.left--; d.left < 0 || depth > maxTypeDepth || isOpen(s) || s.IsXPreserveUnknownFields() {
		return apiservercel.DynType
	}
	switch s.Type() {
	case "object":
		if p := s.Properties(); len(p) > 0 {
			fields := make(map[string]*apiservercel.DeclField, len(p))
			// In order, so that beyond the limits it is always the same that is not checked.
			for _, field := range slices.Sorted(maps.Keys(p)) {
				t := d.of(p[field], name+"."+field, depth+1)
				fields[field] = apiservercel.NewDeclField(field, t, slices.Contains(s.Required(), field), nil, nil)
			}
			return apiservercel.NewObjectType(name, fields)
		}
		if a := s.AdditionalProperties(); a != nil && a.Schema() != nil {
			return apiservercel.NewMapType(apiservercel.StringType, d.of(a.Schema(), name+".@values", depth+1), items(s.MaxProperties()))
		}
		return apiservercel.DynType
	case "array":
		if s.Items() == nil {
			return apiservercel.DynType
		}
		return apiservercel.NewListType(d.of(s.Items(), name+".@items", depth+1), items(s.MaxItems()))
	case "string":
		t := apiservercel.NewSimpleTypeWithMinSize("string", apiservercel.StringType.CelType(), nil, apiservercel.MinStringSize)
		t.MaxElements = length(s)
		return t
	case "boolean":
		return apiservercel.BoolType
	case "integer":
		return apiservercel.IntType
	case "number":
		// A number without a fraction comes out of JSON as an integer.
		return apiservercel.DynType
	}
	return apiservercel.DynType
}

func items(declared *int64) int64 {
	if declared == nil {
		return usualItems
	}
	return max(*declared, 0)
}

// length counts bytes, of which a character has up to four.
func length(s common.Schema) int64 {
	if s.MaxLength() != nil {
		return 4 * max(*s.MaxLength(), 0)
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
	return usualLength
}
