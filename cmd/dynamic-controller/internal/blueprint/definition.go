package blueprint

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"maps"
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

// DefinitionName is the name of the CustomResourceDefinition that a Blueprint names or that is made of it.
func DefinitionName(b *Blueprint) string {
	if t := b.Spec.Type; t.CRD == "" {
		return plural(t) + "." + t.Group
	}
	return b.Spec.Type.CRD
}

// Definition makes the CustomResourceDefinition of a Blueprint's type: nil if it names one instead. It has a status, with
// conditions and observedGeneration besides what the author's schema says, and is printed with its readiness.
//
// It is validated as the API server does when one is created, as far as that needs no server. The error is Problems.
func Definition(b *Blueprint) (*apiextensionsv1.CustomResourceDefinition, error) {
	t := b.Spec.Type
	c := &collector{}
	if checkType(t, c); len(c.problems) > 0 || t.CRD != "" {
		return nil, c.err()
	}
	root := rootSchema(t.Schema, c)
	if len(c.problems) == 0 {
		checkColumns(t.PrinterColumns, root, c)
	}
	if len(c.problems) > 0 {
		return nil, c.err()
	}
	crd := &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: apiextensionsv1.SchemeGroupVersion.String(), Kind: "CustomResourceDefinition"},
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
				Schema:                   &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: root},
				Subresources:             &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				AdditionalPrinterColumns: columns(t.PrinterColumns),
			}},
		},
	}
	validate(crd, c)
	if len(c.problems) > 0 {
		return nil, slices.Compact(c.problems.sorted()) // some fields the server checks twice
	}
	return crd, nil
}

func plural(t Type) string {
	if t.Plural != "" || t.Kind == "" {
		return t.Plural
	}
	gvr, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: t.Kind})
	return gvr.Resource
}

// checkType checks what the Blueprints' own CustomResourceDefinition does, for one that has not been there.
func checkType(t Type, c *collector) {
	if t.CRD != "" {
		if t.Group+t.Version+t.Kind+t.Plural+t.Singular+string(t.Scope) != "" || len(t.ShortNames)+len(t.PrinterColumns) > 0 || t.Schema != nil {
			c.add(typePath, "", "either crd, or group, version, kind and schema")
		}
		if t.CRD == GroupVersionResource.GroupResource().String() {
			c.add(typePath+".crd", "", "Blueprints are the platform's own")
		}
		return
	}
	for _, f := range []struct{ name, value string }{{"group", t.Group}, {"version", t.Version}, {"kind", t.Kind}} {
		if f.value == "" {
			c.add(typePath+"."+f.name, "", "is required without crd")
		}
	}
	if t.Schema == nil {
		c.add(typePath+".schema", "", "is required without crd")
	}
	if plural(t)+"."+t.Group == GroupVersionResource.GroupResource().String() {
		c.add(typePath, "", "Blueprints are the platform's own")
	}
	size, depth, rules := measure(t.Schema)
	switch path := typePath + ".schema"; {
	case size > MaxSchemaBytes:
		c.add(path, "", "has more than %d bytes", MaxSchemaBytes)
	case depth > MaxSchemaDepth:
		c.add(path, "", "is deeper than %d", MaxSchemaDepth)
	case rules > MaxSchemaRules:
		c.add(path, "", "has more than %d rules (x-kubernetes-validations) and patterns", MaxSchemaRules)
	}
}

// rootSchema is the schema of an instance: the author's, with what the platform keeps in status.
func rootSchema(authors map[string]any, c *collector) *apiextensionsv1.JSONSchemaProps {
	path := typePath + ".schema"
	raw, err := json.Marshal(authors)
	if err != nil {
		c.add(path, "", "is no JSON: %v", err)
		return nil
	}
	for _, name := range []string{"spec", "status"} {
		if _, has := authors[name]; has {
			c.add(path+"."+name, "", "put %s under properties: what is here are the keywords of a schema", name)
		}
	}
	if len(c.problems) > 0 {
		return nil
	}
	if checkKeywords(authors, path, c); len(c.problems) > 0 {
		return nil
	}
	var root apiextensionsv1.JSONSchemaProps
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&root); err != nil {
		c.add(path, "", "is no OpenAPI v3 schema of Kubernetes: %v", err)
		return nil
	}
	if root.Type == "" {
		root.Type = "object"
	}
	for _, name := range slices.Sorted(maps.Keys(root.Properties)) {
		switch name {
		case "spec", "status":
			if s := root.Properties[name]; s.Type != "object" {
				c.add(path+".properties."+name, "", "has to be of type object")
			}
		case "apiVersion", "kind", "metadata":
			c.add(path+".properties."+name, "", "is Kubernetes' own")
		default:
			c.add(path+".properties."+name, "", "is neither spec nor status: what a user sets belongs into spec")
		}
	}
	if _, has := root.Properties["spec"]; !has {
		c.add(path+".properties", "", "has no spec")
	}
	status, has := root.Properties["status"]
	if !has {
		status = apiextensionsv1.JSONSchemaProps{Type: "object", Description: "What the platform says."}
	}
	for _, name := range []string{"conditions", "observedGeneration"} {
		if _, has := status.Properties[name]; has {
			c.add(path+".properties.status.properties."+name, "", "is the platform's own")
		}
	}
	if len(c.problems) > 0 {
		return nil
	}
	properties := maps.Clone(status.Properties)
	if properties == nil {
		properties = map[string]apiextensionsv1.JSONSchemaProps{}
	}
	properties["observedGeneration"] = apiextensionsv1.JSONSchemaProps{
		Type: "integer", Format: "int64", Description: "The generation of the spec that the conditions are of.",
	}
	properties["conditions"] = conditionsSchema()
	status.Properties = properties
	root.Properties["status"] = status
	return &root
}

