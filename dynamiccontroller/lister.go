package dynamiccontroller

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// ErrNotSynced is the error of a lister whose cache does not hold a whole list yet.
var ErrNotSynced = errors.New("the type has not synced")

// Lister reads the type's cache. It returns what the type's options ask for, a *unstructured.Unstructured with
// [CacheFull] and a *metav1.PartialObjectMetadata with [CacheMetadata], unless WithTransform made something else of it.
// The objects are shared and must not be changed. Get accepts a key such as [ObjectIdentifiers].NamespacedKey. With an empty
// namespace, ByNamespace reads cluster-scoped objects: ByNamespace(id.Namespace()).Get(id.Name()) works for every object.
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
	return lister{gvr: gvr, need: func() (*typewatch.Need, error) {
		reg, err := c.registrationOf(gvr)
		if err != nil {
			return nil, err
		}
		return c.watchOf(reg), nil
	}}, nil
}

// SecondaryLister reads what is watched beside a type.
type SecondaryLister interface {
	cache.GenericLister
	// OwnedBy returns the objects that the owner with the UID owns: with Owns those whose controller it is, unless
	// EveryOwner was asked for, and with Watches those that have it among their owners. It takes as long as there are such
	// objects, but for the first call, which makes an index.
	OwnedBy(owner types.UID) ([]runtime.Object, error)
}

// SecondaryLister returns a lister of what of asks for beside the type: an [Owns] or a [Watches] as it was given to
// StartServingGVK or AlsoWatch, named as for [DynamicController.StopWatching]. Its objects are as [DynamicController.Lister]
// returns them, by default *metav1.PartialObjectMetadata, and so are its errors: [ErrNotServed] is that of a type that is
// not watched beside the other, too.
//
// When a handler is called for an event, the lister shows it already.
func (c *DynamicController) SecondaryLister(gvr schema.GroupVersionResource, of ServeOption) (SecondaryLister, error) {
	named := namedSecondaries([]ServeOption{of})
	if err := errors.Join(named.errs...); err != nil {
		return nil, err
	}
	if len(named.secondaries) != 1 {
		return nil, fmt.Errorf("%d types are named, want one Owns or Watches", len(named.secondaries))
	}
	key := named.secondaries[0].key
	need := func() (*typewatch.Need, error) {
		c.mu.RLock()
		defer c.mu.RUnlock()
		if reg := c.registrations[gvr]; reg != nil {
			if s := reg.secondaries[key]; s != nil {
				return s.need, nil
			}
		}
		return nil, fmt.Errorf("%s beside %s: %w", key.option(), nameOf(gvr), ErrNotServed)
	}
	if _, err := need(); err != nil {
		return nil, err
	}
	return secondaryLister{lister: lister{gvr: key.gvr, need: need}, controllerOnly: key.owns && !key.everyOwner}, nil
}

func errNoObjects(gvr schema.GroupVersionResource) error {
	return fmt.Errorf("list %s from the cache: it is served with CacheKeys, which keeps no objects", nameOf(gvr))
}

// lister looks up anew for each call what keeps the objects.
type lister struct {
	gvr  schema.GroupVersionResource
	need func() (*typewatch.Need, error)
}

var _ cache.GenericLister = lister{}

// synced is the need, once it holds a whole list.
func (l lister) synced() (*typewatch.Need, error) {
	need, err := l.need()
	if err != nil {
		return nil, err
	}
	if need.Depth == typewatch.Keys {
		return nil, errNoObjects(l.gvr)
	}
	if !isClosed(need.Synced()) {
		return nil, fmt.Errorf("list %s from the cache: %w", nameOf(l.gvr), ErrNotSynced)
	}
	return need, nil
}

func (l lister) current() (lister cache.GenericLister, show func(runtime.Object) runtime.Object, err error) {
	need, err := l.synced()
	if err != nil {
		return nil, nil, err
	}
	objects := need.Objects()
	if objects == nil { // while another watch took over
		return nil, nil, fmt.Errorf("list %s from the cache: %w", nameOf(l.gvr), ErrNotSynced)
	}
	return cache.NewGenericLister(objects, l.gvr.GroupResource()), func(obj runtime.Object) runtime.Object {
		return need.View(obj).(runtime.Object)
	}, nil
}

func (l lister) List(selector labels.Selector) ([]runtime.Object, error) {
	current, show, err := l.current()
	if err != nil {
		return nil, err
	}
	return shown(show)(current.List(selector))
}

func (l lister) Get(name string) (runtime.Object, error) {
	current, show, err := l.current()
	if err != nil {
		return nil, err
	}
	if key, err := normalizeKey(name); err == nil {
		name = key
	}
	return shownOne(show)(current.Get(name))
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
	current, show, err := l.current()
	if err != nil {
		return nil, err
	}
	return shown(show)(current.ByNamespace(l.namespace).List(selector))
}

func (l namespaceLister) Get(name string) (runtime.Object, error) {
	if l.namespace == "" {
		return l.lister.Get(name)
	}
	current, show, err := l.current()
	if err != nil {
		return nil, err
	}
	return shownOne(show)(current.ByNamespace(l.namespace).Get(name))
}

// shown and shownOne make of what the cache keeps what was asked for.
func shown(show func(runtime.Object) runtime.Object) func([]runtime.Object, error) ([]runtime.Object, error) {
	return func(objects []runtime.Object, err error) ([]runtime.Object, error) {
		for i := range objects {
			objects[i] = show(objects[i])
		}
		return objects, err
	}
}

func shownOne(show func(runtime.Object) runtime.Object) func(runtime.Object, error) (runtime.Object, error) {
	return func(object runtime.Object, err error) (runtime.Object, error) {
		if err != nil {
			return nil, err
		}
		return show(object), nil
	}
}

type secondaryLister struct {
	lister
	controllerOnly bool
}

func (l secondaryLister) OwnedBy(owner types.UID) ([]runtime.Object, error) {
	need, err := l.synced()
	if err != nil {
		return nil, err
	}
	var owned []runtime.Object
	for _, obj := range need.OwnedBy(owner) {
		m, err := meta.Accessor(obj)
		if err != nil {
			continue
		}
		if controller := metav1.GetControllerOfNoCopy(m); l.controllerOnly && (controller == nil || controller.UID != owner) {
			continue
		}
		owned = append(owned, need.View(obj).(runtime.Object))
	}
	return owned, nil
}
