package blueprint

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

const typePath = "spec.type"

// DefinitionName returns the name of the CustomResourceDefinition that the Blueprint refers to, or that is generated
// from it.
func DefinitionName(b *Blueprint) string {
	if t := b.Spec.Type; t.CRD == "" {
		return plural(t) + "." + t.Group
	}
	return b.Spec.Type.CRD
}

// define generates the CustomResourceDefinition of a Blueprint and validates it in the same way as the API server. It
// adds the status fields and printer columns of the platform to those of the author. Fields of spec.type.status accept
// any value at first. addStatus sets their schemas after the expressions have been compiled. define returns nil if the
// Blueprint refers to a CustomResourceDefinition by name, or if the schema is invalid.
func define(b *Blueprint, c *collector) *apiextensionsv1.CustomResourceDefinition {
	t := b.Spec.Type
	if t.CRD != "" {
		return nil
	}
	before := len(c.problems)
	root := rootSchema(t, c)
	if root == nil {
		return nil
	}
	crd := &apiextensionsv1.CustomResourceDefinition{
		TypeMeta: metav1.TypeMeta{
			APIVersion: apiextensionsv1.SchemeGroupVersion.String(), Kind: "CustomResourceDefinition",
		},
		ObjectMeta: metav1.ObjectMeta{Name: DefinitionName(b)},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: t.Group,
			Scope: cmp.Or(t.Scope, apiextensionsv1.NamespaceScoped),
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Kind: t.Kind, ListKind: t.Kind + "List", Plural: plural(t), ShortNames: t.ShortNames,
				Singular: cmp.Or(t.Singular, strings.ToLower(t.Kind)),
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: t.Version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: root},
				Subresources: &apiextensionsv1.CustomResourceSubresources{
					Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
				},
				AdditionalPrinterColumns: columns(t.PrinterColumns),
			}},
		},
	}
	if checkColumns(t.PrinterColumns, root, c); len(c.problems) == before {
		validate(crd, c)
	}
	return crd
}

func plural(t Type) string {
	if t.Plural != "" || t.Kind == "" {
		return t.Plural
	}
	gvr, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: t.Kind})
	return gvr.Resource
}

// rootSchema returns the schema of an instance, which consists of the author's schema and the status fields that the
// platform writes. It returns nil if the author's schema is invalid.
func rootSchema(t Type, c *collector) *apiextensionsv1.JSONSchemaProps {
	authors := t.Schema
	const path = typePath + ".schema"
	before := len(c.problems)
	switch size, depth, rules := measure(authors); {
	case size > MaxSchemaBytes:
		c.add(path, "", "has more than %d bytes", MaxSchemaBytes)
	case depth > MaxSchemaDepth:
		c.add(path, "", "has more than %d levels", MaxSchemaDepth)
	case rules > MaxSchemaRules:
		c.add(path, "", "has more than %d rules (x-kubernetes-validations) and patterns", MaxSchemaRules)
	}
	for _, name := range []string{"spec", "status"} {
		if _, has := authors[name]; has {
			c.add(path+"."+name, "", "must be under properties")
		}
	}
	if len(c.problems) > before {
		return nil
	}
	if (&checking{problems: c}).check(literal{value: authors}, keywords(), path, false); len(c.problems) > before {
		return nil
	}
	var root apiextensionsv1.JSONSchemaProps
	raw, err := json.Marshal(authors)
	if err == nil {
		err = json.Unmarshal(raw, &root)
	}
	if err != nil { // for example, a number overflows
		c.add(path, "", "is not a valid OpenAPI v3 schema")
		return nil
	}
	root.Type = cmp.Or(root.Type, "object")
	checkRoot(&root, path+".properties", c)
	status, has := root.Properties["status"]
	if !has {
		status = apiextensionsv1.JSONSchemaProps{Type: "object", Description: "The state of the instance."}
	}
	properties := maps.Clone(status.Properties)
	if properties == nil {
		properties = map[string]apiextensionsv1.JSONSchemaProps{}
	}
	properties["observedGeneration"] = apiextensionsv1.JSONSchemaProps{
		Type: "integer", Format: "int64", Description: "The generation that the conditions refer to.",
	}
	properties["revision"] = apiextensionsv1.JSONSchemaProps{
		Type: "string", Description: "The revision of the Blueprint with which the instance was last reconciled.",
	}
	properties["conditions"] = conditionsSchema()
	for name := range t.Status {
		if _, declared := properties[name]; !declared {
			properties[name] = apiextensionsv1.JSONSchemaProps{XPreserveUnknownFields: ptr.To(true)} // replaced by addStatus
		}
	}
	status.Properties = properties
	if root.Properties == nil {
		root.Properties = map[string]apiextensionsv1.JSONSchemaProps{}
	}
	root.Properties["status"] = status
	return &root
}

// checkRoot checks the top-level properties of an instance.
func checkRoot(root *apiextensionsv1.JSONSchemaProps, path string, c *collector) {
	for _, name := range slices.Sorted(maps.Keys(root.Properties)) {
		switch name {
		case "spec", "status":
			if s := root.Properties[name]; s.Type != "object" {
				c.add(path+"."+name, "", "must have type: object")
			}
		case "apiVersion", "kind", "metadata":
			c.add(path+"."+name, "", "must not be set; Kubernetes defines it")
		default:
			c.add(path+"."+name, "", "must be under spec or status")
		}
	}
	if _, has := root.Properties["spec"]; !has {
		c.add(path, "", "must contain spec")
	}
	for _, name := range PlatformStatus {
		if _, has := root.Properties["status"].Properties[name]; has {
			c.add(path+".status.properties."+name, "", "must not be set; the platform defines it")
		}
	}
}

