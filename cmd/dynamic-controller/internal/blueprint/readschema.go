package blueprint

import (
	"reflect"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
)

// readSchema contains the parts of a schema that determine how the API server changes the objects that it reads: it
// adds default values, and removes unknown fields and nulls.
type readSchema struct {
	properties map[string]*readSchema
	items      *readSchema // of a list; can be nil
	values     *readSchema // of additionalProperties; can be nil
	isMap      bool        // whether additionalProperties is set
	isDefault  bool        // whether the value has a default
	nullable   bool
	preserves  bool // whether unknown fields are kept
	embedded   bool // whether the value is an object with apiVersion, kind and metadata
}

// plain is the schema of most fields. It is shared because a type can have many fields.
var plain = &readSchema{}

// readSchemaOf returns the schema under which the API server reads objects of a type in the given version, or nil if it
// is unknown. The API server adds default values only in the storage version.
func readSchemaOf(crd *apiextensionsv1.CustomResourceDefinition, version string) (*readSchema, error) {
	if crd == nil || crd.Spec.PreserveUnknownFields {
		return nil, nil
	}
	if version == "" {
		version = VersionOf(crd)
	}
	for _, v := range crd.Spec.Versions {
		if v.Name != version || !v.Storage {
			continue
		}
		root, err := structuralOf(crd.Name, v.Schema)
		if err != nil || root == nil {
			return nil, err
		}
		out := *newReadSchema(root)
		out.embedded = true
		return &out, nil
	}
	return nil, nil
}

func newReadSchema(s *structural.Structural) *readSchema {
	if s == nil {
		return nil
	}
	out := &readSchema{
		items: newReadSchema(s.Items), isDefault: s.Default.Object != nil, nullable: s.Nullable,
		preserves: s.XPreserveUnknownFields, embedded: s.XEmbeddedResource,
	}
	if s.AdditionalProperties != nil {
		out.isMap, out.values = true, newReadSchema(s.AdditionalProperties.Structural)
	}
	if len(s.Properties) > 0 {
		out.properties = make(map[string]*readSchema, len(s.Properties))
	}
	for name, property := range s.Properties {
		out.properties[name] = newReadSchema(&property)
	}
	if reflect.DeepEqual(out, plain) {
		return plain
	}
	return out
}

// keeps reports whether the API server does not change the value when it reads it.
func (s *readSchema) keeps(value any) bool {
	switch value := value.(type) {
	case map[string]any:
		return s.keepsFields(value)
	case []any:
		for _, item := range value {
			if s != nil && s.items.defaults(item) || !s.itemSchema().keeps(item) {
				return false
			}
		}
	}
	return true
}

func (s *readSchema) keepsFields(fields map[string]any) bool {
	if s == nil {
		return len(fields) == 0
	}
	for name, property := range s.properties {
		if _, has := fields[name]; !has && property.isDefault {
			return false
		}
	}
	for name, value := range fields {
		property, known := s.properties[name]
		if !known {
			property, known = s.values, s.isMap
		}
		switch {
		case s.embedded && (name == "apiVersion" || name == "kind" || name == "metadata"):
		case !known && s.preserves:
		case !known, value == nil && property != nil && !property.nullable, !property.keeps(value):
			return false
		}
	}
	return true
}

// itemSchema returns the schema of the items of a list. If s preserves unknown fields, so do the items.
func (s *readSchema) itemSchema() *readSchema {
	switch {
	case s == nil:
		return nil
	case !s.preserves:
		return s.items
	}
	var items readSchema
	if s.items != nil {
		items = *s.items
	}
	items.preserves = true
	return &items
}

// defaults reports whether the API server replaces the item of a list with a default value.
func (s *readSchema) defaults(item any) bool {
	return item == nil && s != nil && s.isDefault && !s.nullable
}

// CanBeRead reports whether the API server can return the instance under the schema of the type. It returns false if
// the instance lacks a default value or has an unknown field. Such an instance was read before the schema was changed,
// or by an API server that has not received the change yet.
//
// The reverse does not hold. For example, an instance that was read under a schema with another default value contains
// that value. CanBeRead ignores the fields that expressions cannot read.
func (c *Compiled) CanBeRead(instance map[string]any) bool {
	return c.readSchema == nil || c.readSchema.keeps(selfOf(instance, c.writtenStatus))
}

// HasSchemaOf reports whether the API server reads instances for both Blueprints in the same way.
func (c *Compiled) HasSchemaOf(other *Compiled) bool {
	type version struct {
		name            string
		served, storage bool
		schema          *apiextensionsv1.CustomResourceValidation
	}
	type reading struct {
		versions   []version
		conversion *apiextensionsv1.CustomResourceConversion
		preserves  bool
	}
	of := func(crd *apiextensionsv1.CustomResourceDefinition) (r reading) {
		if crd == nil {
			return r
		}
		r.conversion, r.preserves = crd.Spec.Conversion, crd.Spec.PreserveUnknownFields
		for _, v := range crd.Spec.Versions {
			r.versions = append(r.versions, version{v.Name, v.Served, v.Storage, v.Schema})
		}
		return r
	}
	return reflect.DeepEqual(of(c.definition), of(other.definition))
}
