package platform

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/handlers"
)

// Tenants can create instances, and objects with the label of children, so objects of the watched types can have any
// size. Objects larger than maxCachedBytes are cached without their content. They are read from the API server when
// they are needed, which costs one request for each reconcile of an instance.
const (
	maxCachedBytes = 64 << 10
	// maxKeptBytes is the maximum size of the conditions, or of the inventory, that is cached of such an object.
	maxKeptBytes = 8 << 10
	// maxForgedBytes is the maximum size of cached objects that have the label of children but are not children.
	maxForgedBytes = 4 << 10
	// maxMarkBytes is the maximum size of the controller reference, or of an annotation other than the inventory, that is
	// cached of an object without its content.
	maxMarkBytes = 1 << 10
	// omittedKey is an annotation of cached objects whose content was left out. If anyone else sets it, the only effect
	// is that the object is always read from the API server.
	omittedKey = Name + "/omitted"
)

// DefinitionsTransform is the default transform of the engine of definitions. It keeps the content of all objects except
// for Blueprints that are refused because of their size.
func DefinitionsTransform(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok || !isBlueprint(u) {
		return obj, nil
	}
	// Both duplicate the spec and are never read.
	u.SetManagedFields(nil)
	unstructured.RemoveNestedField(u.Object, "metadata", "annotations", corev1.LastAppliedConfigAnnotation)
	spec, _ := u.Object["spec"].(map[string]any)
	switch {
	case sizeOf(spec, blueprint.MaxSpecBytes) > blueprint.MaxSpecBytes:
		u.Object["spec"] = withoutTemplates(spec)
		annotations := u.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[blueprint.OversizedAnnotation] = "spec"
		u.SetAnnotations(annotations)
	case spec["resources"] != nil:
		// Blueprints in the API server have this field, so the annotation is not from this function.
		unstructured.RemoveNestedField(u.Object, "metadata", "annotations", blueprint.OversizedAnnotation)
	}
	return u, nil
}

// withoutTemplates returns the fields of an oversized spec that identify the type and control the deletion.
func withoutTemplates(spec map[string]any) map[string]any {
	kept := fieldsOf(spec, "deletionPolicy", "revisionHistoryLimit")
	if t, ok := spec["type"].(map[string]any); ok {
		kept["type"] = fieldsOf(t, "crd", "group", "version", "kind", "plural", "singular", "scope")
	}
	return kept
}

// fieldsOf returns those of the named fields that are set.
func fieldsOf(object map[string]any, names ...string) map[string]any {
	fields := map[string]any{}
	for _, name := range names {
		if value, has := object[name]; has {
			fields[name] = value
		}
	}
	return fields
}

// InstancesTransform is the default transform of the engine of instances. It leaves out the content of large objects.
func InstancesTransform(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	switch {
	case !ok:
		return obj, nil
	case isBlueprint(u):
		return DefinitionsTransform(u)
	}
	if limit := maxCached(u); sizeOf(u.Object, limit) <= limit {
		return u, nil
	}
	return withoutContent(u), nil
}

func isBlueprint(u *unstructured.Unstructured) bool {
	return u.GroupVersionKind().GroupKind() == blueprint.GroupVersionKind.GroupKind()
}

// maxCached returns the maximum size of an object that is cached with its content.
func maxCached(u *unstructured.Unstructured) int {
	annotations := u.GetAnnotations()
	if u.GetLabels()[parentKey] != "" && (annotations[appliedKey] == "" || annotations[resourceKey] == "") {
		return maxForgedBytes // all children that the platform writes have both
	}
	return maxCachedBytes
}

// withoutContent returns the metadata that identifies an object and its instance, and the conditions that are counted.
// Only the metadata that the platform reads is kept, because Kubernetes does not limit the total size of labels, owner
// references and finalizers.
func withoutContent(u *unstructured.Unstructured) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: map[string]any{"apiVersion": u.GetAPIVersion(), "kind": u.GetKind()}}
	metadata, _ := u.Object["metadata"].(map[string]any)
	out.Object["metadata"] = fieldsOf(metadata, "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp",
		"deletionTimestamp", "deletionGracePeriodSeconds")
	if parent, has := u.GetLabels()[parentKey]; has && len(parent) <= maxMarkBytes {
		out.SetLabels(map[string]string{parentKey: parent})
	}
	if slices.Contains(u.GetFinalizers(), childrenFinalizer) {
		out.SetFinalizers([]string{childrenFinalizer})
	}
	if c := metav1.GetControllerOf(u); c != nil && len(c.APIVersion)+len(c.Kind)+len(c.Name)+len(c.UID) <= maxMarkBytes {
		out.SetOwnerReferences([]metav1.OwnerReference{*c})
	}
	out.SetAnnotations(keptAnnotations(u.GetAnnotations()))
	status, _ := u.Object["status"].(map[string]any)
	if conditions, has := status["conditions"]; has && sizeOf(conditions, maxKeptBytes) <= maxKeptBytes {
		out.Object["status"] = map[string]any{"conditions": conditions}
	}
	return out
}

// keptAnnotations returns the annotations of an object without its content.
func keptAnnotations(annotations map[string]string) map[string]string {
	kept := map[string]string{omittedKey: "content"}
	for key, limit := range map[string]int{
		appliedKey: maxMarkBytes, selfKey: maxMarkBytes, resourceKey: maxMarkBytes, instanceKey: maxMarkBytes,
		allowanceKey: maxMarkBytes, inventoryKey: maxKeptBytes,
	} {
		if value, has := annotations[key]; has && len(value) <= limit {
			kept[key] = value
		}
	}
	return kept
}

// isOmitted reports whether the content of an object in the cache was left out.
func isOmitted(u *unstructured.Unstructured) bool { return u.GetAnnotations()[omittedKey] != "" }

// sizeOf estimates the size of a value as JSON, in bytes. It stops above the limit.
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

// whole reads objects whose content is not in the cache from the API server. List returns them without their content.
type whole struct {
	handlers.Reader
	live handlers.Reader
}

func (w whole) Get(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error) {
	object, err := w.Reader.Get(ctx, gvr, namespace, name)
	if err != nil || !isOmitted(object) {
		return object, err
	}
	return w.live.Get(ctx, gvr, namespace, name)
}

// wholeOf returns a cached object with its content. It returns nil if the object no longer exists or cannot be read.
func (w whole) wholeOf(ctx context.Context, gvr schema.GroupVersionResource, cached runtime.Object) *unstructured.Unstructured {
	object, ok := cached.(*unstructured.Unstructured)
	if !ok || !isOmitted(object) {
		return object
	}
	live, err := w.live.Get(ctx, gvr, object.GetNamespace(), object.GetName())
	if err != nil || live.GetUID() != object.GetUID() {
		return nil
	}
	return live
}

// cached returns a reader for a cache of the engine of instances. It reads omitted content from the API server.
func (p *Platform) cached(lister listerFunc) whole {
	return whole{Reader: handlers.Cached(lister), live: handlers.Live(p.client)}
}
