package published

import (
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// described is a definition as expressions and templates are checked against it. What it refers to is looked up when it is
// asked for, and is not described where it is within itself, as a JSONSchemaProps is many times.
type described struct {
	common.Schema // nothing, for what is not kept
	is            *definition
	all           map[string]*definition
	within        *chain
}

// nothing describes nothing.
var nothing common.Schema = &openapi.Schema{Schema: &spec.Schema{}}

// chain are the definitions that something is within, the innermost first.
type chain struct {
	name  string
	above *chain
}

func (c *chain) has(name string) bool {
	for ; c != nil; c = c.above {
		if c.name == name {
			return true
		}
	}
	return false
}

// at describes a part.
func (d *described) at(part *definition) common.Schema {
	if part == nil {
		return nil
	}
	within, value := d.within, part.value
	for part.ref != "" {
		next := d.all[part.ref]
		if next == nil || within.has(part.ref) {
			return nothing
		}
		part, within = next, &chain{part.ref, within}
	}
	return &described{defaulting{nothing, value}, part, d.all, within}
}

// defaulting is nothing with a default, which is said beside a reference and not where that leads to.
type defaulting struct {
	common.Schema
	value any
}

func (d defaulting) Default() any { return d.value }

func (d *described) Type() string                   { return d.is.kind }
func (d *described) Format() string                 { return d.is.format }
func (d *described) Items() common.Schema           { return d.at(d.is.items) }
func (d *described) Enum() []any                    { return d.is.enum }
func (d *described) XListType() string              { return d.is.listType }
func (d *described) XListMapKeys() []string         { return d.is.keys }
func (d *described) IsXPreserveUnknownFields() bool { return d.is.open }
func (d *described) IsXIntOrString() bool           { return d.is.intOrString }
func (d *described) IsXEmbeddedResource() bool      { return d.is.embedded }

func (d *described) Properties() map[string]common.Schema {
	if len(d.is.properties) == 0 {
		return nil
	}
	out := make(map[string]common.Schema, len(d.is.properties))
	for name, p := range d.is.properties {
		out[name] = d.at(p)
	}
	return out
}

func (d *described) AdditionalProperties() common.SchemaOrBool {
	if d.is.values == nil && !d.is.any {
		return nil
	}
	return schemaOrBool{d.at(d.is.values)}
}

// schemaOrBool is what is known of the values of a map, which there may be.
type schemaOrBool struct{ schema common.Schema }

func (v schemaOrBool) Schema() common.Schema { return v.schema }
func (schemaOrBool) Allows() bool            { return true }
