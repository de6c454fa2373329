// Hello serves one type and prints the name in each Greeting.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

var greetings = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "greetings"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		klog.Exit(err)
	}
}

// run blocks until ctx is cancelled and everything it started has stopped.
func run(ctx context.Context) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	engine, err := dynamiccontroller.NewForConfig(klog.Background(), dynamiccontroller.Config{}, cfg)
	if err != nil {
		return err
	}
	// The handler receives only the identifiers of the object, and reads its current state from the cache.
	greet := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		lister, err := engine.Lister(id.GVR)
		if err != nil {
			return err
		}
		switch greeting, err := lister.ByNamespace(id.Namespace()).Get(id.Name()); {
		case apierrors.IsNotFound(err):
			fmt.Println("Goodbye from", id.NamespacedKey)
			return nil
		case err != nil:
			return err // the engine retries with backoff
		default:
			name, _, err := unstructured.NestedString(greeting.(*unstructured.Unstructured).Object, "spec", "name")
			fmt.Printf("Hello, %s! This is %s\n", name, id.NamespacedKey)
			return err
		}
	}
	if err := engine.StartServingGVK(ctx, greetings, greet); err != nil {
		return err
	}
	return engine.Run(ctx)
}
