package acceptance

import (
	"fmt"
	"strconv"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// allowsIncompatible reports whether an annotation allows the Blueprint's newest generation to change the schema in an
// incompatible way. The value of the annotation is the generation, so that later generations are not allowed to do so.
func allowsIncompatible(b *blueprint.Blueprint) bool {
	return b.Annotations[incompatibleAnnotation] == strconv.FormatInt(b.Generation, 10)
}

// rejectIncompatible returns a rejection if the new CustomResourceDefinition is incompatible with the current one, and
// nil otherwise.
func rejectIncompatible(
	b *blueprint.Blueprint, current, wanted *apiextensionsv1.CustomResourceDefinition, digest string,
) *rejection {
	if current == nil || allowsIncompatible(b) || isCompatible(current, wanted, digest) {
		return nil
	}
	problems := blueprint.IncompatibleChanges(current, wanted)
	return &rejection{reasonIncompatible, fmt.Sprintf("%v\nexisting instances could become invalid or lose fields; %s",
		problems, IncompatibleAdvice(b.Generation))}
}

// isCompatible reports whether all valid objects stay valid and keep their fields if the wanted
// CustomResourceDefinition is applied. digest is the digest of its schema. If the current one was written with the same
// schema, the difference is a change by someone else, which does not count.
func isCompatible(current, wanted *apiextensionsv1.CustomResourceDefinition, digest string) bool {
	return digest != "" && current.Annotations[schemaAnnotation] == digest ||
		len(blueprint.IncompatibleChanges(current, wanted)) == 0
}

// schemaDigest returns a digest of the schemas of a CustomResourceDefinition, or "" if the schemas cannot be encoded as
// JSON.
func schemaDigest(crd *apiextensionsv1.CustomResourceDefinition) string {
	var schemas []*apiextensionsv1.CustomResourceValidation
	for _, v := range crd.Spec.Versions {
		schemas = append(schemas, v.Schema)
	}
	hash, err := digest(schemas)
	if err != nil {
		return ""
	}
	return hash
}
