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

// engine is what is measured. Its methods are called concurrently, Start and Stop of one type one after another.
type engine interface {
	// Run reconciles until ctx ends.
	Run(ctx context.Context) error
	// Start serves the type. It may wait for its sync.
	Start(ctx context.Context, gvr schema.GroupVersionResource, handler func(key string)) error
	// WaitForSync waits until what is there of the type is known.
	WaitForSync(ctx context.Context, gvr schema.GroupVersionResource) error
	// Stop ends what Start began.
	Stop(ctx context.Context, gvr schema.GroupVersionResource) error
}

// workers is how many handlers run at once, over all types.
const workers = 8

// engines are those that are measured, in the order of the tables. Types is how many will be served.
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
	// It has a queue and workers a type: as many in all, but at least one each.
	{"controller-runtime-metadata", func(config *rest.Config, types int) (engine, error) {
		return controllerruntime.New(config, true, max(1, workers/types))
	}},
	{"controller-runtime-unstructured", func(config *rest.Config, types int) (engine, error) {
		return controllerruntime.New(config, false, max(1, workers/types))
	}},
}

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
	return nil, fmt.Errorf("there is no engine %q", name)
}

// ours is the engine of this repository.
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