// conditionsSchema returns the schema of a list of metav1.Condition. It is copied from the CustomResourceDefinition of
// Blueprints.
func conditionsSchema() apiextensionsv1.JSONSchemaProps {
	crd, err := parsedManifest()
	if err != nil {
		panic(err) // the manifest is embedded and tested
	}
	conditions := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"].Properties["conditions"]
	out := *conditions.DeepCopy()
	out.Description = "Ready reports whether all children exist and are ready, Paused whether the instance is paused, " +
		"and Regressed whether it is less healthy than before its revision was rolled out. " +
		"The Blueprint can define more conditions."
	return out
}

// columns returns the author's columns, followed by the platform's columns. An author's column replaces a platform
// column of the same name. The author's columns come first because API server errors identify columns by index,
// and the indexes must match those in the Blueprint.
func columns(
	authors []apiextensionsv1.CustomResourceColumnDefinition,
) (out []apiextensionsv1.CustomResourceColumnDefinition) {
	out = slices.Clone(authors)
	for _, c := range []apiextensionsv1.CustomResourceColumnDefinition{
		{Name: "Ready", Type: "string", JSONPath: `.status.conditions[?(@.type=="Ready")].status`},
		{Name: "Reason", Type: "string", JSONPath: `.status.conditions[?(@.type=="Ready")].reason`},
		{Name: "Message", Type: "string", Priority: 1, JSONPath: `.status.conditions[?(@.type=="Ready")].message`},
		{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp"},
	} {
		if !slices.ContainsFunc(authors, func(a apiextensionsv1.CustomResourceColumnDefinition) bool {
			return a.Name == c.Name
		}) {
			out = append(out, c)
		}
	}
	return out
}

// plainPath matches a JSON path that consists only of field names.
var plainPath = regexp.MustCompile(`^\.(spec|status)(\.[A-Za-z_][A-Za-z0-9_-]*)*$`)

// checkColumns rejects columns that refer to unknown fields. Kubernetes accepts such columns and prints them as empty.
func checkColumns(
	authors []apiextensionsv1.CustomResourceColumnDefinition, root *apiextensionsv1.JSONSchemaProps, c *collector,
) {
	for i, column := range authors {
		if !plainPath.MatchString(column.JSONPath) {
			continue
		}
		s := root
		for _, name := range strings.Split(column.JSONPath[1:], ".") {
			if s.AdditionalProperties != nil || s.XPreserveUnknownFields != nil || s.XEmbeddedResource {
				break
			}
			next, has := s.Properties[name]
			if !has {
				c.add(fmt.Sprintf("%s.printerColumns[%d].jsonPath", typePath, i), "", "unknown field %s%s",
					column.JSONPath, suggest(name, slices.Sorted(maps.Keys(s.Properties))))
				break
			}
			s = &next
		}
	}
}

// blueprintPath maps fields of the CustomResourceDefinition to fields of the Blueprint.
var blueprintPath = strings.NewReplacer(
	"spec.versions[0].schema.openAPIV3Schema", typePath+".schema",
	"spec.validation.openAPIV3Schema", typePath+".schema", // used if there is only one version
	"spec.versions[0].additionalPrinterColumns", typePath+".printerColumns",
	"spec.additionalPrinterColumns", typePath+".printerColumns",
	"spec.versions[0].name", typePath+".version",
	"spec.version", typePath+".version",
	"spec.names.", typePath+".",
	"spec.group", typePath+".group",
	"spec.scope", typePath+".scope",
	"metadata.name", typePath+".plural",
	".JSONPath", ".jsonPath",
)

// validate validates the CustomResourceDefinition with the validation of the API server. It removes duplicate errors
// because that validation reports some errors twice.
func validate(crd *apiextensionsv1.CustomResourceDefinition, c *collector) {
	defaulted := crd.DeepCopy()
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(defaulted)
	var internal apiextensions.CustomResourceDefinition
	convert := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition
	if err := convert(defaulted, &internal, nil); err != nil {
		c.add(typePath+".schema", "", "is not a valid OpenAPI v3 schema")
		return
	}
	internal.Status.StoredVersions = []string{crd.Spec.Versions[0].Name} // the API server sets this on creation
	var found collector
	for _, e := range validation.ValidateCustomResourceDefinition(context.Background(), &internal) {
		found.add(blueprintPath.Replace(e.Field), "", "%s", strings.Join(strings.Fields(e.ErrorBody()), " "))
	}
	c.problems = append(c.problems, slices.Compact(found.problems.sorted())...)
}

// measure returns the approximate size and the depth of a JSON value. For a schema, it also returns the number of rules
// and patterns.
func measure(v any) (size, depth, rules int) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			s, d, r := measure(value)
			if list, is := value.([]any); is && key == "x-kubernetes-validations" {
				r += len(list)
			}
			if _, is := value.(string); is && key == "pattern" {
				r++
			}
			size, depth, rules = size+len(key)+4+s, max(depth, d), rules+r
		}
		return size + 2, depth + 1, rules
	case []any:
		for _, value := range v {
			s, d, r := measure(value)
			size, depth, rules = size+1+s, max(depth, d), rules+r
		}
		return size + 2, depth + 1, rules
	case string:
		return len(v) + 2, 0, 0
	}
	return 8, 0, 0
}
