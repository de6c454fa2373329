package main

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/platform"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/tracing"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

// observed wraps the engines so that their reconciles are identified in the log, logged at V(1) and, if tracer is not
// nil, traced. term returns the current term.
func (e *engines) observed(tracer *tracing.Tracer, term func() int64) platform.Engines {
	return platform.Engines{
		Definitions: observedEngine{
			e.definitions, handlers.Chain(tracing.Identify(nil), handlers.Logging(), tracer.Middleware("definitions")),
		},
		Instances: observedEngine{
			e.instances,
			handlers.Chain(tracing.Identify(term), handlers.Logging(), tracer.Middleware("instances"), e.parked.Handler),
		},
	}
}

// observedEngine applies a middleware to all handlers.
type observedEngine struct {
	instances.Engine
	middleware handlers.Middleware
}

func (e observedEngine) StartServingGVK(
	ctx context.Context, gvr schema.GroupVersionResource, handler dynamiccontroller.Handler,
	opts ...dynamiccontroller.ServeOption,
) error {
	return e.Engine.StartServingGVK(ctx, gvr, e.middleware(handler), opts...)
}