// conditionsSchema is that of a list of metav1.Condition, one a type.
func conditionsSchema() apiextensionsv1.JSONSchemaProps {
	text := func(longest int64) apiextensionsv1.JSONSchemaProps {
		return apiextensionsv1.JSONSchemaProps{Type: "string", MaxLength: ptr.To(longest)}
	}
	return apiextensionsv1.JSONSchemaProps{
		Type: "array", Description: "Ready is whether all that the instance becomes is there and ready.", MaxItems: ptr.To[int64](16),
		XListType: ptr.To("map"), XListMapKeys: []string{"type"},
		Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{
			Type: "object", Required: []string{"type", "status", "lastTransitionTime", "reason", "message"},
			Properties: map[string]apiextensionsv1.JSONSchemaProps{
				"type": text(316),
				"status": {Type: "string", Enum: []apiextensionsv1.JSON{
					{Raw: []byte(`"True"`)}, {Raw: []byte(`"False"`)}, {Raw: []byte(`"Unknown"`)},
				}},
				"observedGeneration": {Type: "integer", Format: "int64", Minimum: ptr.To(0.0)},
				"lastTransitionTime": {Type: "string", Format: "date-time"},
				"reason":             text(1024),
				"message":            text(32768),
			},
		}},
	}
}

// columns are the author's, readiness and, as kubectl does without any, the age. An author's column takes the place of
// one of ours that is called the same.
func columns(authors []apiextensionsv1.CustomResourceColumnDefinition) []apiextensionsv1.CustomResourceColumnDefinition {
	ours := func(c apiextensionsv1.CustomResourceColumnDefinition) []apiextensionsv1.CustomResourceColumnDefinition {
		if slices.ContainsFunc(authors, func(a apiextensionsv1.CustomResourceColumnDefinition) bool { return a.Name == c.Name }) {
			return nil
		}
		return []apiextensionsv1.CustomResourceColumnDefinition{c}
	}
	return slices.Concat(
		authors, // first, so that the server counts them as the author does
		ours(apiextensionsv1.CustomResourceColumnDefinition{
			Name: "Ready", Type: "string", JSONPath: `.status.conditions[?(@.type=="Ready")].status`,
		}),
		ours(apiextensionsv1.CustomResourceColumnDefinition{
			Name: "Message", Type: "string", Priority: 1, JSONPath: `.status.conditions[?(@.type=="Ready")].message`,
		}),
		ours(apiextensionsv1.CustomResourceColumnDefinition{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp"}),
	)
}

// placed says which field of the Blueprint a field of the CustomResourceDefinition comes from.
var placed = strings.NewReplacer(
	"spec.versions[0].schema.openAPIV3Schema", typePath+".schema",
	"spec.validation.openAPIV3Schema", typePath+".schema", // which it is when there is one version
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

func validate(crd *apiextensionsv1.CustomResourceDefinition, c *collector) {
	defaulted := crd.DeepCopy()
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(defaulted)
	var internal apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(defaulted, &internal, nil); err != nil {
		c.add(typePath+".schema", "", "%v", err)
		return
	}
	// The server says at creation which version it stores.
	internal.Status.StoredVersions = []string{crd.Spec.Versions[0].Name}
	for _, e := range validation.ValidateCustomResourceDefinition(context.Background(), &internal) {
		c.add(placed.Replace(e.Field), "", "%s", strings.Join(strings.Fields(e.ErrorBody()), " "))
	}
}

// measure says how large a JSON value is, about, how deep, and how many expressions and patterns are in it if it is a
// schema.
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
