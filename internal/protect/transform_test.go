package protect

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"
)

// brokenObject panics when its owners are read, which a store does long after the transform has returned.
type brokenObject struct{ *metav1.PartialObjectMetadata }

func (brokenObject) GetOwnerReferences() []metav1.OwnerReference { panic("on purpose") }

// brokenError cannot be formatted.
type brokenError struct{}

func (brokenError) Error() string { panic(brokenError{}) }

func partial(name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
}

// A mistake in a transform is logged with the object's name, and the object keeps its key.
func TestD5_TransformKeepsTheObjectAfterAMistake(t *testing.T) {
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
		{"a nil Unstructured", func(any) (any, error) { return nilFull, nil },
			"transform returned a nil *unstructured.Unstructured"},
		{"a nil PartialObjectMetadata", func(any) (any, error) { return nilMetadata, nil },
			"transform returned a nil *v1.PartialObjectMetadata"},
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
		{"an object with a method that panics", func(any) (any, error) { return brokenObject{partial("a")}, nil },
			"panic: on purpose"},
		{"a nil pointer as error", func(obj any) (any, error) { return obj, nilStatus },
			"transform returned a nil *errors.StatusError as error"},
		{"an error that panics", func(obj any) (any, error) { return obj, brokenError{} },
			"transform returned an error with a method that panics"},
		{"a panic that cannot be formatted", func(any) (any, error) { panic(brokenError{}) }, "brokenError"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var logged strings.Builder
			log := funcr.New(func(prefix, args string) { logged.WriteString(prefix + args + "\n") }, funcr.Options{})
			transform := Transform(log, nil, test.transform)
			for range 2 { // the reflector applies it, and the store again
				obj, err := transform(full("a"))
				if err != nil {
					t.Fatal(err)
				}
				if u, ok := obj.(*unstructured.Unstructured); !ok || u.GetNamespace() != "ns" || u.GetName() != "a" {
					t.Errorf("the object is kept as %#v", obj)
				}
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

func TestTransform_AppliesAllInOrder(t *testing.T) {
	log := funcr.New(func(string, string) {}, funcr.Options{})
	if Transform(log, nil, nil) != nil {
		t.Error("no transforms are a transform")
	}
	label := func(text string) cache.TransformFunc {
		return func(obj any) (any, error) {
			m := obj.(*metav1.PartialObjectMetadata)
			m.Labels = map[string]string{"order": m.Labels["order"] + text}
			return m, nil
		}
	}
	failing := func(obj any) (any, error) { return obj, errors.New("on purpose") }
	for name, test := range map[string]struct {
		transforms []cache.TransformFunc
		want       string
	}{
		"two":                     {[]cache.TransformFunc{label("a"), label("b")}, "ab"},
		"nil is skipped":          {[]cache.TransformFunc{nil, label("b"), nil}, "b"},
		"a failure ends them":     {[]cache.TransformFunc{label("a"), failing, label("b")}, "a"},
		"and keeps what was done": {[]cache.TransformFunc{failing, label("b")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			obj, err := Transform(log, test.transforms...)(partial("a"))
			if err != nil {
				t.Fatal(err)
			}
			if got := obj.(*metav1.PartialObjectMetadata).Labels["order"]; got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
