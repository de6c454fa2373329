package dynamiccontroller

import "k8s.io/client-go/tools/cache"

// WithDefaultTransform sets a transform for the objects of all types, primary and secondary. It is applied before that of
// [WithTransform], and is subject to the same conditions, but it is called concurrently for different watches. As it is the
// same for all, watches remain shared.
func WithDefaultTransform(f cache.TransformFunc) Option {
	return func(c *DynamicController) { c.defaultTransform = f }
}
