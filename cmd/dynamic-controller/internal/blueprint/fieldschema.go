package blueprint

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
)

// fieldSchema wraps a schema and converts each part of it at most once.
type fieldSchema struct {
	common.Schema
	fields        map[string]*fieldSchema
	items, values *fieldSchema
	orBool        bool // whether booleans are accepted in addition to the type
}

// newFieldSchema wraps a schema. If s is nil, the result accepts any value.
func newFieldSchema(s common.Schema) *fieldSchema {
	if s == nil {
		s = &openapi.Schema{Schema: &spec.Schema{}}
	}
	return &fieldSchema{Schema: s}
}

// field returns the schema of a field, or nil if it is unknown.
func (s *fieldSchema) field(name string) *fieldSchema {
	if s.fields == nil {
		s.fields = map[string]*fieldSchema{}
		for name, field := range s.Properties() {
			s.fields[name] = newFieldSchema(field)
		}
	}
	return s.fields[name]
}

func (s *fieldSchema) item() *fieldSchema {
	if s.items == nil {
		s.items = newFieldSchema(s.Items())
	}
	return s.items
}

// isMap reports whether fields other than those in Properties are accepted.
func (s *fieldSchema) isMap() bool {
	a := s.AdditionalProperties()
	return a != nil && (a.Allows() || a.Schema() != nil)
}

// value returns the schema of the values of a map.
func (s *fieldSchema) value() *fieldSchema {
	if s.values == nil {
		s.values = newFieldSchema(s.AdditionalProperties().Schema())
	}
	return s.values
}

// types returns the accepted JSON types, or nil if all are accepted.
func (s *fieldSchema) types() []string {
	if types := expression.TypesOf(s.Schema); types != nil && s.orBool {
		return append(types, "boolean")
	}
	return expression.TypesOf(s.Schema)
}

// suggest suggests a known field with a similar name.
func (s *fieldSchema) suggest(name string) string {
	return suggest(name, slices.Sorted(maps.Keys(s.fields)))
}

// typeName describes the accepted types.
func (s *fieldSchema) typeName() string {
	switch t := s.Type(); {
	case s.IsXEmbeddedResource():
		return "an object"
	case len(s.types()) > 1 && !s.orBool:
		return "a number or a string"
	case t == "object" && len(s.Properties()) == 0 && len(s.fields) == 0:
		if s.isMap() {
			return "a map" + itemType(s.value())
		}
		return "a map"
	case t == "object" || t == "integer":
		return "an " + t
	case t == "array":
		return "a list" + itemType(s.item())
	default:
		return "a " + t
	}
}

func itemType(s *fieldSchema) string {
	switch t := s.Type(); t {
	case "":
		return ""
	case "array":
		return " of lists"
	default:
		return " of " + t + "s"
	}
}

// keywords returns the schema of a schema: it describes the keywords of an OpenAPI v3 schema in a
// CustomResourceDefinition.
var keywords = sync.OnceValue(func() *fieldSchema {
	return schemaOfType(reflect.TypeFor[apiextensionsv1.JSONSchemaProps](), map[reflect.Type]*fieldSchema{})
})

// schemaOfType returns the schema of a Go type, which can be recursive.
func schemaOfType(t reflect.Type, known map[reflect.Type]*fieldSchema) *fieldSchema {
	of := func(kind string) *fieldSchema {
		return newFieldSchema(&openapi.Schema{Schema: &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{kind}}}})
	}
	switch t {
	case reflect.TypeFor[apiextensionsv1.JSON]():
		return newFieldSchema(nil)
	case reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrBool]():
		out := of("object")
		out.fields, out.orBool = schemaOfType(reflect.TypeFor[apiextensionsv1.JSONSchemaProps](), known).fields, true
		return out
	case reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrArray](),
		reflect.TypeFor[apiextensionsv1.JSONSchemaPropsOrStringArray]():
		return schemaOfType(reflect.TypeFor[apiextensionsv1.JSONSchemaProps](), known)
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOfType(t.Elem(), known)
	case reflect.String:
		return of("string")
	case reflect.Bool:
		return of("boolean")
	case reflect.Slice:
		out := of("array")
		out.items = schemaOfType(t.Elem(), known)
		return out
	case reflect.Map:
		out := newFieldSchema(&openapi.Schema{Schema: spec.MapProperty(nil)})
		out.values = schemaOfType(t.Elem(), known)
		return out
	case reflect.Struct:
		if known[t] == nil {
			known[t] = of("object")
			known[t].fields = map[string]*fieldSchema{}
			for f := range t.Fields() {
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				known[t].fields[name] = schemaOfType(f.Type, known)
			}
		}
		return known[t]
	default:
		return of("number")
	}
}
