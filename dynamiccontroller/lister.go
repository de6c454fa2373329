package dynamiccontroller

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// ErrNotSynced is returned by a lister before its cache holds a complete list.
var ErrNotSynced = errors.New("the type has not synced")

// Lister returns a lister that reads the cache of a served type. The objects that the lister returns are
// *unstructured.Unstructured with [CacheFull], *metav1.PartialObjectMetadata with [CacheMetadata], or the results of
// the transform if [WithTransform] was used. They are shared and must not be changed. Get accepts a key such as
// [ObjectIdentifiers].NamespacedKey. With an empty namespace, ByNamespace reads cluster-scoped objects:
// ByNamespace(id.Namespace()).Get(id.Name()) works for every object.
//
// The lister remains valid after later calls to StartServingGVK. If such a call changes the watch of the type, the
// lister reads from the new watch. Its methods return [ErrNotSynced] while the type has not synced, and [ErrNotServed]
// after the type is no longer served. With [CacheKeys] there are no objects, and Lister and the methods of the lister
// return an error. Listers are safe for concurrent use, and can be used by handlers, predicates and MapFuncs.
func (c *DynamicController) Lister(gvr schema.GroupVersionResource) (cache.GenericLister, error) {
	reg, err := c.registrationOf(gvr)
	if err != nil {
		return nil, err
	}
	if reg.newest.Load().cache == CacheKeys {
		return nil, errNoObjects(gvr)
	}
	return lister{gvr: gvr, find: func() (typewatch.View, error) {
		reg, err := c.registrationOf(gvr)
		if err != nil {
			return typewatch.View{}, err
		}
		view := reg.subscriptions.primary.View()
		if view.Options().Projection == typewatch.Keys && reg.newest.Load().cache != CacheKeys {
			return view, errNotSynced(gvr) // a swap is pending
		}
		return view, nil
	}}, nil
}

// SecondaryLister reads the cache of one watch that [Owns] or [Watches] added to a served type.
type SecondaryLister interface {
	cache.GenericLister
	// OwnedBy returns the objects whose owner has the UID. For a watch that was created by Owns, only the controller of
	// an object counts as its owner, unless the option EveryOwner was used. For a watch that was created by Watches,
	// every owner reference counts. The first call builds an index; the cost of all later calls is linear in the number
	// of results.
	OwnedBy(owner types.UID) ([]runtime.Object, error)
}

// SecondaryLister returns a lister that reads the cache of a watch that StartServingGVK or AddWatches added to a served
// type. The key identifies the watch; [Watch.Key] returns it. The lister returns objects and errors like a lister of
// [DynamicController.Lister]. By default, the objects are *metav1.PartialObjectMetadata. If the type is not served, or
// has no watch with the key, the error is [ErrNotServed].
//
// If the watch is replaced, the lister reads from the new watch. When a handler is called because of an event, the
// lister already shows the new state. The same is true when predicates and MapFuncs of the watch are called.
func (c *DynamicController) SecondaryLister(gvr schema.GroupVersionResource, key WatchKey) (SecondaryLister, error) {
	find := func() (typewatch.View, error) {
		if reg, err := c.registrationOf(gvr); err == nil {
			if sec := reg.subscriptions.find(key); sec != nil {
				return sec.sub.View(), nil
			}
		}
		return typewatch.View{}, fmt.Errorf("%s of %s: %w", key.name(), nameOf(gvr), ErrNotServed)
	}
	if _, err := find(); err != nil {
		return nil, err
	}
	return secondaryLister{lister: lister{gvr: key.GVR, find: find}, controllerOnly: key.Owned && !key.EveryOwner}, nil
}

func errNoObjects(gvr schema.GroupVersionResource) error {
	return fmt.Errorf("list %s from the cache: it is served with CacheKeys, which keeps no objects", nameOf(gvr))
}

func errNotSynced(gvr schema.GroupVersionResource) error {
	return fmt.Errorf("list %s from the cache: %w", nameOf(gvr), ErrNotSynced)
}

// lister looks up its view in each call, because the watch may have been replaced since the last call.
type lister struct {
	gvr  schema.GroupVersionResource
	find func() (typewatch.View, error)
}

var _ cache.GenericLister = lister{}

// view returns the current view. It returns an error if the view has not synced, or if its watch stores only keys.
func (l lister) view() (typewatch.View, error) {
	view, err := l.find()
	switch {
	case err != nil:
		return view, err
	case view.Options().Projection == typewatch.Keys:
		return view, errNoObjects(l.gvr)
	case !view.HasSynced():
		return view, errNotSynced(l.gvr)
	}
	return view, nil
}

func (l lister) List(selector labels.Selector) ([]runtime.Object, error) {
	return l.list(metav1.NamespaceAll, selector)
}

func (l lister) list(namespace string, selector labels.Selector) ([]runtime.Object, error) {
	view, err := l.view()
	if err != nil {
		return nil, err
	}
	var objects []runtime.Object
	for _, stored := range view.List(namespace) {
		if selector == nil || selector.Empty() {
			objects = append(objects, project(view, stored))
			continue
		}
		m, err := meta.Accessor(stored)
		if err != nil {
			return nil, err
		}
		if selector.Matches(labels.Set(m.GetLabels())) {
			objects = append(objects, project(view, stored))
		}
	}
	return objects, nil
}

func (l lister) Get(name string) (runtime.Object, error) {
	view, err := l.view()
	if err != nil {
		return nil, err
	}
	key, err := normalizeKey(name)
	if err != nil {
		key = name
	}
	stored, known := view.Get(key)
	if !known {
		return nil, apierrors.NewNotFound(l.gvr.GroupResource(), name)
	}
	return project(view, stored), nil
}

func (l lister) ByNamespace(namespace string) cache.GenericNamespaceLister {
	return namespaceLister{lister: l, namespace: namespace}
}

func project(view typewatch.View, stored any) runtime.Object {
	return view.Project(stored).(runtime.Object)
}

type namespaceLister struct {
	lister
	namespace string
}

var _ cache.GenericNamespaceLister = namespaceLister{}

func (l namespaceLister) List(selector labels.Selector) ([]runtime.Object, error) {
	return l.list(l.namespace, selector)
}

func (l namespaceLister) Get(name string) (runtime.Object, error) {
	if l.namespace == "" {
		return l.lister.Get(name)
	}
	object, err := l.lister.Get(l.namespace + "/" + name)
	if apierrors.IsNotFound(err) {
		return nil, apierrors.NewNotFound(l.gvr.GroupResource(), name)
	}
	return object, err
}

type secondaryLister struct {
	lister
	controllerOnly bool
}

func (l secondaryLister) OwnedBy(owner types.UID) ([]runtime.Object, error) {
	view, err := l.view()
	if err != nil {
		return nil, err
	}
	var owned []runtime.Object
	for _, stored := range view.OwnedBy(owner) {
		m, err := meta.Accessor(stored)
		if err != nil {
			continue
		}
		if controller := metav1.GetControllerOfNoCopy(m); l.controllerOnly && (controller == nil || controller.UID != owner) {
			continue
		}
		owned = append(owned, project(view, stored))
	}
	return owned, nil
}
