package protect

import (
	"errors"
	"fmt"
	"slices"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// Transform returns a transform that applies all given transforms in their order, or nil if there are none. A nil
// transform is skipped. If a transform fails, panics or returns an object that a cache cannot hold, the object is kept
// as the transform left it, with its namespace and name restored: a large object is better than a missing one.
func Transform(log logr.Logger, transforms ...cache.TransformFunc) cache.TransformFunc {
	transforms = slices.DeleteFunc(transforms, func(transform cache.TransformFunc) bool { return transform == nil })
	if len(transforms) == 0 {
		return nil
	}
	return func(obj any) (any, error) {
		key, err := cache.MetaNamespaceKeyFunc(obj)
		if err != nil {
			return nil, err
		}
		out, err := applyTransforms(obj, key, transforms)
		if err != nil {
			failed := log.WithValues("object", key)
			if mistake, ok := errors.AsType[*Mistake](err); ok && mistake.Stack != nil {
				failed = failed.WithValues("stack", string(mistake.Stack))
			}
			failed.Error(err, "transform failed, the object is kept as the transform left it")
			return withKey(obj, key), nil
		}
		return out, nil
	}
}

// applyTransforms calls the transforms and checks their result. The methods of the error that it returns call no user
// code.
func applyTransforms(obj any, key string, transforms []cache.TransformFunc) (out any, err error) {
	apply := func() {
		out = obj
		for i := 0; i < len(transforms) && err == nil; i++ {
			out, err = transforms[i](out)
		}
	}
	if panicked := Call(apply); panicked != nil {
		return nil, panicked
	}
	if err != nil {
		text, mistake := Error("transform", err, nil)
		if mistake != nil {
			return nil, mistake
		}
		return nil, errors.New(text)
	}
	if panicked := Call(func() { err = checkTransformed(out, key) }); panicked != nil {
		return nil, panicked
	}
	return out, err
}

// checkTransformed returns an error if the store cannot hold the result of a transform. It calls each method that the
// store calls later, where nothing recovers from a panic.
func checkTransformed(out any, key string) error {
	if out == nil {
		return errors.New("transform returned nil instead of an object")
	}
	if IsNil(out) {
		return fmt.Errorf("transform returned a nil %T instead of an object", out)
	}
	if _, ok := out.(runtime.Object); !ok {
		return fmt.Errorf("transform returned a %T, which is not a runtime.Object", out)
	}
	m, err := meta.Accessor(out)
	if err != nil {
		return fmt.Errorf("transform returned a %T, which has no metadata", out)
	}
	if got := cache.MetaObjectToName(m).String(); got != key {
		return fmt.Errorf("transform changed the object's namespace or name from %q to %q", key, got)
	}
	switch out.(type) {
	case *unstructured.Unstructured, *metav1.PartialObjectMetadata:
	default:
		_, _, _, _ = m.GetUID(), m.GetResourceVersion(), m.GetLabels(), m.GetOwnerReferences()
	}
	return nil
}

// withKey returns obj with the namespace and name that it had before a transform failed. If its metadata cannot be
// repaired, withKey returns an object that has only the namespace and name.
func withKey(obj any, key string) any {
	repaired := false
	_ = Call(func() {
		m, err := meta.Accessor(obj)
		if err != nil {
			return
		}
		if cache.MetaObjectToName(m).String() != key {
			namespace, name, _ := cache.SplitMetaNamespaceKey(key)
			m.SetNamespace(namespace)
			m.SetName(name)
		}
		repaired = cache.MetaObjectToName(m).String() == key
	})
	if repaired {
		return obj
	}
	namespace, name, _ := cache.SplitMetaNamespaceKey(key)
	if _, isWhole := obj.(*unstructured.Unstructured); isWhole {
		whole := &unstructured.Unstructured{Object: map[string]any{}}
		whole.SetNamespace(namespace)
		whole.SetName(name)
		return whole
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}
