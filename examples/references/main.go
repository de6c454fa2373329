// References prints the text of each Notice, which is in a ConfigMap that the Notice names, and prints it again when
// the ConfigMap changes.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/references"
)

var (
	notices    = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "notices"}
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

// notice contains the fields of a Notice that the program reads.
type notice struct {
	Spec struct {
		ConfigMap string `json:"configMap"`
	} `json:"spec"`
}

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
	client, clientErr := dynamic.NewForConfig(cfg)
	engine, engineErr := dynamiccontroller.NewForConfig(klog.Background(), dynamiccontroller.Config{}, cfg)
	if err := errors.Join(clientErr, engineErr); err != nil {
		return err
	}
	tracker, err := references.New(references.Config{Controller: engine})
	if err != nil {
		return err
	}

	// reconcile declares the ConfigMap before it reads it. From then on, a change to the ConfigMap reconciles the Notice.
	reconcile := func(
		ctx context.Context, id dynamiccontroller.ObjectIdentifiers, n *notice, _ *unstructured.Unstructured,
	) error {
		refs := tracker.Begin(ctx, id)
		defer refs.Abort() // has no effect after Commit
		reader := refs.Reader(handlers.Live(client))
		configMap, err := reader.Get(ctx, configMaps, id.Namespace(), n.Spec.ConfigMap)
		switch {
		case apierrors.IsNotFound(err):
			fmt.Printf("%s: there is no ConfigMap %s\n", id.NamespacedKey, n.Spec.ConfigMap)
		case err != nil:
			return err // the earlier references stay in effect
		default:
			text, _, _ := unstructured.NestedString(configMap.Object, "data", "text")
			fmt.Printf("%s: %s\n", id.NamespacedKey, text)
		}
		refs.Commit() // a ConfigMap that the Notice named earlier is no longer watched
		return nil
	}
	gone := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		tracker.Forget(id)
		fmt.Println(id.NamespacedKey, "is gone")
		return nil
	}
	handler := handlers.Object(handlers.Cached(engine.Lister), handlers.Typed(reconcile), gone)
	if err := engine.StartServingGVK(ctx, notices, handler); err != nil {
		return err
	}
	return engine.Run(ctx)
}
