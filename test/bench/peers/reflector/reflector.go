// Package reflector is a minimal engine built from client-go, for comparison. For each type, it uses a bare
// [cache.Reflector] that stores only keys. One queue serves the types in turn. The engine does not retry and offers no
// guarantees. It provides a lower bound for the measurements.
package reflector

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
)

// Engine serves types that can be added and removed at runtime. Its methods can be called concurrently.
type Engine struct {
	client  metadata.Interface
	workers int
	queue   *queue

	mu    sync.Mutex // Guards types.
	types map[schema.GroupVersionResource]*served
}

type served struct {
	store *keys
	stop  func() // Returns after the reflector has stopped.
}

// New returns an Engine. It does not start the Engine.
func New(client metadata.Interface, workers int) *Engine {
	return &Engine{client: client, workers: workers, queue: newQueue(), types: map[schema.GroupVersionResource]*served{}}
}

// Run reconciles until ctx is cancelled. The reflector of a type runs from Start to Stop.
func (e *Engine) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	for range e.workers {
		workers.Go(func() {
			for e.queue.process() {
			}
		})
	}
	<-ctx.Done()
	e.queue.shutDown()
	workers.Wait()
	return nil
}

// Start serves the type. It does not wait for a sync.
func (e *Engine) Start(_ context.Context, gvr schema.GroupVersionResource, handler func(key string)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.types[gvr] != nil {
		return fmt.Errorf("%s is already served", gvr)
	}
	l := &line{handler: handler, known: map[string]state{}}
	store := &keys{known: map[string]struct{}{}, changed: func(key string) { e.queue.add(l, key) },
		synced: make(chan struct{})}
	client := e.client.Resource(gvr)
	source := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, options)
		},
	}, e.client)
	reflector := cache.NewReflectorWithOptions(source, nil, store,
		cache.ReflectorOptions{Name: "bare", TypeDescription: gvr.String()})

	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { reflector.RunWithContext(ctx) })
	e.types[gvr] = &served{store: store, stop: func() {
		cancel()
		running.Wait()
		e.queue.drop(l)
	}}
	return nil
}

// WaitForSync waits until the keys of the type have been listed.
func (e *Engine) WaitForSync(ctx context.Context, gvr schema.GroupVersionResource) error {
	e.mu.Lock()
	s := e.types[gvr]
	e.mu.Unlock()
	if s == nil {
		return fmt.Errorf("%s is not served", gvr)
	}
	select {
	case <-s.store.synced:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Stop stops the reflector of the type and drops its queued items. It does not wait for running handlers.
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

// keys is a [cache.ReflectorStore] that stores only keys. It is used only by the reflector, from one goroutine.
type keys struct {
	known   map[string]struct{}
	changed func(key string)
	once    sync.Once
	synced  chan struct{} // Closed after the first list.
}

func (k *keys) Add(obj any) error    { return k.put(obj) }
func (k *keys) Update(obj any) error { return k.put(obj) }

func (k *keys) put(obj any) error {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return err
	}
	k.known[key] = struct{}{}
	k.changed(key)
	return nil
}

func (k *keys) Delete(obj any) error {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return err
	}
	delete(k.known, key)
	k.changed(key)
	return nil
}

func (k *keys) Replace(list []any, _ string) error {
	before := k.known
	k.known = make(map[string]struct{}, len(list))
	for _, obj := range list {
		if err := k.put(obj); err != nil {
			return err
		}
	}
	for key := range before {
		if _, still := k.known[key]; !still {
			k.changed(key)
		}
	}
	k.once.Do(func() { close(k.synced) })
	return nil
}

func (k *keys) Resync() error { return nil }
