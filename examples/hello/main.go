// Hello serves one type and prints the name in each Greeting.
package main

import (
	"context"
	"fmt"
	"io"
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
	if err := engine.StartServingGVK(ctx, greetings, greet(engine, os.Stdout)); err != nil {
		return err
	}
	return engine.Run(ctx)
}

// greet returns a handler that prints the name in a Greeting. It receives only the identifiers of the object, and reads
// the object's current state from the cache.
func greet(engine *dynamiccontroller.DynamicController, out io.Writer) dynamiccontroller.Handler {
	return func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		lister, err := engine.Lister(id.GVR)
		if err != nil {
			return err
		}
		switch greeting, err := lister.ByNamespace(id.Namespace()).Get(id.Name()); {
		case apierrors.IsNotFound(err):
			fmt.Fprintln(out, "Goodbye from", id.NamespacedKey)
			return nil
		case err != nil:
			return err // the engine retries with backoff
		default:
			name, _, err := unstructured.NestedString(greeting.(*unstructured.Unstructured).Object, "spec", "name")
			fmt.Fprintf(out, "Hello, %s! This is %s\n", name, id.NamespacedKey)
			return err
		}
	}
}
