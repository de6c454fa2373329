package offline

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	crvalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// admission defaults and validates new objects of a type in the same way as the API server, with strict field
// validation.
type admission struct {
	crd        *apiextensionsv1.CustomResourceDefinition
	structural *schema.Structural
	schema     crvalidation.SchemaValidator
	rules      *cel.Validator // nil if there are no rules
	hasStatus  bool
}

// newAdmission returns the checks for new objects in the given version. If it returns problems instead, their paths
// refer to the object, not to the CustomResourceDefinition.
func newAdmission(crd *apiextensionsv1.CustomResourceDefinition, version string) (*admission, blueprint.Problems) {
	i := slices.IndexFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return v.Name == version && v.Served
	})
	if i < 0 {
		reason := fmt.Sprintf("version %s of %s is not served", version, crd.Spec.Names.Kind)
		if served := blueprint.VersionOf(crd); served != "" {
			reason += "; use " + served
		}
		return nil, blueprint.Problems{{Path: "apiVersion", Reason: reason}}
	}
	v := crd.Spec.Versions[i]
	internal := &apiextensions.JSONSchemaProps{Type: "object"}
	if v.Schema != nil && v.Schema.OpenAPIV3Schema != nil {
		convert := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps
		if err := convert(v.Schema.OpenAPIV3Schema, internal, nil); err != nil {
			return nil, invalidSchema(crd, err)
		}
	}
	structural, err := schema.NewStructural(internal)
	if err != nil {
		return nil, invalidSchema(crd, err)
	}
	validator, _, err := crvalidation.NewSchemaValidator(internal)
	if err != nil {
		return nil, invalidSchema(crd, err)
	}
	return &admission{
		crd: crd, structural: structural, schema: validator,
		rules:     cel.NewValidator(structural, true, celconfig.PerCallLimit),
		hasStatus: v.Subresources != nil && v.Subresources.Status != nil,
	}, nil
}

func invalidSchema(crd *apiextensionsv1.CustomResourceDefinition, err error) blueprint.Problems {
	return blueprint.Problems{{Path: "kind", Reason: fmt.Sprintf("the schema of %s is invalid: %v", crd.Name, err)}}
}

// admit sets the defaults of an object. It removes the status, which cannot be set when an object is created. It
// returns the problems for which the API server would reject the object.
func (a *admission) admit(ctx context.Context, u *unstructured.Unstructured) (problems blueprint.Problems) {
	_, _, unknown, err := objectmeta.GetObjectMetaWithOptions(u.Object,
		objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true})
	if err != nil {
		return blueprint.Problems{{Path: "metadata", Reason: err.Error()}}
	}
	if !a.crd.Spec.PreserveUnknownFields {
		unknown = append(unknown, pruning.PruneWithOptions(u.Object, a.structural, true,
			schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})...)
	}
	for _, path := range unknown {
		problems = append(problems, blueprint.Problem{Path: path, Reason: "unknown field"})
	}
	defaulting.Default(u.Object, a.structural)
	defaulting.PruneNonNullableNullsWithoutDefaults(u.Object, a.structural)
	if a.hasStatus {
		delete(u.Object, "status")
	}
	for _, err := range a.validate(ctx, u) {
		problems = append(problems, blueprint.Problem{Path: err.Field, Reason: err.ErrorBody()})
	}
	return problems
}

func (a *admission) validate(ctx context.Context, u *unstructured.Unstructured) (errs field.ErrorList) {
	namespaced := a.crd.Spec.Scope != apiextensionsv1.ClusterScoped
	if namespaced && u.GetNamespace() == "" {
		u.SetNamespace(metav1.NamespaceDefault)
		defer unstructured.RemoveNestedField(u.Object, "metadata", "namespace")
	}
	errs = validation.ValidateObjectMetaAccessor(u, namespaced, validation.NameIsDNSSubdomain, field.NewPath("metadata"))
	errs = append(errs, crvalidation.ValidateCustomResource(nil, u.Object, a.schema)...)
	errs = append(errs, objectmeta.Validate(ctx, nil, u.Object, a.structural, false)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, a.structural, u.Object)...)
	if a.rules == nil || slices.ContainsFunc(errs, blocksRules) {
		return errs
	}
	found, _ := a.rules.Validate(ctx, nil, a.structural, u.Object, nil, celconfig.RuntimeCELCostBudget)
	return append(errs, found...)
}

// blocksRules reports whether the API server skips validation rules because of the error.
func blocksRules(err *field.Error) bool {
	switch err.Type {
	case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany,
		field.ErrorTypeTypeInvalid:
		return true
	}
	return false
}
