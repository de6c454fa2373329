package protect

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"
)

// brokenObject panics when its name is read.
type brokenObject struct{ *metav1.PartialObjectMetadata }

func (brokenObject) GetName() string { panic("on purpose") }

// brokenError cannot be formatted.
type brokenError struct{}

func (brokenError) Error() string { panic(brokenError{}) }

func partial(name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
}

func TestD5_TransformReportsMistakes(t *testing.T) {
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
		want      string // in the error
	}{
		{"nil", func(any) (any, error) { return nil, nil }, "transform returned nil"},
		{"a nil *Unstructured", func(any) (any, error) { return nilFull, nil },
			"transform returned a nil *unstructured.Unstructured"},
		{"a nil *PartialObjectMetadata", func(any) (any, error) { return nilMetadata, nil },
			"transform returned a nil *v1.PartialObjectMetadata"},
		{"not a runtime.Object", func(any) (any, error) { return "text", nil }, "transform returned a string"},
		{"another object", func(any) (any, error) { return full("b"), nil }, `from "ns/a" to "ns/b"`},
		{"a changed key", func(obj any) (any, error) {
			obj.(metav1.Object).SetNamespace("")
			return obj, nil
		}, `from "ns/a" to "a"`},
		{"metadata that is not a map", func(obj any) (any, error) {
			obj.(*unstructured.Unstructured).Object = map[string]any{"metadata": "none"}
			return obj, nil
		}, `from "ns/a" to ""`},
		{"nil metadata", func(obj any) (any, error) {
			obj.(*unstructured.Unstructured).Object = map[string]any{"metadata": map[string]any(nil)}
			return obj, nil
		}, `from "ns/a" to ""`},
		{"an object with a method that panics", func(any) (any, error) { return brokenObject{partial("a")}, nil },
			"panic: on purpose"},
		{"a nil pointer as error", func(obj any) (any, error) { return obj, nilStatus },
			"transform returned a nil *errors.StatusError as an error"},
		{"an error that panics", func(obj any) (any, error) { return obj, brokenError{} },
			"transform returned an error of type protect.brokenError with a method that panics"},
		{"a panic that cannot be formatted", func(any) (any, error) { panic(brokenError{}) }, "brokenError"},
	} {
		t.Run(test.name, func(t *testing.T) {
			obj, err := Transform(nil, test.transform)(full("a"))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v and error %v, want an error with %q", obj, err, test.want)
			}
		})
	}
}

func TestTransform_AppliesAllInOrder(t *testing.T) {
	if Transform(nil, nil) != nil {
		t.Error("Transform without arguments did not return nil")
	}
	label := func(text string) cache.TransformFunc {
		return func(obj any) (any, error) {
			m := obj.(*metav1.PartialObjectMetadata)
			m.Labels = map[string]string{"order": m.Labels["order"] + text}
			return m, nil
		}
	}
	for name, test := range map[string]struct {
		transforms []cache.TransformFunc
		want       string
	}{
		"two":            {[]cache.TransformFunc{label("a"), label("b")}, "ab"},
		"nil is skipped": {[]cache.TransformFunc{nil, label("b"), nil}, "b"},
	} {
		t.Run(name, func(t *testing.T) {
			obj, err := Transform(test.transforms...)(partial("a"))
			if err != nil {
				t.Fatal(err)
			}
			if got := obj.(*metav1.PartialObjectMetadata).Labels["order"]; got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
