package protect

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// Transform returns a transform that applies the given transforms in order. It skips nil transforms, and returns nil if
// all of them are nil. The returned transform returns an error if one of them fails or panics, or if a cache cannot
// hold the result. The methods of the error call no user code.
func Transform(transforms ...cache.TransformFunc) cache.TransformFunc {
	transforms = slices.DeleteFunc(transforms, func(transform cache.TransformFunc) bool { return transform == nil })
	if len(transforms) == 0 {
		return nil
	}
	return func(obj any) (any, error) {
		key, err := cache.MetaNamespaceKeyFunc(obj)
		if err != nil {
			return nil, err
		}
		return applyTransforms(obj, key, transforms)
	}
}

// applyTransforms calls the transforms and checks their result.
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

// checkTransformed returns an error if the store cannot hold the result of a transform.
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
	return nil
}
