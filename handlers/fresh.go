package handlers

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/handlers/internal/perrun"
)

// Fresh returns a Reader that reads from a cache but never returns an object that was already outdated when this
// replica became the leader. It is meant for [Object].
//
// When a replica becomes the leader, its cache can lag: it can hold an object that the previous leader has since
// changed or cleaned up. If a handler created something outside the API server for an object that no longer exists,
// nothing would clean it up. A handler that counts children would use an outdated spec. In each run of the controller,
// Fresh therefore reads an object from the API server until the cache holds the same version. After that, the cache is
// sufficient because only the leader removes the platform's finalizers.
//
// Between two calls in the same run, the engine waits until the cache contains what the handler has written: see D12 in
// package dynamiccontroller. Fresh is therefore only needed for the first calls of a run. L6 covers the writes of the
// handlers after an orderly change of leaders, but neither after a crash nor if the cache lags for longer than
// Config.MaxWriteLag, and not the writes of others.
//
// Fresh costs one get per object and run, and more while the cache lags. It needs get on the type. Get returns a
// NotFound if the cache does not hold the object, even if the object exists; an event for the object will follow. List
// returns the objects in the cache.
//
// The Reader is safe for concurrent use with different objects. The engine never calls a handler concurrently for the
// same object. The Reader stores the identifiers of the objects for which the cache has caught up. It drops an
// identifier when Get does not find the object in the cache, and all identifiers at the end of each run.
func Fresh(client dynamic.Interface, cache Reader) Reader {
	return &freshReader{live: Live(client), cache: cache}
}

type freshReader struct {
	live, cache Reader
	confirmed   perrun.State[sync.Map] // identifiers of objects that are up to date in the cache
}

func (f *freshReader) Get(
	ctx context.Context, gvr schema.GroupVersionResource, namespace, name string,
) (*unstructured.Unstructured, error) {
	id, confirmed := identifiersOf(gvr, namespace, name), f.confirmed.For(ctx)
	cached, err := f.cache.Get(ctx, gvr, namespace, name)
	if err != nil {
		confirmed.Delete(id)
		return nil, err
	}
	if _, ok := confirmed.Load(id); ok {
		return cached, nil
	}
	current, err := f.live.Get(ctx, gvr, namespace, name)
	if err != nil {
		return nil, err
	}
	// The live object was read after the cached one and is therefore not older. Only equality is tested because not all
	// resourceVersions can be ordered.
	if current.GetUID() == cached.GetUID() && current.GetResourceVersion() == cached.GetResourceVersion() {
		confirmed.Store(id, nil)
	}
	return current, nil
}

func (f *freshReader) List(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, selector labels.Selector,
) ([]*unstructured.Unstructured, error) {
	return f.cache.List(ctx, gvr, namespace, selector)
}
