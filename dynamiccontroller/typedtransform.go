package dynamiccontroller

import (
	"encoding/json"
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
)

// TypedTransform returns a transform that decodes an object into the Go type T, calls f, and applies the changes that
// f has made to the object. It can be passed to [WithTransform] and [WithDefaultTransform], whose requirements apply
// to f. T is usually a struct, such as corev1.Pod or a struct with the few fields that f needs.
//
// Fields that f does not change are stored as they are, including fields that T does not have. Items of lists that f
// does not change keep all their fields, too, even if f moves them, or adds or removes others. An item that f changes
// keeps the fields that T does not have only if the length of the list stays the same.
//
// If f returns an error, or if the object cannot be decoded into T, the transform fails. With [CacheMetadata], T has
// only the metadata of the object, and changes to other fields are dropped. Each call encodes and decodes the object;
// a transform of the unstructured object is faster. If f is nil, TypedTransform returns nil, which is no transform.
func TypedTransform[T any](f func(*T) error) cache.TransformFunc {
	if f == nil {
		return nil
	}
	return func(object any) (any, error) {
		switch o := object.(type) {
		case *unstructured.Unstructured:
			content, err := transformContent(o.Object, f)
			if err != nil {
				return nil, err
			}
			return &unstructured.Unstructured{Object: content}, nil
		case *metav1.PartialObjectMetadata:
			return transformMetadata(o, f)
		default:
			return nil, fmt.Errorf("transform a %T: must be an Unstructured or a PartialObjectMetadata", object)
		}
	}
}

func transformMetadata[T any](
	o *metav1.PartialObjectMetadata, f func(*T) error,
) (*metav1.PartialObjectMetadata, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	if content, err = transformContent(content, f); err != nil {
		return nil, err
	}
	transformed := &metav1.PartialObjectMetadata{}
	return transformed, runtime.DefaultUnstructuredConverter.FromUnstructured(content, transformed)
}

// transformContent applies the changes that f makes to the content of an object. It does not modify the content.
func transformContent[T any](content map[string]any, f func(*T) error) (map[string]any, error) {
	typed := new(T)
	if u, ok := any(typed).(*unstructured.Unstructured); ok {
		u.Object = runtime.DeepCopyJSON(content)
		err := f(typed)
		return u.Object, err
	}
	data, err := json.Marshal(content)
	if err == nil {
		// Unlike FromUnstructured, it shares no memory with the content, and rejects numbers that overflow.
		err = objects.Unmarshal(data, typed)
	}
	if err != nil {
		return nil, fmt.Errorf("decode as %T: %w", typed, err)
	}
	before, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", typed, err)
	}
	if err := f(typed); err != nil {
		return nil, err
	}
	after, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", typed, err)
	}
	return mergeFields(content, before, after), nil
}

// merged returns the original value with the changes from before to after.
func merged(original, before, after any) any {
	if reflect.DeepEqual(before, after) {
		return original
	}
	switch after := after.(type) {
	case map[string]any:
		originalFields, isMap := original.(map[string]any)
		fieldsBefore, wasMap := before.(map[string]any)
		if isMap && wasMap {
			return mergeFields(originalFields, fieldsBefore, after)
		}
	case []any:
		originalItems, isList := original.([]any)
		itemsBefore, wasList := before.([]any)
		if isList && wasList && len(originalItems) == len(itemsBefore) {
			return mergeItems(originalItems, itemsBefore, after)
		}
	}
	return after
}

func mergeFields(original, before, after map[string]any) map[string]any {
	fields := make(map[string]any, len(original))
	for name, value := range original {
		_, was := before[name]
		if _, is := after[name]; is || !was {
			fields[name] = value
		}
	}
	for name, value := range after {
		was, existed := before[name]
		_, known := original[name]
		switch {
		case known:
			fields[name] = merged(original[name], was, value)
		case !existed || !reflect.DeepEqual(was, value): // otherwise, it is a zero value that the object does not have
			fields[name] = value
		}
	}
	return fields
}

func mergeItems(original, before, after []any) []any {
	items, used := make([]any, len(after)), make([]bool, len(before))
	unchanged := func(i int, item any) bool { return i < len(before) && !used[i] && reflect.DeepEqual(before[i], item) }
	var changed []int
	for i, item := range after {
		from := i
		if !unchanged(i, item) {
			for from = 0; from < len(before) && !unchanged(from, item); {
				from++
			}
		}
		if from == len(before) {
			changed = append(changed, i)
			continue
		}
		used[from], items[i] = true, original[from]
	}
	for _, i := range changed {
		items[i] = after[i]
		if len(after) == len(before) && !used[i] {
			used[i], items[i] = true, merged(original[i], before[i], after[i])
		}
	}
	return items
}
