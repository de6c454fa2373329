package platform

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

const (
	// incompatibleKey is an annotation of a Blueprint: the generation that is allowed to change the type's schema so
	// that existing instances become invalid or lose fields.
	incompatibleKey = Name + "/allow-incompatible-schema"
	// schemaKey is an annotation of a CustomResourceDefinition that the platform wrote: a digest of the schema in the
	// Blueprint. While the Blueprint's schema has this digest, any difference was made by somebody else and must be
	// reverted.
	schemaKey = Name + "/schema"
)

// allowsIncompatible reports whether the Blueprint's annotation allows its newest generation to change the schema in an
// incompatible way. The generation is named so that the annotation allows one change and no later one.
func allowsIncompatible(b *blueprint.Blueprint) bool {
	return b.Annotations[incompatibleKey] == strconv.FormatInt(b.Generation, 10)
}

// refuseIncompatible returns why the definition of a Blueprint must not replace the existing one, or nil.
func refuseIncompatible(b *blueprint.Blueprint, there, wanted *apiextensionsv1.CustomResourceDefinition, digest string) *refusal {
	if there == nil || digest != "" && there.Annotations[schemaKey] == digest || allowsIncompatible(b) {
		return nil
	}
	problems := blueprint.IncompatibleChanges(there, wanted)
	if len(problems) == 0 {
		return nil
	}
	return &refusal{reasonIncompatible, fmt.Sprintf("%v\nexisting instances could become invalid or lose fields; "+
		"to change the schema anyway, annotate the Blueprint with %s: %q", problems, incompatibleKey, strconv.FormatInt(b.Generation, 10))}
}

// schemaDigest identifies the schemas of a definition. It is empty if they cannot be represented in JSON.
func schemaDigest(crd *apiextensionsv1.CustomResourceDefinition) string {
	var schemas []*apiextensionsv1.CustomResourceValidation
	for _, v := range crd.Spec.Versions {
		schemas = append(schemas, v.Schema)
	}
	data, err := json.Marshal(schemas)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}
