// Package kro lets kro's dynamic controller be measured.
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

// Engine is kro's, with the limits of its own command's flags.
type Engine struct {
	c *dynamiccontroller.DynamicController
}

// New starts nothing.
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

// Run reconciles until ctx ends.
func (e *Engine) Run(ctx context.Context) error { return e.c.Start(ctx) }

// Start serves the type, and returns when it has synced.
func (e *Engine) Start(ctx context.Context, gvr schema.GroupVersionResource, handler func(key string)) error {
	for {
		err := e.c.Register(ctx, gvr, func(_ context.Context, req ctrl.Request) error {
			handler(req.String())
			return nil
		})
		// It refuses until Run has begun, and says so with no more than these words.
		if err == nil || err.Error() != "dynamic controller not started" || ctx.Err() != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// WaitForSync has nothing to wait for.
func (e *Engine) WaitForSync(context.Context, schema.GroupVersionResource) error { return nil }

// Stop ends the type's informer. Neither it nor a handler that runs is waited for.
func (e *Engine) Stop(ctx context.Context, gvr schema.GroupVersionResource) error {
	return e.c.Deregister(ctx, gvr)
}
