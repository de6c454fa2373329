// Package informer is the engine that client-go's parts make without further thought, written to be compared with: a
// dynamic informer a type, and one rate-limiting workqueue for all types, first in first out.
package informer

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Engine serves types that come and go. Its methods may be called concurrently.
type Engine struct {
	client  dynamic.Interface
	workers int
	queue   workqueue.TypedRateLimitingInterface[item]

	mu    sync.RWMutex // guards types
	types map[schema.GroupVersionResource]*served
}

type item struct {
	gvr schema.GroupVersionResource
	key string
}

type served struct {
	handler  func(key string)
	informer cache.SharedIndexInformer
	stop     func() // returns when the informer has ended
}

const resync = 10 * time.Hour

// New starts no more than client-go's queues start by themselves.
func New(client dynamic.Interface, workers int) *Engine {
	return &Engine{
		client:  client,
		workers: workers,
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[item]()),
		types:   map[schema.GroupVersionResource]*served{},
	}
}

// Run reconciles until ctx ends. The informers run from Start to Stop.
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

// Start serves the type, and returns before it has synced.
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
		return fmt.Errorf("%s is served already", gvr)
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

// Stop ends the type's informer. What is queued is dropped when its turn comes; a handler that runs is not waited for.
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
