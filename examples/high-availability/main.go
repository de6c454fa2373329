// High-availability runs any number of replicas. All of them keep their caches up to date, and the one that holds the
// lease writes its name into the status of each Greeting.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/restmapper"
)

var greetings = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "greetings"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		klog.Exit(err)
	}
}

// run blocks until ctx is cancelled, everything it started has stopped, and the lease has been released.
func run(ctx context.Context) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	log := klog.Background()
	mapper, err := restmapper.New(log, cfg)
	if err != nil {
		return err
	}
	events := dynamiccontroller.WithTypeEvents(mapper.TypeEvents)
	engine, err := dynamiccontroller.NewForConfig(log, dynamiccontroller.Config{}, cfg, events)
	if err != nil {
		return err
	}
	r, err := replica.New(log, cfg, replica.Options{LeaseName: "high-availability"})
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(r.FencedConfig()) // for writes by handlers
	if err != nil {
		return err
	}
	g := greeter{client: client, name: r.Status().Identity}
	// When a replica becomes the leader, its cache can lag behind the writes of the previous leader. Fresh compares each
	// Greeting with the API server once per term.
	greeting := handlers.Fresh(client, handlers.Cached(engine.Lister))
	err = errors.Join(
		// Types are served on every replica, so that the caches of standbys are up to date.
		engine.StartServingGVK(ctx, greetings, handlers.Object(greeting, g.greet, nil)),
		r.RegisterWithoutLeaderElection("restmapper", mapper),
		r.RegisterWithoutLeaderElection("watches", replica.RunFunc(engine.RunWatches)),
		r.Register("dynamic-controller", engine, replica.ScopeLeader),
	)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// greeter reconciles Greetings while its replica leads.
type greeter struct {
	client dynamic.Interface
	name   string
}

// greet writes the name of the replica into the status.
func (g greeter) greet(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, greeting *unstructured.Unstructured,
) error {
	by, _, _ := unstructured.NestedString(greeting.Object, "status", "greetedBy")
	if by == g.name {
		return nil // nothing to write, for example after the handler's own write
	}
	// The context contains the term. If the lease is lost, the write is refused before another replica can lead.
	patch := fmt.Appendf(nil, `{"status":{"greetedBy":%q}}`, g.name)
	greetings := g.client.Resource(id.GVR).Namespace(id.Namespace())
	_, err := greetings.Patch(ctx, id.Name(), types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return err
	}
	fmt.Println(id.NamespacedKey, "is greeted by", g.name)
	return nil
}
