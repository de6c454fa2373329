package tracing_test

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/tracing"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

// Without a configuration, there is no Tracer. Nothing is wrapped.
func Example() {
	tracer, err := tracing.New(context.Background(), logr.Discard(), nil, "dynamic-controller", "v1.0.0")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer tracer.Shutdown(logr.Discard())
	cfg := &rest.Config{}
	tracer.Wrap(cfg)
	middleware := handlers.Chain(tracing.Identify(nil), tracer.Middleware("instances"))
	handler := middleware(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil })
	err = handler(context.Background(), dynamiccontroller.ObjectIdentifiers{NamespacedKey: "shop/flowers"})
	fmt.Println(err, cfg.WrapTransport == nil)
	// Output: <nil> true
}
