package typewatch

import (
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// sameContent reports whether two states of an object are equal. The TypeMeta of partial metadata is ignored, because it
// depends on whether the object came with a list or with a watch event.
func sameContent(a, b any) bool {
	switch a := a.(type) {
	case *metav1.PartialObjectMetadata:
		b, ok := b.(*metav1.PartialObjectMetadata)
		return ok && equality.Semantic.DeepEqual(a.ObjectMeta, b.ObjectMeta)
	case *unstructured.Unstructured:
		b, ok := b.(*unstructured.Unstructured)
		return ok && a != nil && b != nil && sameJSON(a.Object, b.Object, maxDepth)
	default:
		return reflect.DeepEqual(a, b)
	}
}

// maxDepth is the nesting below which sameJSON uses reflect.DeepEqual. The result of a transform can contain itself, which only
// reflect.DeepEqual detects.
const maxDepth = 64

// sameJSON is reflect.DeepEqual for decoded JSON. It is several times faster and does not allocate. A relist compares every
// object, and with reflect.DeepEqual that would take longer than decoding the list.
func sameJSON(a, b any, depth int) bool {
	if depth == 0 {
		return reflect.DeepEqual(a, b)
	}
	switch a := a.(type) {
	case nil, string, bool, int64, float64:
		return a == b
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && sameMap(a, b, depth)
	case []any:
		b, ok := b.([]any)
		return ok && sameSlice(a, b, depth)
	default:
		return reflect.DeepEqual(a, b)
	}
}

func sameMap(a, b map[string]any, depth int) bool {
	if len(a) != len(b) || (a == nil) != (b == nil) {
		return false
	}
	for key, value := range a {
		if other, known := b[key]; !known || !sameJSON(value, other, depth-1) {
			return false
		}
	}
	return true
}

func sameSlice(a, b []any, depth int) bool {
	if len(a) != len(b) || (a == nil) != (b == nil) {
		return false
	}
	for i := range a {
		if !sameJSON(a[i], b[i], depth-1) {
			return false
		}
	}
	return true
}
