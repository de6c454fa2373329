package typewatch

import (
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/internal/protect"
)

// safely reduces an object and then applies the user's transform. If the transform fails, panics or returns an object that
// the store cannot hold, the object is kept as the transform left it: a large object is better than a missing one.
func safely(log logr.Logger, reduce func(any) any, transform cache.TransformFunc) cache.TransformFunc {
	return func(obj any) (any, error) {
		obj = reduce(obj)
		if transform == nil {
			return obj, nil
		}
		key, err := cache.MetaNamespaceKeyFunc(obj)
		if err != nil {
			return nil, err
		}
		out, err := applyTransform(obj, key, transform)
		if err != nil {
			failed := log.WithValues("object", key)
			if mistake, ok := errors.AsType[*protect.Mistake](err); ok && mistake.Stack != nil {
				failed = failed.WithValues("stack", string(mistake.Stack))
			}
			failed.Error(err, "transform failed, the object is kept as the transform left it")
			return withKey(obj, key), nil
		}
		return out, nil
	}
}

// applyTransform calls the transform and checks its result. The methods of the error that it returns call no user code.
func applyTransform(obj any, key string, transform cache.TransformFunc) (out any, err error) {
	if panicked := protect.Call(func() { out, err = transform(obj) }); panicked != nil {
		return nil, panicked
	}
	if err != nil {
		text, mistake := protect.Error("transform", err, nil)
		if mistake != nil {
			return nil, mistake
		}
		return nil, errors.New(text)
	}
	if panicked := protect.Call(func() { err = checkTransformed(out, key) }); panicked != nil {
		return nil, panicked
	}
	return out, err
}

// checkTransformed returns an error if the store cannot hold the result of a transform. It calls each method that the store
// calls later, where nothing recovers from a panic.
func checkTransformed(out any, key string) error {
	if out == nil {
		return errors.New("transform returned nil instead of an object")
	}
	if protect.IsNil(out) {
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
	_ = protect.Call(func() {
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
	if _, isFull := obj.(*unstructured.Unstructured); isFull {
		return fullOf(stub(key))
	}
	return stub(key)
}

// chain returns a transform that applies first and then the other one. Either can be nil.
func chain(first, then cache.TransformFunc) cache.TransformFunc {
	switch {
	case first == nil:
		return then
	case then == nil:
		return first
	}
	return func(obj any) (any, error) {
		obj, err := first(obj)
		if err != nil {
			return obj, err
		}
		return then(obj)
	}
}
