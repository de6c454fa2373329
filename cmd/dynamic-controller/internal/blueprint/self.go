package blueprint

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/utils/ptr"
)

// VersionOf returns the version in which instances are read by default. It is the storage version if that version is
// served, otherwise the first served version. It returns "" if no version is served.
func VersionOf(crd *apiextensionsv1.CustomResourceDefinition) string {
	first := ""
	for _, v := range crd.Spec.Versions {
		if v.Served && v.Storage {
			return v.Name
		}
		if v.Served && first == "" {
			first = v.Name
		}
	}
	return first
}

// SchemaOf returns the schema of one version of a type, for use in [Options.SchemaFor]. It returns nil if the
// CustomResourceDefinition has no schema for that version.
func SchemaOf(crd *apiextensionsv1.CustomResourceDefinition, version string) (common.Schema, error) {
	if crd != nil && crd.Spec.PreserveUnknownFields {
		return nil, nil
	}
	root, err := schemaOf(crd, version)
	if root == nil {
		return nil, err
	}
	return &model.Structural{Structural: root}, nil
}

// selfSchema returns the schema of self in expressions, or nil if the schema is unknown. It omits the metadata and
// status fields that the platform writes. written lists these status fields.
func selfSchema(
	crd *apiextensionsv1.CustomResourceDefinition, version string, written []string,
) (common.Schema, error) {
	root, err := schemaOf(crd, version)
	if root == nil {
		return nil, err
	}
	metadata := root.Properties["metadata"]
	metadata.Properties = without(metadata.Properties, writtenMetadata)
	root.Properties["metadata"] = metadata
	if status, has := root.Properties["status"]; has {
		described := len(status.Properties) > 0 && !status.XPreserveUnknownFields
		if status.Properties = without(status.Properties, written); described && len(status.Properties) == 0 {
			delete(root.Properties, "status")
		} else {
			root.Properties["status"] = status
		}
	}
	return &model.Structural{Structural: root}, nil
}

// writtenMetadata lists the metadata fields that the platform or the API server changes when an instance is updated.
// Like the status fields that the platform writes, they are not part of self. Otherwise, each update could change the
// children of the instance, and lead to the next update, in an endless loop.
var writtenMetadata = []string{"resourceVersion", "managedFields", "finalizers"}

// PlatformStatus lists the status fields that the platform writes for all Blueprints.
var PlatformStatus = []string{"conditions", "observedGeneration", "revision"}

// writtenStatusOf returns the names of the status fields that the platform writes: those in PlatformStatus and those in
// spec.type.status.
func writtenStatusOf(t Type) []string {
	return slices.AppendSeq(slices.Clone(PlatformStatus), maps.Keys(t.Status))
}

// selfOf returns a copy of the instance without the fields that the platform writes. The copy is shallow: nested values
// are shared with the instance and must not be modified.
func selfOf(instance map[string]any, written []string) map[string]any {
	self := maps.Clone(instance)
	if metadata, is := instance["metadata"].(map[string]any); is {
		self["metadata"] = without(metadata, writtenMetadata)
	}
	if status, is := instance["status"].(map[string]any); is {
		if status = without(status, written); len(status) > 0 {
			self["status"] = status
		} else {
			delete(self, "status") // expressions must not depend on whether the platform has written a status
		}
	}
	return self
}

func without[V any](fields map[string]V, names []string) map[string]V {
	fields = maps.Clone(fields)
	for _, name := range names {
		delete(fields, name)
	}
	return fields
}

// schemaOf returns the schema of one version of a type, or nil if it is unknown. The caller can modify the Properties
// map of the result.
func schemaOf(crd *apiextensionsv1.CustomResourceDefinition, version string) (*structural.Structural, error) {
	if crd == nil {
		return nil, nil
	}
	if version == "" {
		version = VersionOf(crd)
	}
	for _, v := range crd.Spec.Versions {
		if v.Name != version || v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			continue
		}
		root, err := structuralOf(crd.Name, v.Schema)
		if err != nil {
			return nil, err
		}
		if root.XPreserveUnknownFields || len(root.Properties) == 0 {
			return nil, nil
		}
		properties := maps.Clone(root.Properties)
		properties["apiVersion"], properties["kind"] = str(0), str(0)
		properties["metadata"] = metadata()
		root.Properties = properties
		return root, nil
	}
	return nil, nil
}

// structuralOf returns the schema of a version of a CustomResourceDefinition, or nil if the version has none.
func structuralOf(crd string, schema *apiextensionsv1.CustomResourceValidation) (*structural.Structural, error) {
	if schema == nil || schema.OpenAPIV3Schema == nil {
		return nil, nil
	}
	var internal apiextensions.JSONSchemaProps
	convert := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps
	if err := convert(schema.OpenAPIV3Schema, &internal, nil); err != nil {
		return nil, fmt.Errorf("read the schema of %s: %w", crd, err)
	}
	root, err := structural.NewStructural(&internal)
	if err != nil {
		return nil, fmt.Errorf("read the schema of %s: %w", crd, err)
	}
	return root, nil
}

// str returns the schema of a string. If longest is 0, the length is unlimited.
func str(longest int64) structural.Structural {
	s := structural.Structural{Generic: structural.Generic{Type: "string"}}
	if longest > 0 {
		s.ValueValidation = &structural.ValueValidation{MaxLength: ptr.To(longest)}
	}
	return s
}

// metadata returns the schema of metadata. CustomResourceDefinitions do not contain it.
func metadata() structural.Structural {
	texts := structural.Structural{
		Generic:              structural.Generic{Type: "object"},
		AdditionalProperties: &structural.StructuralOrBool{Structural: ptr.To(str(0))},
	}
	number := structural.Structural{Generic: structural.Generic{Type: "integer"}}
	return structural.Structural{
		Generic: structural.Generic{Type: "object"},
		Properties: map[string]structural.Structural{
			"name": str(253), "generateName": str(253), "namespace": str(63), "uid": str(36), "resourceVersion": str(0),
			"creationTimestamp": str(0), "deletionTimestamp": str(0), "generation": number,
			"labels": texts, "annotations": texts,
			"finalizers": {
				Generic: structural.Generic{Type: "array"}, Items: ptr.To(str(0)),
				Extensions: structural.Extensions{XListType: ptr.To("set")},
			},
		},
	}
}
