package acceptance

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/client-go/discovery"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// inputs contains everything that the result of a validation depends on, except permissions, claims and the memory
// budget.
type inputs struct {
	blueprint string // UID, generation, digest of the spec and unknown fields
	// allowsIncompatible reports whether this generation is allowed to change the schema in an incompatible way.
	allowsIncompatible bool
	// crd is the Blueprint's CustomResourceDefinition, or nil if it does not exist.
	crd          *apiextensionsv1.CustomResourceDefinition
	mappings     map[schema.GroupVersionKind]*meta.RESTMapping // nil for unknown kinds
	suggestions  map[schema.GroupVersionKind]string            // for unknown kinds
	undiscovered map[schema.GroupVersionKind]bool              // unknown kinds of groups whose discovery fails
	unsupported  map[schema.GroupVersionKind][]string          // verbs that the API server does not support
	// childCRDs are the CustomResourceDefinitions of the children's kinds.
	childCRDs map[schema.GroupVersionKind]*apiextensionsv1.CustomResourceDefinition
	// published are the schemas of kinds without a CustomResourceDefinition.
	published map[schema.GroupVersionKind]publishedSchema
	// incomplete reports whether some schemas could not be read. Validation then does not detect all problems.
	incomplete bool

	// unknownKindAdvice and allowUnknownKinds are set by Check: see Types.
	unknownKindAdvice string
	allowUnknownKinds bool
}

// publishedSchema is a schema that the API server publishes for a kind. Two schemas with the same name are equal.
type publishedSchema struct {
	schema common.Schema
	name   string
}

func (v *validator) inputsOf(ctx context.Context, b *blueprint.Blueprint, own claim) (in inputs, err error) {
	in = inputs{
		blueprint: fmt.Sprintf("%s/%d", b.UID, b.Generation), allowsIncompatible: allowsIncompatible(b),
		mappings: map[schema.GroupVersionKind]*meta.RESTMapping{}, suggestions: map[schema.GroupVersionKind]string{},
		undiscovered: map[schema.GroupVersionKind]bool{},
		childCRDs:    map[schema.GroupVersionKind]*apiextensionsv1.CustomResourceDefinition{},
		published:    map[schema.GroupVersionKind]publishedSchema{},
		unsupported:  map[schema.GroupVersionKind][]string{},
	}
	// When the CustomResourceDefinition of Blueprints changes, the API server can return different fields for the same
	// generation.
	spec, err := digest(b.Spec)
	if err != nil {
		return in, fmt.Errorf("encode the spec of Blueprint %s: %w", b.Name, err)
	}
	in.blueprint += " " + spec + b.Annotations[blueprint.UnknownFieldsAnnotation]
	if in.crd, err = v.crd(own.crd); err != nil {
		return in, err
	}
	for _, r := range b.Spec.Resources {
		gvk := kindOf(r)
		if _, has := in.mappings[gvk]; has {
			continue
		}
		if err := v.addKind(ctx, &in, b.Name, gvk); err != nil {
			return in, err
		}
	}
	return in, nil
}

func (v *validator) addKind(ctx context.Context, in *inputs, blueprintName string, gvk schema.GroupVersionKind) error {
	mapping, err := v.kinds.find(gvk)
	if _, isUndiscovered := discovery.GroupDiscoveryFailedErrorGroups(err); isUndiscovered {
		// The kind counts as unknown, so that the instances of the Blueprint can be cleaned up meanwhile.
		in.mappings[gvk], in.undiscovered[gvk] = nil, true
		return nil
	}
	if err != nil {
		return err
	}
	in.mappings[gvk] = mapping
	if mapping == nil {
		in.suggestions[gvk] = v.kinds.suggest(gvk)
		return nil
	}
	if in.unsupported[gvk], err = v.kinds.unsupported(mapping); err != nil {
		return err
	}
	if in.childCRDs[gvk], err = v.crd(mapping.Resource.GroupResource().String()); err != nil {
		return err
	}
	if in.childCRDs[gvk] != nil {
		return nil
	}
	var s publishedSchema
	if s.schema, s.name, err = v.schemas.For(ctx, gvk); err == nil {
		in.published[gvk] = s
		return nil
	}
	if ctx.Err() != nil {
		return err
	}
	in.incomplete = true
	v.log.Info("Published schema cannot be read, templates are not checked against it, will retry",
		keyBlueprint, blueprintName, keyProblem, err.Error())
	return nil
}

// schemaFor returns the schema of a kind. It returns nil if the kind has no schema or if the schema cannot be read.
func (in inputs) schemaFor(gvk schema.GroupVersionKind) common.Schema {
	if crd := in.childCRDs[gvk]; crd != nil {
		described, err := blueprint.SchemaOf(crd, gvk.Version)
		if err != nil {
			return nil
		}
		return described
	}
	return in.published[gvk].schema
}

// String returns a string that identifies the inputs.
func (in inputs) String() string {
	parts := []string{in.blueprint}
	if in.crd != nil {
		annotations := in.crd.Annotations
		parts = append(parts, fmt.Sprintf("%s/%d/%s/%s/%s", in.crd.UID, in.crd.Generation,
			annotations[ownerUIDAnnotation], annotations[ownerNameAnnotation], annotations[allowedAnnotation]))
	}
	if in.allowsIncompatible {
		parts = append(parts, "allows incompatible changes to the schema")
	}
	for gvk, mapping := range in.mappings {
		part := gvk.String()
		if mapping != nil {
			part += fmt.Sprintf(" resource %s %s without %v", mapping.Resource, mapping.Scope.Name(), in.unsupported[gvk])
		}
		part += " suggestion " + in.suggestions[gvk]
		if in.undiscovered[gvk] {
			part += " undiscovered"
		}
		if crd := in.childCRDs[gvk]; crd != nil {
			part += fmt.Sprintf(" definition %s/%d", crd.UID, crd.Generation)
		}
		if s := in.published[gvk]; s.schema != nil {
			part += " published in " + s.name
		}
		parts = append(parts, part)
	}
	slices.Sort(parts[1:])
	return strings.Join(parts, "\n")
}

// served returns a string that identifies the inputs that affect how instances are reconciled. It excludes a
// CustomResourceDefinition that the platform created, because the platform derives it from the Blueprint. It also
// excludes published schemas, because they are used only for validation and can differ between API servers during an
// upgrade.
func (in inputs) served() string {
	in.published, in.allowsIncompatible = nil, false
	if in.crd != nil && in.crd.Annotations[ownerUIDAnnotation] != "" {
		in.crd = nil
	}
	return in.String()
}
