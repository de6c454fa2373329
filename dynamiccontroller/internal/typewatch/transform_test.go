package typewatch

import (
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"
)

// brokenObject panics when its owners are read, which the store does long after the transform has returned.
type brokenObject struct{ *metav1.PartialObjectMetadata }

func (brokenObject) GetOwnerReferences() []metav1.OwnerReference { panic("on purpose") }

// brokenError cannot be formatted.
type brokenError struct{}

func (brokenError) Error() string { panic(brokenError{}) }

// A mistake in a transform is logged by its name, and the object keeps its key and is stored.
func TestD5_AnInvalidTransformKeepsTheObject(t *testing.T) {
	full := func(name string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"n": int64(1)}}}
		u.SetAPIVersion("example.com/v1")
		u.SetKind("Widget")
		u.SetNamespace("ns")
		u.SetName(name)
		u.SetResourceVersion("1")
		return u
	}
	var nilFull *unstructured.Unstructured
	var nilMetadata *metav1.PartialObjectMetadata
	var nilStatus *apierrors.StatusError
	for _, test := range []struct {
		name      string
		transform cache.TransformFunc
		want      string // in the log
	}{
		{"nil", func(any) (any, error) { return nil, nil }, "transform returned nil"},
		{"a nil Unstructured", func(any) (any, error) { return nilFull, nil }, "transform returned a nil *unstructured.Unstructured"},
		{"a nil PartialObjectMetadata", func(any) (any, error) { return nilMetadata, nil }, "transform returned a nil *v1.PartialObjectMetadata"},
		{"no runtime.Object", func(any) (any, error) { return "text", nil }, "transform returned a string"},
		{"an object with another key", func(any) (any, error) { return full("b"), nil }, `from \"ns/a\" to \"ns/b\"`},
		{"the object with its key changed", func(obj any) (any, error) {
			obj.(metav1.Object).SetNamespace("")
			return obj, nil
		}, `from \"ns/a\" to \"a\"`},
		{"the object without metadata", func(obj any) (any, error) {
			obj.(*unstructured.Unstructured).Object = map[string]any{"metadata": "none"}
			return obj, nil
		}, `from \"ns/a\" to \"\"`},
		{"the object with nil metadata", func(obj any) (any, error) {
			obj.(*unstructured.Unstructured).Object = map[string]any{"metadata": map[string]any(nil)}
			return obj, nil
		}, `from \"ns/a\" to \"\"`},
		{"an object with a method that panics", func(any) (any, error) { return brokenObject{object("a", "1")}, nil }, "panic: on purpose"},
		{"a nil pointer as error", func(obj any) (any, error) { return obj, nilStatus }, "transform returned a nil *errors.StatusError as error"},
		{"an error that panics", func(obj any) (any, error) { return obj, brokenError{} }, "transform returned an error with a method that panics"},
		{"a panic that cannot be formatted", func(any) (any, error) { panic(brokenError{}) }, "brokenError"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var logged strings.Builder
			log := funcr.New(func(prefix, args string) { logged.WriteString(prefix + args + "\n") }, funcr.Options{})
			f, needs := testFeed(Full)
			s := newStore(log, Full, test.transform, f, newHealth(nil))
			f.begin(s)
			if err := s.Replace([]any{full("a")}, "1"); err != nil {
				t.Fatal(err)
			}
			if err := s.Add(full("a")); err != nil {
				t.Error(err)
			}
			keys := needs[0].Keys()
			if len(keys) != 1 || keys[0] != "ns/a" {
				t.Errorf("the store holds %v", keys)
			}
			obj, _ := needs[0].Get("ns/a")
			if u, ok := obj.(*unstructured.Unstructured); !ok || u.GetNamespace() != "ns" || u.GetName() != "a" {
				t.Errorf("the store holds %#v", obj)
			}
			if owned := needs[0].OwnedBy("nobody"); len(owned) != 0 {
				t.Errorf("owned: %v", owned)
			}
			if !strings.Contains(logged.String(), test.want) {
				t.Errorf("%q is not in the log: %s", test.want, logged.String())
			}
			if !strings.Contains(logged.String(), `"object"="ns/a"`) {
				t.Errorf("the log does not name the object: %s", logged.String())
			}
		})
	}
}
