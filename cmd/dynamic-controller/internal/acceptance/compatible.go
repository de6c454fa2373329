package acceptance

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// allowsIncompatible reports whether the Blueprint's annotation allows its newest generation to change the schema in an
// incompatible way. The annotation contains the generation, so that it allows one change but no later ones.
func allowsIncompatible(b *blueprint.Blueprint) bool {
	return b.Annotations[incompatibleAnnotation] == strconv.FormatInt(b.Generation, 10)
}

// rejectIncompatible returns a rejection if the Blueprint's CustomResourceDefinition must not replace the current one,
// and nil otherwise.
func rejectIncompatible(
	b *blueprint.Blueprint, current, wanted *apiextensionsv1.CustomResourceDefinition, digest string,
) *rejection {
	if current == nil || digest != "" && current.Annotations[schemaAnnotation] == digest || allowsIncompatible(b) {
		return nil
	}
	problems := blueprint.IncompatibleChanges(current, wanted)
	if len(problems) == 0 {
		return nil
	}
	return &rejection{reasonIncompatible, fmt.Sprintf("%v\nexisting instances could become invalid or lose fields; "+
		"to change the schema anyway, annotate the Blueprint with %s: %q", problems, incompatibleAnnotation,
		strconv.FormatInt(b.Generation, 10))}
}

// schemaDigest returns a digest of the schemas of a CustomResourceDefinition. It is empty if the schemas cannot be
// represented in JSON.
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
