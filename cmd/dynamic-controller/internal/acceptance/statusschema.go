package acceptance

import (
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	crvalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// sampleStatus is a status with all fields that the platform writes.
var sampleStatus = map[string]any{"status": map[string]any{
	"observedGeneration": int64(1),
	"conditions": []any{map[string]any{
		"type": "Ready", "status": "True", "observedGeneration": int64(1), "lastTransitionTime": "2006-01-02T15:04:05Z",
		"reason": "Ready", "message": "",
	}},
}}

// checkStatusSchema checks whether the platform can write the status of instances. If it cannot, problem describes why;
// otherwise, problem is empty. hasRevision reports whether the schema declares status.revision.
func checkStatusSchema(crd *apiextensionsv1.CustomResourceDefinition) (hasRevision bool, problem string) {
	served := blueprint.VersionOf(crd)
	i := slices.IndexFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return v.Name == served
	})
	if i < 0 {
		return false, "no version of the type is served"
	}
	v := crd.Spec.Versions[i]
	if v.Subresources == nil || v.Subresources.Status == nil {
		return false, "version " + v.Name + " has no status subresource"
	}
	if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
		return false, "version " + v.Name + " has no schema"
	}
	missing, err := missingFields(v.Schema.OpenAPIV3Schema)
	if err != nil {
		return false, fmt.Sprintf("the schema of version %s is invalid: %v", v.Name, err)
	}
	if len(missing) > 0 {
		return false, fmt.Sprintf("the schema of version %s has no %s", v.Name, missing[0])
	}
	return v.Schema.OpenAPIV3Schema.Properties["status"].Properties["revision"].Type == "string", ""
}

// missingFields returns the fields of sampleStatus that the schema does not declare, or that it declares with a
// different type. The API server rejects undeclared fields in server-side apply requests and prunes them in other
// requests.
func missingFields(root *apiextensionsv1.JSONSchemaProps) (missing []string, err error) {
	var internal apiextensions.JSONSchemaProps
	convert := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps
	if err := convert(root, &internal, nil); err != nil {
		return nil, err
	}
	structural, err := schema.NewStructural(&internal)
	if err != nil {
		return nil, err
	}
	validator := crvalidation.NewSchemaValidatorFromOpenAPI(structural.ToKubeOpenAPI())
	for _, err := range crvalidation.ValidateCustomResource(nil, sampleStatus, validator) {
		if err.Type == field.ErrorTypeTypeInvalid {
			missing = append(missing, err.Field+" of the required type")
		}
	}
	slices.Sort(missing)
	return append(missing, pruning.PruneWithOptions(runtime.DeepCopyJSON(sampleStatus), structural, true,
		schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})...), nil
}
