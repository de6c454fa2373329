package instances

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Name is the platform's field manager, and the prefix of its finalizers, labels and annotations.
const Name = "platform.example.com"

// PausedAnnotation pauses an instance, or all instances of a Blueprint, while it is set to "true". While an instance is
// paused, its children are not written, and its deletion waits.
const PausedAnnotation = Name + "/paused"

// ConditionPaused is the type of a condition that is True while an instance or a Blueprint is paused, and False
// afterwards.
const ConditionPaused = "Paused"

// ConditionRegressed is the type of a condition that is True while an instance is less healthy than before the rollout
// of a new revision. It is absent otherwise.
const ConditionRegressed = "Regressed"

const (
	// StatusManager is the field manager for statuses.
	StatusManager = Name + "/status"
	// pauseManager is the field manager for the Paused condition while an instance is paused. With a separate field
	// manager, the other conditions are kept.
	pauseManager = Name + "/paused"
	// ChildrenFinalizer is set on instances whose children the garbage collector does not all delete. Package
	// handlers/children adds it.
	ChildrenFinalizer = Name + "/children"

	// parentLabel is a label on children that identifies their instance. Package handlers/children adds it. It also adds
	// an annotation with the same name to children on which an owner reference has no effect.
	parentLabel = Name + "/parent"
	// inventoryAnnotation is an annotation on instances that lists the kinds of their children. Package handlers/children
	// writes it. Anyone who can update an instance can change it.
	inventoryAnnotation = Name + "/inventory"
	// appliedAnnotation and selfAnnotation are annotations on children. Package handlers/children adds appliedAnnotation
	// to all children. It adds selfAnnotation to children on which an owner reference has no effect.
	appliedAnnotation = Name + "/applied"
	selfAnnotation    = Name + "/self"
	// resourceAnnotation and instanceAnnotation are annotations on children. They contain the id of the template and the
	// "namespace/name" of the instance.
	resourceAnnotation = Name + "/resource"
	instanceAnnotation = Name + "/instance"
	// managedByLabel and the labels below are set on children so that users can select them. Names that are not valid
	// label values are converted with LabelValue.
	managedByLabel         = "app.kubernetes.io/managed-by"
	instanceNameLabel      = Name + "/instance-name"
	instanceNamespaceLabel = Name + "/instance-namespace"
	instanceKindLabel      = Name + "/instance-kind"
	resourceLabel          = Name + "/resource-id"
	// stageAnnotation and retainedAnnotation are annotations on children. They contain the stage of the child and the
	// instance that retains the child. Package handlers/children adds them.
	stageAnnotation    = Name + "/stage"
	retainedAnnotation = Name + "/retained-by"
	// restoredAnnotation confirms that the instance of a child has been restored from a backup. See package
	// handlers/children.
	restoredAnnotation = Name + "/restored"
	// budgetAnnotation is an annotation on children that can be instances. It contains their expansion budget.
	budgetAnnotation = Name + "/allowance"
	// omittedAnnotation marks objects that are cached without their content. If a user sets it on an object, the only
	// effect is that the platform reads the object from the API server each time.
	omittedAnnotation = Name + "/omitted"
)

// Engine is the part of a [dynamiccontroller.DynamicController] that the platform uses.
type Engine interface {
	StartServingGVK(ctx context.Context, gvr schema.GroupVersionResource, handler dynamiccontroller.Handler,
		opts ...dynamiccontroller.ServeOption) error
	StopServiceGVK(ctx context.Context, gvr schema.GroupVersionResource) error
	Lister(gvr schema.GroupVersionResource) (dynamiccontroller.Lister, error)
	SecondaryLister(gvr schema.GroupVersionResource, key dynamiccontroller.WatchKey) (
		dynamiccontroller.SecondaryLister, error)
	Enqueue(ids ...dynamiccontroller.ObjectIdentifiers)
	TypeStatusOf(gvr schema.GroupVersionResource) (dynamiccontroller.TypeStatus, error)
}

// BlueprintID identifies a Blueprint in an engine.
func BlueprintID(name string) dynamiccontroller.ObjectIdentifiers {
	return dynamiccontroller.ObjectIdentifiers{NamespacedKey: name, GVR: blueprint.GroupVersionResource}
}
