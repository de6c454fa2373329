package platform

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/handlers"
)

// Objects of the types that are watched may be anybody's: a tenant can create instances, and objects with the label of
// children. Those that are larger than maxCachedBytes are kept in the cache without their content, and read from the API
// server when they are needed, which costs a request for each pass over an instance.
const (
	maxCachedBytes = 64 << 10
	// maxKeptBytes is how large a status, or an annotation of the platform, may be to be kept of such an object.
	maxKeptBytes = 8 << 10
	// omittedKey is an annotation of objects in the cache: their content was left out. Anyone may write it, to no effect
	// but that the object is always read from the API server.
	omittedKey = Name + "/omitted"
)

// DefinitionsTransform is the default transform of the engine of definitions, whose objects are needed whole.
func DefinitionsTransform(obj any) (any, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok && isBlueprint(u) {
		// Both repeat the spec, and neither is read.
		u.SetManagedFields(nil)
		unstructured.RemoveNestedField(u.Object, "metadata", "annotations", corev1.LastAppliedConfigAnnotation)
	}
	return obj, nil
}

// InstancesTransform is the default transform of the engine of instances. It leaves out the content of large objects.
func InstancesTransform(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	switch {
	case !ok:
		return obj, nil
	case isBlueprint(u):
		return DefinitionsTransform(u)
	case sizeOf(u.Object, maxCachedBytes) <= maxCachedBytes:
		return u, nil
	}
	return withoutContent(u), nil
}

func isBlueprint(u *unstructured.Unstructured) bool {
	return u.GroupVersionKind().GroupKind() == blueprint.GroupVersionKind.GroupKind()
}

// withoutContent returns what tells whose an object is, and the conditions that are counted.
func withoutContent(u *unstructured.Unstructured) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: map[string]any{"apiVersion": u.GetAPIVersion(), "kind": u.GetKind()}}
	metadata, _ := u.Object["metadata"].(map[string]any)
	kept := map[string]any{}
	for _, field := range []string{"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp",
		"deletionTimestamp", "deletionGracePeriodSeconds", "labels", "finalizers", "ownerReferences"} {
		if value, has := metadata[field]; has {
			kept[field] = value
		}
	}
	out.Object["metadata"] = kept
	annotations := map[string]string{omittedKey: "content"}
	for key, value := range u.GetAnnotations() {
		if strings.HasPrefix(key, Name+"/") && len(value) <= maxKeptBytes {
			annotations[key] = value
		}
	}
	out.SetAnnotations(annotations)
	status, _ := u.Object["status"].(map[string]any)
	if conditions, has := status["conditions"]; has && sizeOf(conditions, maxKeptBytes) <= maxKeptBytes {
		out.Object["status"] = map[string]any{"conditions": conditions}
	}
	return out
}

// isOmitted reports whether the content of an object in the cache was left out.
func isOmitted(u *unstructured.Unstructured) bool { return u.GetAnnotations()[omittedKey] != "" }

// sizeOf estimates how many bytes a value has as JSON. It stops above the limit.
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

// wholeOf returns an object of the cache with its content, nil if there is no such object any longer or it cannot be read.
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

// cached reads from a cache of the engine of instances, and what that leaves out from the API server.
func (p *Platform) cached(lister listerFunc) whole {
	return whole{Reader: handlers.Cached(lister), live: handlers.Live(p.client)}
}
