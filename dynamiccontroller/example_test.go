package dynamiccontroller_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A first use, with a real cluster.
func ExampleNewForConfig() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		panic(err)
	}
	controller, err := dynamiccontroller.NewForConfig(klog.Background(), dynamiccontroller.Config{}, cfg)
	if err != nil {
		panic(err)
	}
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	err = controller.StartServingGVK(ctx, widgets, func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		lister, err := controller.Lister(id.GVR)
		if err != nil {
			return err
		}
		widget, err := lister.ByNamespace(id.Namespace()).Get(id.Name())
		if apierrors.IsNotFound(err) {
			return nil // gone, and nothing to clean up
		}
		if err != nil {
			return err
		}
		klog.FromContext(ctx).Info("make it so", "widget", widget)
		return nil
	})
	if err != nil {
		panic(err)
	}
	if err := controller.Run(ctx); err != nil {
		panic(err)
	}
}

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
