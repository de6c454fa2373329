// Hello serves one type: it greets whom each Greeting names.
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

// run returns when ctx has ended, and with it all that was started here.
func run(ctx context.Context) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	engine, err := dynamiccontroller.NewForConfig(klog.Background(), dynamiccontroller.Config{}, cfg)
	if err != nil {
		return err
	}
	// The handler is told which object, not what happened to it: that is in the cache.
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
			return err // called again, a little later each time
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
