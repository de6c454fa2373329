// Controller-runtime hosts the engine in controller-runtime's manager: beside controllers that are there already, with their
// lease, logger and client.
package main

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

var greetings = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "greetings"}

func main() {
	ctrl.SetLogger(klog.Background())
	if err := run(ctrl.SetupSignalHandler()); err != nil {
		klog.Exit(err)
	}
}

// run returns when ctx has ended, and with it all that was started here; or with an error when the lease is lost.
func run(ctx context.Context) error {
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		LeaderElection:                true,
		LeaderElectionID:              "controller-runtime.example.com",
		LeaderElectionNamespace:       "default",
		LeaderElectionReleaseOnCancel: true,                             // nothing is written after run
		Metrics:                       server.Options{BindAddress: "0"}, // two replicas on one machine would share the port
	})
	if err != nil {
		return err
	}
	engine, err := dynamiccontroller.NewForConfig(mgr.GetLogger(), dynamiccontroller.Config{}, mgr.GetConfig())
	if err != nil {
		return err
	}
	greet := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		lister, err := engine.Lister(id.GVR)
		if err != nil {
			return err
		}
		greeting, err := lister.ByNamespace(id.Namespace()).Get(id.Name())
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		name, _, err := unstructured.NestedString(greeting.(*unstructured.Unstructured).Object, "spec", "name")
		fmt.Printf("Hello, %s! This is %s\n", name, id.NamespacedKey)
		return err
	}
	if err := engine.StartServingGVK(ctx, greetings, greet); err != nil {
		return err
	}
	if err := mgr.Add(hosted{engine: engine, elected: mgr.Elected()}); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
