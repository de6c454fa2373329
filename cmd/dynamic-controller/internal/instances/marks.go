package instances

import (
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/handlers/children"
)

// This file reads the metadata that the platform adds to instances and children. Anyone who can update an object can
// change it, so this is only for programs that display objects or remove the metadata.

// InventoryAnnotation is an annotation on instances that lists the kinds of their children. WitnessAnnotation is an
// annotation on instances for which a ConfigMap shows how they are deleted. See package handlers/children.
const (
	InventoryAnnotation = inventoryAnnotation
	WitnessAnnotation   = Name + "/witness"
)

// RecordedKinds returns the kinds of children that the inventory of an instance contains.
func RecordedKinds(instance metav1.Object) []children.RecordedKind {
	return children.RecordedKinds(instance, Name)
}

// ChildSelector returns a label selector that matches the children of an instance.
func ChildSelector(instance *unstructured.Unstructured) labels.Selector {
	return children.Selector(instance, instance.GroupVersionKind().GroupKind(), Name)
}

// childExclusion returns a label selector that matches all objects except the children of an instance.
func childExclusion(instance *unstructured.Unstructured) string {
	excluded := labels.NewSelector()
	included, _ := ChildSelector(instance).Requirements()
	for _, requirement := range included {
		not, err := labels.NewRequirement(requirement.Key(), selection.NotIn, requirement.ValuesUnsorted())
		if err == nil { // the key and the values are those of a valid requirement
			excluded = excluded.Add(*not)
		}
	}
	return excluded.String()
}

// hasLabel reports whether an object has the label of a child of the instance.
func hasLabel(object metav1.Object, instance *unstructured.Unstructured) bool {
	return ChildSelector(instance).Matches(labels.Set(object.GetLabels()))
}

// IsMarked reports whether an object has the metadata of a child of the instance.
func IsMarked(object metav1.Object, instance *unstructured.Unstructured) bool {
	key := cache.NewObjectName(instance.GetNamespace(), instance.GetName()).String()
	return hasLabel(object, instance) &&
		(metav1.IsControlledBy(object, instance) || object.GetAnnotations()[instanceAnnotation] == key)
}

// ResourceOf returns the id of the resource of which an object is a child, and its stage. The id is empty if the object
// is not a child.
func ResourceOf(object metav1.Object) (id string, stage int) {
	if id = object.GetAnnotations()[resourceAnnotation]; !isIdentifier.MatchString(id) {
		return "", 0
	}
	stage, _ = strconv.Atoi(object.GetAnnotations()[stageAnnotation])
	return id, stage
}

// InstanceOf returns the kind and the key of the instance of which an object is a child. Both are empty if the object
// is not a child.
func InstanceOf(object metav1.Object) (kind, key string) {
	if id, _ := ResourceOf(object); id == "" {
		return "", ""
	}
	return object.GetLabels()[instanceKindLabel], object.GetAnnotations()[instanceAnnotation]
}

// IsMarkedInstance reports whether an object has the metadata or the field manager that the platform adds to instances.
func IsMarkedInstance(object metav1.Object) bool {
	return object.GetAnnotations()[Name+"/inventory"] != "" ||
		slices.Contains(object.GetFinalizers(), ChildrenFinalizer) ||
		slices.ContainsFunc(object.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
			return entry.Manager == StatusManager
		})
}

// ReadyOf returns the Ready condition of an instance, or nil if it has none, and whether someone has to fix a problem.
func ReadyOf(instance *unstructured.Unstructured) (ready *metav1.Condition, failing bool) {
	ready = ConditionOf(instance, conditionReady)
	return ready, ready != nil && ready.Status == metav1.ConditionFalse && isFailing(ready.Reason)
}
