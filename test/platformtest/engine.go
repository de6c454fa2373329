// Package platformtest provides fakes of the engine and of the API server for the platform's unit tests.
package platformtest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Engine is a fake engine. The test fills its caches and calls its handlers.
type Engine struct {
	// Objects is the cache of the served types, and Secondary that of the watched types.
	Objects, Secondary cache.Indexer
	Enqueued           []dynamiccontroller.ObjectIdentifiers
	Statuses           []dynamiccontroller.TypeStatus
	// Handlers contains the handlers for the served types.
	Handlers map[schema.GroupVersionResource]dynamiccontroller.Handler
	// ListErrs are returned by the method List of the listers of Lister.
	ListErrs map[schema.GroupVersionResource]error
	// SecondaryErr is returned by SecondaryLister, and StartErr by StartServingGVK.
	SecondaryErr, StartErr error
}

// NewEngine returns an Engine with empty caches.
func NewEngine() *Engine {
	index := func() cache.Indexer { return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}) }
	return &Engine{
		Objects: index(), Secondary: index(), Handlers: map[schema.GroupVersionResource]dynamiccontroller.Handler{},
	}
}

// Lister returns a lister for Objects.
func (e *Engine) Lister(gvr schema.GroupVersionResource) (dynamiccontroller.Lister, error) {
	return lister{cache.NewGenericLister(e.Objects, gvr.GroupResource()), e.ListErrs[gvr]}, nil
}

// SecondaryLister returns a lister for the objects in Secondary that have the type of the watch. Objects that are not
// Unstructured are included for every type.
func (e *Engine) SecondaryLister(
	_ schema.GroupVersionResource, key dynamiccontroller.WatchKey,
) (dynamiccontroller.SecondaryLister, error) {
	if e.SecondaryErr != nil {
		return nil, e.SecondaryErr
	}
	objects := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, object := range e.Secondary.List() {
		if u, ok := object.(*unstructured.Unstructured); ok && u.GetKind() != "" {
			if gvr, _ := meta.UnsafeGuessKindToResource(u.GroupVersionKind()); gvr != key.GVR {
				continue
			}
		}
		if err := objects.Add(object); err != nil {
			return nil, err
		}
	}
	return lister{GenericLister: cache.NewGenericLister(objects, key.GVR.GroupResource())}, nil
}

// Enqueue records the objects.
func (e *Engine) Enqueue(ids ...dynamiccontroller.ObjectIdentifiers) {
	e.Enqueued = append(e.Enqueued, ids...)
}

// TypeStatusOf returns the status of the type from Statuses.
func (e *Engine) TypeStatusOf(gvr schema.GroupVersionResource) (dynamiccontroller.TypeStatus, error) {
	for _, status := range e.Statuses {
		if status.GVR == gvr {
			return status, nil
		}
	}
	return dynamiccontroller.TypeStatus{}, dynamiccontroller.ErrNotServed
}

// StartServingGVK records the handler.
func (e *Engine) StartServingGVK(
	_ context.Context, gvr schema.GroupVersionResource, handler dynamiccontroller.Handler,
	_ ...dynamiccontroller.ServeOption,
) error {
	if e.StartErr == nil {
		e.Handlers[gvr] = handler
	}
	return e.StartErr
}

// StopServiceGVK removes the handler.
func (e *Engine) StopServiceGVK(_ context.Context, gvr schema.GroupVersionResource) error {
	delete(e.Handlers, gvr)
	return nil
}

// Run calls the handlers of the enqueued objects until the queue is empty. It returns the delays of all requeue
// requests, and joins all other errors.
func (e *Engine) Run(ctx context.Context) (requeues []time.Duration, err error) {
	for len(e.Enqueued) > 0 {
		id := e.Enqueued[0]
		e.Enqueued = e.Enqueued[1:]
		handler, served := e.Handlers[id.GVR]
		if !served {
			continue
		}
		result := handler(ctx, id)
		if delay, again := dynamiccontroller.RequeueDelay(result); again {
			requeues = append(requeues, delay)
			continue
		}
		err = errors.Join(err, result)
	}
	return requeues, err
}

// lister reads an indexer.
type lister struct {
	cache.GenericLister

	listErr error
}

func (l lister) List(selector labels.Selector) ([]runtime.Object, error) {
	if l.listErr != nil {
		return nil, l.listErr
	}
	return l.GenericLister.List(selector)
}

func (l lister) All(namespace string, selector labels.Selector) iter.Seq2[runtime.Object, error] {
	if selector == nil {
		selector = labels.Everything()
	}
	return func(yield func(runtime.Object, error) bool) {
		all, err := l.ByNamespace(namespace).List(selector)
		if err != nil {
			yield(nil, err)
			return
		}
		for _, object := range all {
			if !yield(object, nil) {
				return
			}
		}
	}
}

func (l lister) Objects(namespace string, selector labels.Selector) (all []dynamiccontroller.Object, err error) {
	for object, err := range l.All(namespace, selector) {
		if err != nil {
			return nil, err
		}
		m, err := meta.Accessor(object)
		if err != nil {
			return nil, err
		}
		all = append(all, cached{m, object})
	}
	return all, nil
}

func (l lister) OwnedBy(owner types.UID) ([]dynamiccontroller.Object, error) {
	all, err := l.Objects("", nil)
	return slices.DeleteFunc(all, func(object dynamiccontroller.Object) bool {
		controller := metav1.GetControllerOf(object.(cached))
		return controller == nil || controller.UID != owner
	}), err
}

func (l lister) ByIndex(name, _ string) ([]dynamiccontroller.Object, error) {
	return nil, fmt.Errorf("%w: %q; this lister has none", dynamiccontroller.ErrNoIndex, name)
}

// cached is an object in a cache.
type cached struct {
	metadata
	object runtime.Object
}

type metadata interface{ metav1.Object }

func (c cached) Object() runtime.Object { return c.object }

// Mapper is a REST mapper that has synced.
type Mapper struct {
	*meta.DefaultRESTMapper
	// Supported contains the verbs of resources that do not support all verbs.
	Supported map[schema.GroupVersionResource][]string
}

// NewMapper returns a Mapper with the given namespaced kinds.
func NewMapper(kinds ...schema.GroupVersionKind) Mapper {
	mapper := Mapper{meta.NewDefaultRESTMapper(nil), map[schema.GroupVersionResource][]string{}}
	for _, kind := range kinds {
		mapper.Add(kind, meta.RESTScopeNamespace)
	}
	return mapper
}

// HasSynced returns true.
func (Mapper) HasSynced() bool { return true }

// Verbs returns the verbs in Supported. By default, it returns all verbs that the platform uses.
func (m Mapper) Verbs(resource schema.GroupVersionResource) ([]string, error) {
	if verbs, has := m.Supported[resource]; has {
		return verbs, nil
	}
	return []string{"create", "delete", "get", "list", "patch", "watch"}, nil
}
