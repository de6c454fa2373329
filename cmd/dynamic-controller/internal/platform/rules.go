package platform

import (
	"maps"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// statusRules is what a version's schema makes of the status that the platform writes.
type statusRules struct {
	// problem says why that status cannot be kept; it is empty if it can.
	problem string
	// mergesConditions: each condition has its own owner. Otherwise the list is written as a whole, with what others
	// wrote to it.
	mergesConditions bool
}

func statusRulesOf(v apiextensionsv1.CustomResourceDefinitionVersion) statusRules {
	if v.Subresources == nil || v.Subresources.Status == nil {
		return statusRules{problem: "version " + v.Name + " has no status subresource"}
	}
	if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
		return statusRules{problem: "version " + v.Name + " has no schema"}
	}
	root := v.Schema.OpenAPIV3Schema
	if lacking := lacks(root, sample, ""); lacking != "" {
		return statusRules{problem: "the schema of version " + v.Name + " has no " + lacking}
	}
	conditions := root.Properties["status"].Properties["conditions"]
	return statusRules{mergesConditions: conditions.XListType != nil && *conditions.XListType == "map" &&
		slices.Equal(conditions.XListMapKeys, []string{"type"})}
}

// rulesOf is what the served version's schema makes of the status.
func rulesOf(crd *apiextensionsv1.CustomResourceDefinition) statusRules {
	version := blueprint.VersionOf(crd)
	for _, v := range crd.Spec.Versions {
		if v.Name == version {
			return statusRulesOf(v)
		}
	}
	return statusRules{problem: "no version of it is served"}
}

// sample has the shape of what the platform writes, each scalar being the name of its type.
var sample = map[string]any{"status": map[string]any{
	"observedGeneration": "integer",
	"conditions": []any{map[string]any{
		"type":               "string",
		"status":             "string",
		"observedGeneration": "integer",
		"lastTransitionTime": "string",
		"reason":             "string",
		"message":            "string",
	}},
}}

// lacks returns the first field of shape that the schema does not declare, such as "integer status.observedGeneration".
// The API server refuses to apply a field that is not declared, and prunes it otherwise.
func lacks(schema *apiextensionsv1.JSONSchemaProps, shape any, path string) string {
	kind, _ := shape.(string)
	switch shape.(type) {
	case map[string]any:
		kind = "object"
	case []any:
		kind = "array"
	}
	if schema.Type != "" && schema.Type != kind {
		return kind + " " + path
	}
	free := schema.XPreserveUnknownFields != nil && *schema.XPreserveUnknownFields ||
		schema.AdditionalProperties != nil && schema.AdditionalProperties.Allows && schema.AdditionalProperties.Schema == nil
	switch shape := shape.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(shape)) {
			field, declared := schema.Properties[name]
			if !declared && schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
				field, declared = *schema.AdditionalProperties.Schema, true
			}
			switch within := join(path, name); {
			case declared:
				if lacking := lacks(&field, shape[name], within); lacking != "" {
					return lacking
				}
			case !free:
				return within
			}
		}
	case []any:
		if schema.Items != nil && schema.Items.Schema != nil {
			return lacks(schema.Items.Schema, shape[0], path+"[]")
		}
	}
	return ""
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
