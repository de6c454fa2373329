package instances

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// Tenants can create instances and objects with the parent label, so objects of the watched types can be large. Objects
// larger than maxCachedBytes are cached without their content. If a reconcile needs such an object, it reads the object
// from the API server.
const (
	maxCachedBytes = 64 << 10
	// maxKeptBytes is the maximum size of the conditions, and of the inventory, that the cache keeps for such an object.
	maxKeptBytes = 8 << 10
	// maxForgedBytes replaces maxCachedBytes for objects that have the parent label but are not children.
	maxForgedBytes = 4 << 10
	// maxMarkBytes limits the metadata that the cache keeps for an object without its content. It is the maximum size of
	// the controller reference, of status.revision, and of each annotation other than the inventory. It also limits the
	// labels of an object that instances refer to.
	maxMarkBytes = 1 << 10
)

// BlueprintTransform is the default cache transform of the engine that serves Blueprints. It keeps the content of all
// objects except oversized Blueprints, which are rejected.
func BlueprintTransform(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok || !isBlueprint(u) {
		return obj, nil
	}
	// Both fields duplicate the spec and are never read.
	u.SetManagedFields(nil)
	unstructured.RemoveNestedField(u.Object, "metadata", "annotations", corev1.LastAppliedConfigAnnotation)
	spec, _ := u.Object["spec"].(map[string]any)
	switch {
	case sizeOf(spec, blueprint.MaxSpecBytes) > blueprint.MaxSpecBytes:
		u.Object["spec"] = withoutTemplates(spec)
		mark(u, blueprint.OversizedAnnotation, "spec")
	case spec["resources"] != nil:
		// Marked objects have no spec.resources, so this annotation was set by a user.
		mark(u, blueprint.OversizedAnnotation, "")
	}
	spec, _ = u.Object["spec"].(map[string]any)
	mark(u, blueprint.UnknownFieldsAnnotation, blueprint.UnknownFields(spec))
	return u, nil
}

// mark sets an annotation on a cached object. If the value is empty, mark removes the annotation, because users can set
// it on the server.
func mark(u *unstructured.Unstructured, annotation, value string) {
	if value == "" {
		unstructured.RemoveNestedField(u.Object, "metadata", "annotations", annotation)
		return
	}
	annotations := u.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[annotation] = value
	u.SetAnnotations(annotations)
}

// withoutTemplates returns only those fields of an oversized spec that identify the type and control deletion.
func withoutTemplates(spec map[string]any) map[string]any {
	kept := fieldsOf(spec, "deletionPolicy", "revisionHistoryLimit", "serviceAccountName")
	if t, ok := spec["type"].(map[string]any); ok {
		kept["type"] = fieldsOf(t, "crd", "group", "version", "kind", "plural", "singular", "scope")
	}
	return kept
}

// fieldsOf returns those of the given fields that are set.
func fieldsOf(object map[string]any, names ...string) map[string]any {
	fields := map[string]any{}
	for _, name := range names {
		if value, has := object[name]; has {
			fields[name] = value
		}
	}
	return fields
}

// Transform is the default cache transform of the engine that serves instances. It drops the content of large objects.
// Objects that instances refer to are cached as metadata, of which Transform keeps only the identifying fields and the
// labels.
func Transform(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	m, isMetadata := obj.(*metav1.PartialObjectMetadata)
	switch {
	case isMetadata:
		return onlyLabels(m), nil
	case !ok:
		return obj, nil
	case isBlueprint(u):
		return BlueprintTransform(u)
	}
	_, isReduced := u.Object[reducedField]
	if limit := maxCached(u); !isReduced && sizeOf(u.Object, limit) <= limit {
		return u, nil
	}
	return withoutContent(u), nil
}

func isBlueprint(u *unstructured.Unstructured) bool {
	return u.GroupVersionKind().GroupKind() == blueprint.GroupVersionKind.GroupKind()
}

// maxCached returns the maximum size at which an object is cached with its content.
func maxCached(u *unstructured.Unstructured) int {
	annotations := u.GetAnnotations()
	isChild := annotations[appliedAnnotation] != "" && annotations[resourceAnnotation] != ""
	if u.GetLabels()[parentLabel] != "" && !isChild {
		return maxForgedBytes // the platform sets both annotations on all children
	}
	return maxCachedBytes
}

