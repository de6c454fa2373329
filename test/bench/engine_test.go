package bench

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/test/bench/peers/controllerruntime"
	"github.com/dynamic-controller/engine/test/bench/peers/informer"
	"github.com/dynamic-controller/engine/test/bench/peers/kro"
	"github.com/dynamic-controller/engine/test/bench/peers/reflector"
)

// engine is implemented by the engines that are measured. Its methods are called concurrently, except Start and Stop
// for the same type.
type engine interface {
	// Run reconciles until ctx is cancelled.
	Run(ctx context.Context) error
	// Start serves the type. It can wait until the type has synced.
	Start(ctx context.Context, gvr schema.GroupVersionResource, handler func(key string)) error
	// WaitForSync waits until the type has synced.
	WaitForSync(ctx context.Context, gvr schema.GroupVersionResource) error
	// Stop stops serving the type.
	Stop(ctx context.Context, gvr schema.GroupVersionResource) error
}

// workers is the maximum number of concurrent handler calls for all types.
const workers = 8

// engines contains all engines, in the order of the rows in the tables. The make function of an engine takes the number
// of types that the engine will serve.
var engines = []struct {
	name string
	make func(config *rest.Config, types int) (engine, error)
}{
	{"ours-full", newOurs(dynamiccontroller.WithCache(dynamiccontroller.CacheFull))},
	{"ours-metadata", newOurs(dynamiccontroller.WithCache(dynamiccontroller.CacheMetadata))},
	{"ours-keys", newOurs(dynamiccontroller.WithCache(dynamiccontroller.CacheKeys))},
	{"reflector", func(config *rest.Config, _ int) (engine, error) {
		client, err := metadata.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		return reflector.New(client, workers), nil
	}},
	{"dynamicinformer", func(config *rest.Config, _ int) (engine, error) {
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		return informer.New(client, workers), nil
	}},
	{"kro", func(config *rest.Config, _ int) (engine, error) {
		client, err := metadata.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		return kro.New(client, workers), nil
	}},
	// controller-runtime has a queue and workers for each type. The workers are divided among the types.
	{"controller-runtime-metadata", func(config *rest.Config, types int) (engine, error) {
		return controllerruntime.New(config, true, max(1, workers/types))
	}},
	{"controller-runtime-unstructured", func(config *rest.Config, types int) (engine, error) {
		return controllerruntime.New(config, false, max(1, workers/types))
	}},
}

const (
	// baseline is the engine whose memory is subtracted from the memory of the other engines.
	baseline   = "reflector"
	oursPrefix = "ours-"
	// beforeSuffix marks the name of an engine that runs in the binary given by -before.
	beforeSuffix = "-before"
)

func engineNames() []string {
	names := make([]string, len(engines))
	for i, e := range engines {
		names[i] = e.name
	}
	return names
}

func newEngine(name string, config *rest.Config, types int) (engine, error) {
	for _, e := range engines {
		if e.name == name {
			return e.make(config, types)
		}
	}
	return nil, fmt.Errorf("unknown engine %q", name)
}

// ours adapts this repository's engine.
type ours struct {
	*dynamiccontroller.DynamicController
	options []dynamiccontroller.ServeOption
}

func newOurs(options ...dynamiccontroller.ServeOption) func(*rest.Config, int) (engine, error) {
	return func(config *rest.Config, _ int) (engine, error) {
		c, err := dynamiccontroller.NewForConfig(logr.Discard(), dynamiccontroller.Config{Workers: workers}, config)
		return ours{c, options}, err
	}
}

func (o ours) Start(ctx context.Context, gvr schema.GroupVersionResource, handler func(key string)) error {
	return o.StartServingGVK(ctx, gvr, func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		handler(id.NamespacedKey)
		return nil
	}, o.options...)
}

func (o ours) WaitForSync(ctx context.Context, gvr schema.GroupVersionResource) error {
	return o.WaitForGVRSync(ctx, gvr)
}

func (o ours) Stop(ctx context.Context, gvr schema.GroupVersionResource) error {
	return o.StopServiceGVK(ctx, gvr)
}
