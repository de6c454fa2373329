// Package controllerruntime adapts controller-runtime for the benchmarks. Like Crossplane, it uses one manager and
// starts and stops a controller for each type while the manager is running.
package controllerruntime

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Engine serves types that can be added and removed at runtime. Its methods can be called concurrently.
type Engine struct {
	manager  ctrl.Manager
	workers  int // Workers of each type.
	metadata bool

	mu    sync.Mutex // Guards types.
	types map[schema.GroupVersionResource]*served
}

type served struct {
	object client.Object
	stop   func() error // Returns after the controller has stopped.
}

// New returns an Engine that caches metadata or unstructured objects. It does not start the Engine.
func New(config *rest.Config, metadata bool, workers int) (*Engine, error) {
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Logger:  logr.Discard(),
		Metrics: server.Options{BindAddress: "0"},
	})
	if err != nil {
		return nil, err
	}
	return &Engine{manager: manager, workers: workers, metadata: metadata,
		types: map[schema.GroupVersionResource]*served{}}, nil
}

// Run runs the cache until ctx is cancelled. The controller of a type runs from Start to Stop.
func (e *Engine) Run(ctx context.Context) error {
	err := e.manager.Start(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.types {
		err = errors.Join(err, s.stop())
	}
	return err
}

// Start waits until discovery contains the type and then serves it. It does not wait for a sync.
func (e *Engine) Start(ctx context.Context, gvr schema.GroupVersionResource, reconciler func(key string)) error {
	// A controller that is started before discovery contains the type retries only after 10 s.
	const pause = 10 * time.Millisecond
	var gvk schema.GroupVersionKind
	if err := wait.PollUntilContextCancel(ctx, pause, true, func(context.Context) (_ bool, err error) {
		gvk, err = e.manager.GetRESTMapper().KindFor(gvr)
		return err == nil, nil
	}); err != nil {
		return err
	}
	skipNameValidation := true // Types can be started again, but names of controllers must be unique.
	c, err := controller.NewUnmanaged(gvr.Resource, controller.Options{
		MaxConcurrentReconciles: e.workers,
		SkipNameValidation:      &skipNameValidation,
		Logger:                  logr.Discard(),
		Reconciler: reconcile.Func(func(_ context.Context, req reconcile.Request) (reconcile.Result, error) {
			reconciler(req.String())
			return reconcile.Result{}, nil
		}),
	})
	if err != nil {
		return err
	}
	object := e.object(gvk)
	if err := c.Watch(source.Kind(e.manager.GetCache(), object, &handler.EnqueueRequestForObject{})); err != nil {
		return err
	}

	e.mu.Lock()
	defer e.mu.Unlock()
	if e.types[gvr] != nil {
		return fmt.Errorf("%s is already served", gvr)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	e.types[gvr] = &served{object: object, stop: func() error { cancel(); return <-ended }}
	return nil
}

func (e *Engine) object(gvk schema.GroupVersionKind) client.Object {
	if !e.metadata {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(gvk)
		return object
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(gvk)
	return object
}

// WaitForSync waits until the type's objects are in the cache.
func (e *Engine) WaitForSync(ctx context.Context, gvr schema.GroupVersionResource) error {
	e.mu.Lock()
	s := e.types[gvr]
	e.mu.Unlock()
	if s == nil {
		return fmt.Errorf("%s is not served", gvr)
	}
	_, err := e.manager.GetCache().GetInformer(ctx, s.object)
	return err
}

// Reader returns a function that reads objects of a served type from the manager's cache, which copies them.
func (e *Engine) Reader(gvr schema.GroupVersionResource) (func(key string) (runtime.Object, error), error) {
	e.mu.Lock()
	s := e.types[gvr]
	e.mu.Unlock()
	if s == nil {
		return nil, fmt.Errorf("%s is not served", gvr)
	}
	gvk := s.object.GetObjectKind().GroupVersionKind()
	return func(key string) (runtime.Object, error) {
		namespace, name, err := cache.SplitMetaNamespaceKey(key)
		if err != nil {
			return nil, err
		}
		object := e.object(gvk)
		err = e.manager.GetCache().Get(context.Background(), client.ObjectKey{Namespace: namespace, Name: name}, object)
		return object, err
	}, nil
}

// Stop stops the controller of the type, waits for its handlers, and stops the informer without waiting for it.
func (e *Engine) Stop(ctx context.Context, gvr schema.GroupVersionResource) error {
	e.mu.Lock()
	s := e.types[gvr]
	delete(e.types, gvr)
	e.mu.Unlock()
	if s == nil {
		return nil
	}
	return errors.Join(s.stop(), e.manager.GetCache().RemoveInformer(ctx, s.object))
}
