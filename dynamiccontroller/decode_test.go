package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// putSized creates an object with a spec and managed fields.
func putSized(f *fixture, gvr schema.GroupVersionResource, name string, size any) {
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"size": size}}}
	object.SetGroupVersionKind(gvr.GroupVersion().WithKind("Type"))
	object.SetNamespace("default")
	object.SetName(name)
	object.SetResourceVersion("1")
	object.SetLabels(map[string]string{"name": name})
	object.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "test"}})
	_ = must(f.client.Resource(gvr).Namespace("default").Create(f.t.Context(), object, metav1.CreateOptions{}))
	synctest.Wait()
}

// decoders are the ways to decode an object into a value.
func decoders(lister dynamiccontroller.Lister) map[string]func(key string, into any) error {
	return map[string]func(key string, into any) error{
		"GetInto": func(key string, into any) error { return dynamiccontroller.GetInto(lister, key, into) },
		"DecodeInto": func(key string, into any) error {
			_, name, _ := strings.Cut(key, "/")
			selector := labels.SelectorFromSet(labels.Set{"name": name})
			return dynamiccontroller.DecodeInto(must(lister.Objects("", selector))[0], into)
		},
		"DecodeInto of another Object": func(key string, into any) error {
			object, err := lister.Get(key)
			if err != nil {
				return err
			}
			return dynamiccontroller.DecodeInto(otherObject{must(meta.Accessor(object)), object}, into)
		},
		"GetInto of another lister": func(key string, into any) error {
			return dynamiccontroller.GetInto(struct{ dynamiccontroller.Lister }{lister}, key, into)
		},
	}
}

// otherObject is an Object that does not belong to a watch.
type otherObject struct {
	metadataGetters
	object runtime.Object
}

type metadataGetters interface{ metav1.Object }

func (o otherObject) Object() runtime.Object { return o.object }

func TestDecodeInto_ReplacesValuesOfAnyType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		putSized(f, gvr, "a", int64(3))
		stop := f.run()
		complete := dynamiccontroller.Owns(gvr, dynamiccontroller.WithCache(dynamiccontroller.CacheFull),
			dynamiccontroller.WithManagedFields()) // so that the cache holds more than the listers may return
		f.serve(f.types[1], succeed, complete)
		for _, mode := range []dynamiccontroller.CacheMode{dynamiccontroller.CacheFull, dynamiccontroller.CacheMetadata} {
			f.serve(gvr, succeed, dynamiccontroller.WithCache(mode))
			lister := must(f.controller.Lister(gvr))
			for name, decode := range decoders(lister) {
				size := map[dynamiccontroller.CacheMode]int{dynamiccontroller.CacheFull: 3}[mode]
				kind := must(lister.Get("default/a")).GetObjectKind().GroupVersionKind().Kind
				name := fmt.Sprintf("%s with the mode %d", name, mode)
				decodesTyped(t, name, decode, size)
				decodesUnstructured(t, name, decode, kind, size)
				decodesMetadata(t, name, decode, kind)
			}
		}
		stop()
	})
}

// decoder reads the object with a key into a value that is not empty.
type decoder = func(key string, into any) error

func decodesTyped(t *testing.T, name string, decode decoder, size int) {
	t.Helper()
	into := typed{}
	into.GenerateName, into.Annotations, into.Spec.Size = "former", map[string]string{"former": ""}, 7
	if err := decode("default/a", &into); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if into.Name != "a" || into.GenerateName != "" || into.Annotations != nil || into.Spec.Size != size ||
		into.ManagedFields != nil {
		t.Errorf("%s: got %+v, want the size %d", name, into, size)
	}
}

func decodesUnstructured(t *testing.T, name string, decode decoder, kind string, size int) {
	t.Helper()
	whole := &unstructured.Unstructured{Object: map[string]any{"former": true}}
	if err := decode("default/a", whole); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	got, _, _ := unstructured.NestedInt64(whole.Object, "spec", "size")
	if got != int64(size) || whole.GetName() != "a" || whole.Object["former"] != nil || whole.GetManagedFields() != nil ||
		whole.GetKind() != kind {
		t.Errorf("%s: got %v, want the size %d", name, whole, size)
	}
}

func decodesMetadata(t *testing.T, name string, decode decoder, kind string) {
	t.Helper()
	partial := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{GenerateName: "former"}}
	if err := decode("default/a", partial); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if partial.Name != "a" || partial.GenerateName != "" || partial.ManagedFields != nil || partial.Kind != kind {
		t.Errorf("%s: got %+v", name, partial)
	}
}

func TestDecodeInto_ReportsErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		putSized(f, gvr, "a", "large")
		f.serve(gvr, succeed)
		lister := must(f.controller.Lister(gvr))
		into := typed{}
		into.GenerateName = "former"
		if err := dynamiccontroller.GetInto(lister, "default/a", &into); !errors.Is(err, dynamiccontroller.ErrNotSynced) {
			t.Errorf("before the sync, GetInto returned %v", err)
		}
		stop := f.run()
		if err := dynamiccontroller.GetInto(lister, "default/b", &into); !apierrors.IsNotFound(err) {
			t.Errorf("for an unknown object, GetInto returned %v", err)
		}
		if into.GenerateName != "former" {
			t.Errorf("GetInto found no object, but it has changed the value to %+v", into)
		}
		for name, decode := range decoders(lister) {
			into := typed{}
			into.GenerateName = "former"
			err := decode("default/a", &into)
			if err == nil || !strings.Contains(err.Error(), "size") || into.Name != "" || into.GenerateName != "" {
				t.Errorf("%s of an invalid object returned %v and %+v, want an error with the field and a zero value",
					name, err, into)
			}
			var none *typed
			for _, invalid := range []any{typed{}, none, nil} {
				if err := decode("default/a", invalid); err == nil || !strings.Contains(err.Error(), "pointer") {
					t.Errorf("%s into the %T %v returned %v", name, invalid, invalid, err)
				}
			}
		}
		if err := dynamiccontroller.DecodeInto(nil, &into); err == nil {
			t.Error("DecodeInto accepted nil")
		}
		stop()
	})
}

// Predicates and MapFuncs receive Objects, too.
func TestDecodeInto_InAPredicate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		gvr := f.types[0]
		stop := f.run()
		var sizes []int
		f.serve(gvr, succeed, dynamiccontroller.WithPredicate(
			func(_ context.Context, _, newObj dynamiccontroller.Object) bool {
				var into typed
				if err := dynamiccontroller.DecodeInto(newObj, &into); err != nil {
					t.Error(err)
				}
				sizes = append(sizes, into.Spec.Size)
				return true
			}))
		putSized(f, gvr, "a", int64(3))
		stop()
		if len(sizes) != 1 || sizes[0] != 3 {
			t.Errorf("the predicate decoded the sizes %v, want 3", sizes)
		}
	})
}
