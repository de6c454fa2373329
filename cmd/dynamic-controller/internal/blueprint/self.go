package blueprint

import (
	"fmt"
	"maps"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/utils/ptr"
)

// VersionOf is the version of a type in which instances are read unless somebody says otherwise: the one that is stored if
// it is served, and the first that is served otherwise. It is empty if none is.
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

// SchemaOf describes the objects of a type in a version, for [Options.SchemaFor]: nil if its CustomResourceDefinition does not.
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

// selfSchema describes what expressions see of an instance, nil if nothing does.
func selfSchema(crd *apiextensionsv1.CustomResourceDefinition, version string) (common.Schema, error) {
	root, err := schemaOf(crd, version)
	if root == nil {
		return nil, err
	}
	metadata := root.Properties["metadata"]
	metadata.Properties = without(metadata.Properties, writtenMetadata)
	root.Properties["metadata"] = metadata
	if status, has := root.Properties["status"]; has {
		described := len(status.Properties) > 0 && !status.XPreserveUnknownFields
		if status.Properties = without(status.Properties, writtenStatus); described && len(status.Properties) == 0 {
			delete(root.Properties, "status")
		} else {
			root.Properties["status"] = status
		}
	}
	return &model.Structural{Structural: root}, nil
}

// What changes by the platform's own writing is no part of self: an instance that becomes something else because it was
// said to be ready could drive itself without end.
var (
	writtenMetadata = []string{"resourceVersion", "managedFields", "finalizers"}
	writtenStatus   = []string{"conditions", "observedGeneration"}
)

// selfOf is what expressions see of an instance. It shares with it what is not left out.
func selfOf(instance map[string]any) map[string]any {
	self := maps.Clone(instance)
	if metadata, is := instance["metadata"].(map[string]any); is {
		self["metadata"] = without(metadata, writtenMetadata)
	}
	if status, is := instance["status"].(map[string]any); is {
		if status = without(status, writtenStatus); len(status) > 0 {
			self["status"] = status
		} else {
			delete(self, "status") // nor may it be seen that there is one
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

// schemaOf describes the objects of a type, nil if nothing does. Its properties are the caller's.
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
		var internal apiextensions.JSONSchemaProps
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v.Schema.OpenAPIV3Schema, &internal, nil); err != nil {
			return nil, fmt.Errorf("read the schema of %s: %w", crd.Name, err)
		}
		root, err := structural.NewStructural(&internal)
		if err != nil {
			return nil, fmt.Errorf("read the schema of %s: %w", crd.Name, err)
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

// str is a string of so many characters, or of as many as is usual if that is 0.
func str(longest int64) structural.Structural {
	s := structural.Structural{Generic: structural.Generic{Type: "string"}}
	if longest > 0 {
		s.ValueValidation = &structural.ValueValidation{MaxLength: ptr.To(longest)}
	}
	return s
}

// metadata describes what every object has, of which schemas say nothing.
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
			"finalizers": {Generic: structural.Generic{Type: "array"}, Items: ptr.To(str(0)), Extensions: structural.Extensions{XListType: ptr.To("set")}},
		},
	}
}