// withoutContent returns only the metadata that identifies an object and its instance, and the status fields that Count
// reads. It drops all other metadata because Kubernetes does not limit the total size of labels, owner references and
// finalizers.
func withoutContent(u *unstructured.Unstructured) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: map[string]any{"apiVersion": u.GetAPIVersion(), "kind": u.GetKind()}}
	metadata, _ := u.Object["metadata"].(map[string]any)
	out.Object["metadata"] = fieldsOf(metadata, "name", "namespace", "uid", "resourceVersion", "generation",
		"creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
	if parent, has := u.GetLabels()[parentLabel]; has && len(parent) <= maxMarkBytes {
		out.SetLabels(map[string]string{parentLabel: parent})
	}
	if slices.Contains(u.GetFinalizers(), ChildrenFinalizer) {
		out.SetFinalizers([]string{ChildrenFinalizer})
	}
	if c := metav1.GetControllerOf(u); c != nil {
		out.SetOwnerReferences([]metav1.OwnerReference{shortController(*c)})
	}
	out.SetAnnotations(keptAnnotations(u.GetAnnotations()))
	status, _ := u.Object["status"].(map[string]any)
	kept := map[string]any{}
	for field, limit := range map[string]int{"conditions": maxKeptBytes, "revision": maxMarkBytes} {
		if value, has := status[field]; has && sizeOf(value, limit) <= limit {
			kept[field] = value
		}
	}
	if len(kept) > 0 {
		out.Object["status"] = kept
	}
	return out
}

// onlyLabels returns an object without the metadata that references do not need. It also drops large labels. See
// referrers.
func onlyLabels(m *metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata {
	out := &metav1.PartialObjectMetadata{TypeMeta: m.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
	}}
	size := 0
	for key, value := range m.Labels {
		size += len(key) + len(value)
	}
	if size <= maxMarkBytes {
		out.Labels = m.Labels
	} else {
		out.Annotations = map[string]string{omittedAnnotation: "labels"}
	}
	return out
}

// keptAnnotations returns the annotations to keep when an object is cached without its content.
func keptAnnotations(annotations map[string]string) map[string]string {
	kept := map[string]string{omittedAnnotation: "content"}
	for key, limit := range map[string]int{
		appliedAnnotation: maxMarkBytes, selfAnnotation: maxMarkBytes, resourceAnnotation: maxMarkBytes,
		instanceAnnotation: maxMarkBytes, budgetAnnotation: maxMarkBytes, stageAnnotation: maxMarkBytes,
		retainedAnnotation: maxMarkBytes, restoredAnnotation: maxMarkBytes, PausedAnnotation: maxMarkBytes,
		parentLabel:         2 * maxMarkBytes, // contains several names
		inventoryAnnotation: maxKeptBytes,
	} {
		if value, has := annotations[key]; has {
			keepShort(kept, key, value, limit)
		}
	}
	return kept
}

// keepShort adds an entry to kept unless the value is longer than the limit. Of a longer annotation that retains a
// child, it adds the beginning, because its presence is sufficient.
func keepShort(kept map[string]string, key, value string, limit int) {
	switch {
	case len(value) <= limit:
		kept[key] = value
	case key == retainedAnnotation:
		kept[key] = value[:limit]
	}
}

// shortController returns a reference to a controller, or an empty one if it is so long that the controller is not an
// instance. An object with an empty reference still has a controller.
func shortController(c metav1.OwnerReference) metav1.OwnerReference {
	if len(c.APIVersion)+len(c.Kind)+len(c.Name)+len(c.UID) > maxMarkBytes {
		return metav1.OwnerReference{Controller: c.Controller}
	}
	return c
}

// isOmitted reports whether an object was cached without its content.
func isOmitted(u *unstructured.Unstructured) bool { return u.GetAnnotations()[omittedAnnotation] != "" }

// sizeOf estimates the size of a value as JSON, in bytes. It stops once the limit is exceeded.
func sizeOf(value any, limit int) int {
	size := 0
	switch value := value.(type) {
	case string:
		return len(value) + len(`"",`)
	case map[string]any:
		for key, field := range value {
			if size += len(key) + len(`"":`) + sizeOf(field, limit-size); size > limit {
				return size
			}
		}
	case []any:
		for _, item := range value {
			if size += sizeOf(item, limit-size); size > limit {
				return size
			}
		}
	}
	return size + len("{},")
}

// InventoryNames reports whether the inventory of a cached instance contains the kind. If the inventory was too large
// to cache, it is assumed to contain every kind.
func InventoryNames(instance runtime.Object, kind schema.GroupKind) bool {
	m, err := meta.Accessor(instance)
	if err != nil {
		return false
	}
	inventory, has := m.GetAnnotations()[inventoryAnnotation]
	if !has && m.GetAnnotations()[omittedAnnotation] != "" {
		return true
	}
	kinds, _, _ := strings.Cut(inventory, ";") // packed namespaces follow
	for entry := range strings.SplitSeq(kinds, ",") {
		rest, found := strings.CutPrefix(entry, kind.String())
		if found && (rest == "" || strings.ContainsAny(rest[:1], "=:@")) {
			return true
		}
	}
	return false
}
