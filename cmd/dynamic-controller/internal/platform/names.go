package platform

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Name is the domain of all that the platform writes to objects: what field managers, finalizers, labels and annotations
// begin with.
const Name = "platform.example.com"

// AggregationLabel marks, with the value "true", the ClusterRoles by which whoever runs the platform says what it may do:
// see examples/kind.
const AggregationLabel = Name + "/aggregate-to-dynamic-controller"

const (
	statusManager = Name + "/status"
	// finalizer is that of Blueprints.
	finalizer = Name + "/blueprint"
	// childrenFinalizer is that of instances with children that an owner reference cannot reach. Package handlers adds it.
	childrenFinalizer = Name + "/children"
	// parentKey is a label of children, the UID of their instance. Package handlers adds it.
	parentKey = Name + "/parent"

	// madeForKey and madeByKey are annotations of a CustomResourceDefinition that the platform made: the name and the UID of
	// its Blueprint. Without the UID it was retained when its Blueprint went, for one of the same name.
	madeForKey = Name + "/blueprint"
	madeByKey  = Name + "/blueprint-uid"
	// allowedKey is an annotation of a CustomResourceDefinition that the platform did not create: the name of the Blueprint
	// that may serve the type with spec.type.crd.
	allowedKey = Name + "/allowed-blueprint"
	// revisionLabelKey is a label of the ControllerRevisions that store accepted specs: see revisionLabel. generationKey is an
	// annotation of theirs: the last generation of the Blueprint that had the spec. formerKindsKey is another: the kinds of
	// revisions that have been deleted and of which instances may still have children.
	revisionLabelKey = Name + "/blueprint"
	generationKey    = Name + "/generation"
	formerKindsKey   = Name + "/former-kinds"
	// inventoryKey is an annotation of instances: the kinds of their children. Package handlers writes it, and so can anyone
	// who can update an instance.
	inventoryKey = Name + "/inventory"
	// appliedKey and selfKey are annotations of children. Package handlers adds appliedKey to all of them, and selfKey to
	// those that an owner reference cannot reach.
	appliedKey = Name + "/applied"
	selfKey    = Name + "/self"
	// resourceKey and instanceKey are annotations of children: the id of the template, and "namespace/name" of the instance.
	resourceKey = Name + "/resource"
	instanceKey = Name + "/instance"
	// allowanceKey is an annotation of children that have a CustomResourceDefinition, and so may be instances of a Blueprint
	// too: how many objects they may become.
	allowanceKey = Name + "/allowance"
)

var (
	blueprints  = blueprint.GroupVersionResource
	definitions = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")
)

func blueprintID(name string) dynamiccontroller.ObjectIdentifiers {
	return dynamiccontroller.ObjectIdentifiers{NamespacedKey: name, GVR: blueprints}
}

// nameOf writes a GVR as kubectl takes it.
func nameOf(gvr schema.GroupVersionResource) string {
	if gvr.Group == "" {
		return gvr.Resource + "." + gvr.Version
	}
	return gvr.Resource + "." + gvr.Version + "." + gvr.Group
}
