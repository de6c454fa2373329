package acceptance

import (
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

// AggregationLabel is a label of ClusterRoles. If it is set to "true", the permissions of the ClusterRole are granted
// to the platform: see examples/kind.
const AggregationLabel = instances.Name + "/aggregate-to-dynamic-controller"

const (
	// finalizer is the finalizer of Blueprints.
	finalizer = instances.Name + "/blueprint"

	// ownerNameAnnotation and ownerUIDAnnotation are annotations of a CustomResourceDefinition that the platform created.
	// They contain the name and the UID of its Blueprint. A CustomResourceDefinition with only the name was retained for a
	// later Blueprint of the same name.
	ownerNameAnnotation = instances.Name + "/blueprint"
	ownerUIDAnnotation  = instances.Name + "/blueprint-uid"
	// allowedAnnotation is an annotation of a CustomResourceDefinition that the platform did not create. It contains the
	// name of the Blueprint that can serve the type with spec.type.crd.
	allowedAnnotation = instances.Name + "/allowed-blueprint"
	// schemaAnnotation is an annotation of a CustomResourceDefinition that the platform wrote. It contains a digest of the
	// schema in the Blueprint. While the Blueprint's schema has this digest, any difference was made by somebody else and
	// must be reverted.
	schemaAnnotation = instances.Name + "/schema"
	// incompatibleAnnotation is an annotation of a Blueprint. It contains the generation that is allowed to change the
	// type's schema even if existing instances become invalid or lose fields.
	incompatibleAnnotation = instances.Name + "/allow-incompatible-schema"

	// blueprintLabel is a label of the ControllerRevisions that store accepted specs: see instances.LabelValue.
	blueprintLabel = instances.Name + "/blueprint"
	// generationAnnotation is an annotation of ControllerRevisions. It contains the last generation of the Blueprint that
	// had the spec.
	generationAnnotation = instances.Name + "/generation"
	// acceptedAnnotation is an annotation of ControllerRevisions whose spec was applied again after another one. It
	// contains the time.
	acceptedAnnotation = instances.Name + "/accepted-again"
)

// soon is the delay before checking again for a change that is expected shortly but causes no event.
const soon = 50 * time.Millisecond

// Keys of log values.
const (
	keyBlueprint  = "blueprint"
	keyDuration   = "took"
	keyGeneration = "generation"
	keyGVR        = "gvr"
	keyProblem    = "problem"
	keyReason     = "reason"
)

var (
	blueprints  = blueprint.GroupVersionResource
	definitions = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")
)

// nameOf returns a GVR in the form that kubectl accepts.
func nameOf(gvr schema.GroupVersionResource) string {
	if gvr.Group == "" {
		return gvr.Resource + "." + gvr.Version
	}
	return gvr.Resource + "." + gvr.Version + "." + gvr.Group
}
