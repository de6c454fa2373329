package acceptance

import (
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

// AggregationLabel is a label on ClusterRoles. If its value is "true", the permissions of the ClusterRole are granted
// to the platform: see examples/kind.
const AggregationLabel = instances.Name + "/aggregate-to-dynamic-controller"

const (
	// finalizer is the finalizer of Blueprints.
	finalizer = instances.Name + "/blueprint"

	// ownerNameAnnotation and ownerUIDAnnotation are set on a CustomResourceDefinition that the platform created. They
	// contain the name and the UID of its Blueprint. If only the name is set, the type was retained for a later Blueprint
	// with the same name.
	ownerNameAnnotation = instances.Name + "/blueprint"
	ownerUIDAnnotation  = instances.Name + "/blueprint-uid"
	// allowedAnnotation is set by an operator on a CustomResourceDefinition that the platform did not create. It contains
	// the name of the Blueprint that is allowed to name the CustomResourceDefinition in spec.type.crd.
	allowedAnnotation = instances.Name + "/allowed-blueprint"
	// schemaAnnotation is set on a CustomResourceDefinition that the platform wrote. It contains a digest of the
	// Blueprint's schema. If the schema of the Blueprint still has this digest, the Blueprint has not changed the schema
	// since the platform wrote it. Any change to the schema in the CustomResourceDefinition was then made by someone else,
	// and the platform reverts it even if that is an incompatible change.
	schemaAnnotation = instances.Name + "/schema"
	// incompatibleAnnotation is set by an author on a Blueprint. It contains the generation that is allowed to change the
	// schema even if existing instances become invalid or lose fields.
	incompatibleAnnotation = instances.Name + "/allow-incompatible-schema"

	// blueprintLabel is a label on the ControllerRevisions that store accepted specs: see instances.LabelValue.
	blueprintLabel = instances.Name + "/blueprint"
	// generationAnnotation is set on ControllerRevisions. It contains the last generation of the Blueprint that had this
	// spec.
	generationAnnotation = instances.Name + "/generation"
	// acceptedAnnotation is set on a ControllerRevision when its spec is accepted again after a different spec. It
	// contains the time at which the spec was accepted again.
	acceptedAnnotation = instances.Name + "/accepted-again"
	// rolledOutAnnotation is set on a ControllerRevision when all instances have moved to the revision. It contains the
	// number of the revision, so that it has no effect if the revision is accepted again later.
	rolledOutAnnotation = instances.Name + "/rolled-out"
	// admittedAnnotation is set on a ControllerRevision during its rollout. It contains the number of the revision, a
	// slash, and the number of instances that were allowed to move to the revision: see rollout.Gate.Admitted.
	admittedAnnotation = instances.Name + "/admitted"
)

// soon is the delay before checking again for an expected change that causes no event.
const soon = 50 * time.Millisecond

// Keys of log values.
const (
	keyBlueprint  = "blueprint"
	keyDuration   = "took"
	keyGeneration = "generation"
	keyGVR        = "gvr"
	keyProblem    = "problem"
	keyReason     = "reason"
	// keyType is the type of a Blueprint. It is used in reconciles of Blueprints, where keyGVR is the GVR of Blueprints.
	keyType = "type"
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
