// Controller-runtime runs a reconciler that was written for controller-runtime on the engine. The engine itself runs in
// a controller-runtime manager, next to the manager's other controllers.
package main

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/examples/controller-runtime/adapter"
)

var greetings = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "greetings"}

func main() {
	ctrl.SetLogger(klog.Background())
	if err := run(ctrl.SetupSignalHandler()); err != nil {
		klog.Exit(err)
	}
}

// run blocks until ctx is cancelled and everything it started has stopped. It returns an error if the lease is lost.
func run(ctx context.Context) error {
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		LeaderElection:                true,
		LeaderElectionID:              "controller-runtime.example.com",
		LeaderElectionNamespace:       "default",
		LeaderElectionReleaseOnCancel: true, // Nothing is written after run returns.
		// Two replicas on one machine would use the same port.
		Metrics: server.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	engine, err := dynamiccontroller.NewForConfig(mgr.GetLogger(), dynamiccontroller.Config{}, mgr.GetConfig())
	if err != nil {
		return err
	}
	// The manager's client would watch and cache the type a second time.
	live, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return err
	}
	reconciler := greeter{Client: adapter.NewClient(live, engine.Lister)}
	if err := engine.StartServingGVK(ctx, greetings, adapter.Handler(reconciler)); err != nil {
		return err
	}
	if err := mgr.Add(hosted{engine: engine, elected: mgr.Elected()}); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
