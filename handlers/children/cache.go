package children

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

// Cache finds children without requests. For each type that it serves, it must hold all children of the parents that
// the [Reconciler] is called for: the objects with the label <name>/parent, in Config.Namespaces or, if these are
// empty, in all namespaces. It need not hold other objects. In particular, a watch with
// [dynamiccontroller.WithBucketLabel] lacks children of parents in other shards, so parents of several types need a
// Cache and a Reconciler for each type, with the SecondaryLister of that type.
//
// If the Cache does not hold a desired child, the child is created with a request that fails if the object exists. In
// that case, the object is read from the API server. If the error of a method wraps dynamiccontroller.ErrNotServed,
// ErrNotSynced or ErrOtherShard, children of the type are read from the API server. The methods are called
// concurrently.
type Cache interface {
	// Get returns a whole object, which the caller can modify. If the object does not exist, the error is a NotFound.
	Get(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error)
	// Lister returns a lister that finds children by their labels. Only their metadata is used, and they are not decoded.
	// A SecondaryLister also finds them by their owner, at a cost that is linear in the number of the parent's children.
	Lister(gvr schema.GroupVersionResource) (dynamiccontroller.Lister, error)
}

// Cached returns a Cache that reads the engine's caches. lister is usually DynamicController.SecondaryLister with the
// key of the watch for the children of the type, or DynamicController.Lister. The watch must have CacheFull.
func Cached[L dynamiccontroller.Lister](lister func(schema.GroupVersionResource) (L, error)) Cache {
	return cached{handlers.Cached(lister), func(gvr schema.GroupVersionResource) (dynamiccontroller.Lister, error) {
		return lister(gvr)
	}}
}

type cached struct {
	handlers.Reader
	lister func(schema.GroupVersionResource) (dynamiccontroller.Lister, error)
}

func (c cached) Lister(gvr schema.GroupVersionResource) (dynamiccontroller.Lister, error) {
	return c.lister(gvr)
}
