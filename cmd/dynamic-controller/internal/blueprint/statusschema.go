package blueprint

import (
	"maps"
	"reflect"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/utils/ptr"
)

// addStatus checks the fields of spec.type.status against the schema of the type. If the Blueprint defines the type,
// addStatus first adds the fields to the schema. All valid expressions must already be compiled.
func (c *Compiled) addStatus(t Type, options Options, problems *collector) {
	if len(t.Status) == 0 || c.definition == nil {
		return
	}
	if t.CRD == "" {
		c.deriveStatus(t, options, problems)
	}
	root, err := schemaOf(c.definition, options.Version)
	if err != nil || root == nil {
		return // already reported for self, or the schema accepts any value
	}
	status, has := root.Properties["status"]
	if !has {
		problems.add(statusPath, "", "the schema of the type has no status")
		return
	}
	(&checking{problems: problems}).check(c.report.fields, newFieldSchema(&model.Structural{Structural: &status}),
		statusPath, false)
}

// deriveStatus derives the schemas of the status fields that the author's schema does not declare, and adds them to the
// definition. It also checks the printer columns that refer to these fields.
func (c *Compiled) deriveStatus(t Type, options Options, problems *collector) {
	root := c.definition.Spec.Versions[0].Schema.OpenAPIV3Schema
	fields, existing := root.Properties["status"].Properties, statusFields(options.CRD, t.Version)
	keys, value := fieldsOf(c.report.fields)
	for i, name := range keys {
		if _, declared := declaredStatus(t)[name]; !declared && !slices.Contains(PlatformStatus, name) {
			fields[name] = derive(value(i))
			if before, has := existing[name]; has {
				fields[name] = keepSchema(before, fields[name])
			}
		}
	}
	found := &collector{}
	checkColumns(t.PrinterColumns, root, found)
	for _, p := range found.problems {
		if !slices.Contains(problems.problems, p) { // otherwise, define has already reported it
			problems.problems = append(problems.problems, p)
		}
	}
}

// declaredStatus returns the status fields that the author's schema declares.
func declaredStatus(t Type) map[string]any {
	return jsonSchema(t.Schema).get("properties").get("status").get("properties")
}

// statusFields returns the schemas of the status fields, or nil if they are unknown.
func statusFields(
	crd *apiextensionsv1.CustomResourceDefinition, version string,
) map[string]apiextensionsv1.JSONSchemaProps {
	if crd == nil {
		return nil
	}
	for _, v := range crd.Spec.Versions {
		if v.Name == version && v.Schema != nil && v.Schema.OpenAPIV3Schema != nil {
			return v.Schema.OpenAPIV3Schema.Properties["status"].Properties
		}
	}
	return nil
}

// anything returns a schema that accepts any value.
func anything() apiextensionsv1.JSONSchemaProps {
	return apiextensionsv1.JSONSchemaProps{XPreserveUnknownFields: ptr.To(true)}
}

// derive returns the schema of a part of the status. The schema accepts any value if the type of the part is unknown.
func derive(n node) apiextensionsv1.JSONSchemaProps {
	switch n := n.(type) {
	case whole:
		if n.Program == nil {
			return anything() // the expression has a problem
		}
		return n.Schema()
	case text:
		return apiextensionsv1.JSONSchemaProps{Type: "string"}
	}
	switch made := typeOf(n); made {
	case "object":
		out := apiextensionsv1.JSONSchemaProps{Type: made, Properties: map[string]apiextensionsv1.JSONSchemaProps{}}
		keys, value := fieldsOf(n)
		for i, key := range keys {
			out.Properties[key] = derive(value(i))
		}
		return out
	case "array":
		items := anything()
		count, item := itemsOf(n)
		for i := range count {
			if each := derive(item(i)); i == 0 {
				items = each
			} else if !reflect.DeepEqual(each, items) {
				items = anything()
			}
		}
		return apiextensionsv1.JSONSchemaProps{
			Type: made, Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &items},
		}
	case "number":
		if _, is := n.(literal).value.(int64); is {
			made = "integer"
		}
		return apiextensionsv1.JSONSchemaProps{Type: made}
	case "":
		return anything()
	default:
		return apiextensionsv1.JSONSchemaProps{Type: made}
	}
}

// keepSchema returns the derived schema, except for parts of the existing schema that accept more values or whose
// derived type is unknown. It keeps these parts so that the schema does not change while the schemas of other kinds are
// temporarily unknown. To make a part narrower, the author must declare it.
func keepSchema(existing, derived apiextensionsv1.JSONSchemaProps) apiextensionsv1.JSONSchemaProps {
	switch {
	case derived.Type == "" || existing.Type == "" && !existing.XIntOrString,
		existing.XIntOrString && (derived.Type == "integer" || derived.Type == "string"),
		existing.Type == "number" && derived.Type == "integer",
		existing.Type == derived.Type && ptr.Deref(existing.XPreserveUnknownFields, false):
		return existing
	case existing.Type != derived.Type:
		return derived // an incompatible change to the type
	}
	for name, field := range derived.Properties {
		if before, has := existing.Properties[name]; has {
			derived.Properties[name] = keepSchema(before, field)
		}
	}
	if last, next := existing.Items, derived.Items; last != nil && last.Schema != nil && next != nil {
		next.Schema = ptr.To(keepSchema(*last.Schema, *next.Schema))
	}
	if last, next := existing.AdditionalProperties, derived.AdditionalProperties; last != nil && next != nil {
		if last.Schema == nil {
			return existing // the derived schema accepts any value
		}
		next.Schema = ptr.To(keepSchema(*last.Schema, *next.Schema))
	}
	return derived
}

// OlderType returns the type with which an older revision is compiled while the newest revision, c, is rolled out. The
// schema is that of c because a type has only one schema. The status fields and conditions are those of the older
// revision because their expressions refer to its resources. Status fields that are not in the schema of c are omitted.
func (c *Compiled) OlderType(newest, older Type) Type {
	hasStatus := len(newest.Status) > 0
	newest.Status, newest.Conditions = older.Status, older.Conditions
	if newest.CRD != "" {
		return newest
	}
	root := c.definition.Spec.Versions[0].Schema.OpenAPIV3Schema
	newest.Status = maps.Clone(older.Status)
	maps.DeleteFunc(newest.Status, func(name string, _ any) bool {
		_, has := root.Properties["status"].Properties[name]
		return !has
	})
	if hasStatus {
		newest.Schema = withStatus(newest.Schema, root)
	}
	return newest
}

// withStatus returns a copy of the author's schema that also declares all status fields of the root schema, except
// those of the platform.
func withStatus(authors map[string]any, root *apiextensionsv1.JSONSchemaProps) map[string]any {
	authors = maps.Clone(authors)
	properties := maps.Clone(jsonSchema(authors).get("properties"))
	if properties == nil {
		properties = jsonSchema{}
	}
	properties["status"] = map[string]any(authorsPart(root).get("properties").get("status"))
	authors["properties"] = map[string]any(properties)
	return authors
}
