package dynamiccontroller

import "k8s.io/client-go/tools/cache"

// WithDefaultTransform sets a transform for the objects of all types, primary and secondary. It is applied before the
// transform of [WithTransform] and has the same requirements, except that it is called concurrently for different
// watches. Watches remain shared, because they all have the same default transform.
func WithDefaultTransform(f cache.TransformFunc) Option {
	return func(c *DynamicController) { c.defaultTransform = f }
}
