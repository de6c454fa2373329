package handlers

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/internal/live"
)

// Reader reads objects. See [Cached], [Live] and [Fresh].
type Reader interface {
	// Get returns an object, which the caller can modify. apierrors.IsNotFound is true for the error only if the type is
	// served and the object does not exist.
	Get(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error)
	// List returns the objects that match the selector. The caller can modify them. An empty namespace means all
	// namespaces.
	List(
		ctx context.Context, gvr schema.GroupVersionResource, namespace string, selector labels.Selector,
	) ([]*unstructured.Unstructured, error)
}

// Cached returns a Reader for the engine's caches. lister is usually DynamicController.Lister. It can also return a
// client-go lister, whose objects are then copied. If the type is not served or has not synced, the Reader returns the
// error from lister. The type must be served with CacheFull.
func Cached[L cache.GenericLister](lister func(schema.GroupVersionResource) (L, error)) Reader {
	return cached{lister: func(gvr schema.GroupVersionResource) (cache.GenericLister, error) { return lister(gvr) }}
}

type cached struct {
	lister func(schema.GroupVersionResource) (cache.GenericLister, error)
}

// listerFor returns a lister for the namespace, and reports whether its objects are shared with other readers. An empty
// namespace means all namespaces.
func (c cached) listerFor(
	gvr schema.GroupVersionResource, namespace string,
) (l cache.GenericNamespaceLister, shared bool, err error) {
	lister, err := c.lister(gvr)
	if err != nil {
		return nil, false, err
	}
	_, decodes := lister.(dynamiccontroller.Lister)
	if namespace == "" {
		return lister, !decodes, nil
	}
	return lister.ByNamespace(namespace), !decodes, nil
}

func (c cached) Get(
	_ context.Context, gvr schema.GroupVersionResource, namespace, name string,
) (*unstructured.Unstructured, error) {
	lister, shared, err := c.listerFor(gvr, namespace)
	if err != nil {
		return nil, err
	}
	object, err := lister.Get(name)
	if err != nil {
		return nil, err
	}
	return wholeObject(object, shared)
}

func (c cached) List(
	_ context.Context, gvr schema.GroupVersionResource, namespace string, selector labels.Selector,
) ([]*unstructured.Unstructured, error) {
	lister, shared, err := c.listerFor(gvr, namespace)
	if err != nil {
		return nil, err
	}
	objects, err := lister.List(selector)
	if err != nil {
		return nil, err
	}
	wholeObjects := make([]*unstructured.Unstructured, len(objects))
	for i, object := range objects {
		if wholeObjects[i], err = wholeObject(object, shared); err != nil {
			return nil, err
		}
	}
	return wholeObjects, nil
}

// wholeObject returns an object that the caller can modify.
func wholeObject(object runtime.Object, shared bool) (*unstructured.Unstructured, error) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("the cache holds a %T instead of a whole object; "+
			"serve the type with CacheFull, or read it from the API server", object)
	}
	if shared {
		u = u.DeepCopy()
	}
	return u, nil
}

// Live returns a Reader that reads from the API server, with one request for each call. It needs get and list.
func Live(client dynamic.Interface) Reader { return liveReader{client: client} }

type liveReader struct{ client dynamic.Interface }

func (l liveReader) Get(
	ctx context.Context, gvr schema.GroupVersionResource, namespace, name string,
) (*unstructured.Unstructured, error) {
	return live.Get(ctx, l.client, identifiersOf(gvr, namespace, name))
}

func (l liveReader) List(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, selector labels.Selector,
) ([]*unstructured.Unstructured, error) {
	return live.List(ctx, l.client, gvr, namespace, selector)
}

func identifiersOf(gvr schema.GroupVersionResource, namespace, name string) dynamiccontroller.ObjectIdentifiers {
	key := cache.ObjectName{Namespace: namespace, Name: name}.String()
	return dynamiccontroller.ObjectIdentifiers{NamespacedKey: key, GVR: gvr}
}
