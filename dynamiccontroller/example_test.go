package dynamiccontroller_test

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A type is served while the controller runs, and let go again.
func Example() {
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{widgets: "WidgetList"},
		&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget",
			"metadata": map[string]any{"namespace": "default", "name": "first"},
		}})
	controller := dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{}, client)

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- controller.Run(ctx) }()

	reconciled := make(chan dynamiccontroller.ObjectIdentifiers)
	handler := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		reconciled <- id
		return nil
	}
	if err := controller.StartServingGVK(ctx, widgets, handler); err != nil {
		fmt.Println(err)
	}
	fmt.Println("reconciled", <-reconciled)

	if err := controller.StopServiceGVK(ctx, widgets); err != nil {
		fmt.Println(err)
	}
	fmt.Println("types served:", len(controller.Status()))
	cancel()
	fmt.Println("ended with", <-ended)
	// Output:
	// reconciled widgets.v1.example.com default/first
	// types served: 0
	// ended with <nil>
}
