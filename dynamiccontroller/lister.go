package dynamiccontroller

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// ErrNotSynced is the error of a lister whose cache does not hold a whole list yet.
var ErrNotSynced = errors.New("the type has not synced")

// Lister reads the type's cache. It returns what the type's options ask for, a *unstructured.Unstructured with
// [CacheFull] and a *metav1.PartialObjectMetadata with [CacheMetadata], unless WithTransform made something else of it.
// The objects are shared and must not be changed.
//
// The lister follows swaps. While the type has not synced its methods return [ErrNotSynced] rather than too little, and
// [ErrNotServed] once it is no longer served. With [CacheKeys] there is nothing to read: an error.
func (c *DynamicController) Lister(gvr schema.GroupVersionResource) (cache.GenericLister, error) {
	reg, err := c.registrationOf(gvr)
	if err != nil {
		return nil, err
	}
	if reg.served.Load().cache == CacheKeys {
		return nil, errNoObjects(gvr)
	}
	return lister{c: c, gvr: gvr}, nil
}

func errNoObjects(gvr schema.GroupVersionResource) error {
	return fmt.Errorf("list %s from the cache: it is served with CacheKeys, which keeps no objects", nameOf(gvr))
}

// lister looks up the cache of the type's registration anew for each call.
type lister struct {
	c   *DynamicController
	gvr schema.GroupVersionResource
}

var _ cache.GenericLister = lister{}

func (l lister) current() (cache.GenericLister, error) {
	reg, err := l.c.registrationOf(l.gvr)
	if err != nil {
		return nil, err
	}
	watch := l.c.watchOf(reg)
	objects := watch.Objects()
	if objects == nil {
		return nil, errNoObjects(l.gvr)
	}
	if !isClosed(watch.Synced()) {
		return nil, fmt.Errorf("list %s from the cache: %w", nameOf(l.gvr), ErrNotSynced)
	}
	return cache.NewGenericLister(objects, l.gvr.GroupResource()), nil
}

func (l lister) List(selector labels.Selector) ([]runtime.Object, error) {
	current, err := l.current()
	if err != nil {
		return nil, err
	}
	return current.List(selector)
}

func (l lister) Get(name string) (runtime.Object, error) {
	current, err := l.current()
	if err != nil {
		return nil, err
	}
	return current.Get(name)
}

func (l lister) ByNamespace(namespace string) cache.GenericNamespaceLister {
	return namespaceLister{lister: l, namespace: namespace}
}

type namespaceLister struct {
	lister
	namespace string
}

var _ cache.GenericNamespaceLister = namespaceLister{}

func (l namespaceLister) List(selector labels.Selector) ([]runtime.Object, error) {
	current, err := l.current()
	if err != nil {
		return nil, err
	}
	return current.ByNamespace(l.namespace).List(selector)
}

func (l namespaceLister) Get(name string) (runtime.Object, error) {
	current, err := l.current()
	if err != nil {
		return nil, err
	}
	return current.ByNamespace(l.namespace).Get(name)
}
