// Package informer is a straightforward engine built from client-go, for comparison. It uses a dynamic informer for
// each type and one rate-limiting FIFO workqueue for all types.
package informer

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Engine serves types that can be added and removed at runtime. Its methods can be called concurrently.
type Engine struct {
	client  dynamic.Interface
	workers int
	queue   workqueue.TypedRateLimitingInterface[item]

	mu    sync.RWMutex // Guards types.
	types map[schema.GroupVersionResource]*served
}

type item struct {
	gvr schema.GroupVersionResource
	key string
}

type served struct {
	handler  func(key string)
	informer cache.SharedIndexInformer
	stop     func() // Returns after the informer has stopped.
}

const resync = 10 * time.Hour

// New returns an Engine. It starts only the goroutines of client-go's queues.
func New(client dynamic.Interface, workers int) *Engine {
	return &Engine{
		client:  client,
		workers: workers,
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[item]()),
		types:   map[schema.GroupVersionResource]*served{},
	}
}

// Run reconciles until ctx is cancelled. The informer of a type runs from Start to Stop.
func (e *Engine) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	for range e.workers {
		workers.Go(e.work)
	}
	<-ctx.Done()
	e.queue.ShutDown()
	workers.Wait()
	return nil
}

func (e *Engine) work() {
	for {
		it, shutdown := e.queue.Get()
		if shutdown {
			return
		}
		e.mu.RLock()
		s := e.types[it.gvr]
		e.mu.RUnlock()
		if s != nil {
			s.handler(it.key)
		}
		e.queue.Forget(it)
		e.queue.Done(it)
	}
}

// Start serves the type. It does not wait for a sync.
func (e *Engine) Start(_ context.Context, gvr schema.GroupVersionResource, handler func(key string)) error {
	informer := dynamicinformer.NewFilteredDynamicInformer(e.client, gvr, metav1.NamespaceAll, resync,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, nil).Informer()
	enqueue := func(obj any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
			e.queue.Add(item{gvr: gvr, key: key})
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(_, now any) { enqueue(now) },
		DeleteFunc: enqueue,
	}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	s := &served{handler: handler, informer: informer, stop: func() { cancel(); running.Wait() }}

	e.mu.Lock()
	defer e.mu.Unlock()
	if e.types[gvr] != nil {
		cancel()
		return fmt.Errorf("%s is already served", gvr)
	}
	e.types[gvr] = s
	running.Go(func() { informer.RunWithContext(ctx) })
	return nil
}

// WaitForSync waits until the type's objects are in the cache.
func (e *Engine) WaitForSync(ctx context.Context, gvr schema.GroupVersionResource) error {
	e.mu.RLock()
	s := e.types[gvr]
	e.mu.RUnlock()
	if s == nil {
		return fmt.Errorf("%s is not served", gvr)
	}
	select {
	case <-s.informer.HasSyncedChecker().Done():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Reader returns a function that reads objects of a served type from the informer's store. The objects are shared.
func (e *Engine) Reader(gvr schema.GroupVersionResource) (func(key string) (runtime.Object, error), error) {
	e.mu.RLock()
	s := e.types[gvr]
	e.mu.RUnlock()
	if s == nil {
		return nil, fmt.Errorf("%s is not served", gvr)
	}
	lister := cache.NewGenericLister(s.informer.GetIndexer(), gvr.GroupResource())
	return func(key string) (runtime.Object, error) {
		namespace, name, err := cache.SplitMetaNamespaceKey(key)
		if err != nil {
			return nil, err
		}
		return lister.ByNamespace(namespace).Get(name)
	}, nil
}

// Stop stops the informer of the type. Queued items are dropped when they are processed. Stop does not wait for running
// handlers.
func (e *Engine) Stop(_ context.Context, gvr schema.GroupVersionResource) error {
	e.mu.Lock()
	s := e.types[gvr]
	delete(e.types, gvr)
	e.mu.Unlock()
	if s != nil {
		s.stop()
	}
	return nil
}
