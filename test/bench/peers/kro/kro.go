// Package kro adapts kro's dynamic controller for the benchmarks.
package kro

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"github.com/kubernetes-sigs/kro/pkg/dynamiccontroller"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	ctrl "sigs.k8s.io/controller-runtime"
)

// Engine is kro's dynamic controller with the default limits of kro's command.
type Engine struct {
	c *dynamiccontroller.DynamicController
}

// New returns an Engine. It does not start the Engine.
func New(client metadata.Interface, workers int) *Engine {
	return &Engine{c: dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{
		Workers:              workers,
		ResyncPeriod:         10 * time.Hour,
		QueueMaxRetries:      20,
		MinRetryDelay:        200 * time.Millisecond,
		MaxRetryDelay:        1000 * time.Second,
		RateLimit:            10,
		BurstLimit:           100,
		QueueShutdownTimeout: time.Minute,
	}, client, nil)}
}

// Run reconciles until ctx is cancelled.
func (e *Engine) Run(ctx context.Context) error { return e.c.Start(ctx) }

// Start serves the type and waits until it has synced.
func (e *Engine) Start(ctx context.Context, gvr schema.GroupVersionResource, handler func(key string)) error {
	for {
		err := e.c.Register(ctx, gvr, func(_ context.Context, req ctrl.Request) error {
			handler(req.String())
			return nil
		})
		// Registering fails until Run has started. The error can be identified only by its text.
		if err == nil || err.Error() != "dynamic controller not started" || ctx.Err() != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// WaitForSync returns immediately because Start waits for the sync.
func (e *Engine) WaitForSync(context.Context, schema.GroupVersionResource) error { return nil }

// Stop stops the informer of the type. It waits neither for the informer nor for running handlers.
func (e *Engine) Stop(ctx context.Context, gvr schema.GroupVersionResource) error {
	return e.c.Deregister(ctx, gvr)
}
