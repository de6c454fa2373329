// Sharded runs any number of replicas, which divide eight types among them. Each type belongs to one of eight shards,
// and each shard has a lease and a leader. The leader of a type's shard writes its name into the objects of the type.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
	"github.com/dynamic-controller/engine/handlers"
)

// served are types that every cluster has. Their shards follow from a hash of group and resource.
var served = []schema.GroupVersionResource{
	{Version: "v1", Resource: "configmaps"},
	{Version: "v1", Resource: "podtemplates"},
	{Version: "v1", Resource: "replicationcontrollers"},
	{Version: "v1", Resource: "serviceaccounts"},
	{Version: "v1", Resource: "services"},
	{Group: "batch", Version: "v1", Resource: "cronjobs"},
	{Group: "batch", Version: "v1", Resource: "jobs"},
	{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
}

// Only objects with this label are watched.
var labelled = labels.SelectorFromSet(labels.Set{"sharded.example.com/reconcile": "true"})

const reconciledBy = "sharded.example.com/reconciled-by" // an annotation

// options selects short durations, so that a crash can be watched. The defaults suit a loaded API server better.
var options = replica.Options{
	LeaseName:     "sharded",
	Shards:        8,
	LeaseDuration: 3 * time.Second,
	RenewDeadline: 2 * time.Second,
	RetryPeriod:   500 * time.Millisecond,
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		klog.Exit(err)
	}
}

// run blocks until ctx is cancelled, everything it started has stopped, and the leases have been released.
func run(ctx context.Context) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	log := klog.Background()
	engine, err := dynamiccontroller.NewForConfig(log, dynamiccontroller.Config{}, cfg)
	if err != nil {
		return err
	}
	r, err := replica.New(log, cfg, options)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(r.FencedConfig()) // for writes by handlers
	if err != nil {
		return err
	}
	m := marker{client: client, name: r.Status().Identity}
	// The cache of a new leader can lag behind the writes of the previous one.
	objects := handlers.Fresh(client, handlers.Cached(engine.Lister))
	for _, gvr := range served {
		// Every replica serves all types. It watches and reconciles only those of its shards.
		err := engine.StartServingGVK(ctx, gvr, handlers.Object(objects, m.mark, nil),
			dynamiccontroller.WithLabelSelector(labelled))
		if err != nil {
			return err
		}
	}
	err = errors.Join(
		// Both are called once for each shard. Two replicas watch the types of a shard, and one of the two leads it.
		r.Register("watches", engine.Watches(), replica.ScopeWarmShard),
		r.Register("dynamic-controller", engine, replica.ScopeShard),
		r.RegisterWithoutLeaderElection("report", replica.RunFunc(func(ctx context.Context) error { return report(ctx, r) })),
	)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// marker reconciles the objects of the shards that its replica leads.
type marker struct {
	client dynamic.Interface
	name   string
}

// mark writes the name of the replica into an annotation.
func (m marker) mark(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured,
) error {
	if object.GetAnnotations()[reconciledBy] == m.name {
		return nil // nothing to write, for example after the handler's own write
	}
	// The context contains the term of the shard. Without this context, the write would be refused.
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, reconciledBy, m.name)
	resource := m.client.Resource(id.GVR).Namespace(id.Namespace())
	if _, err := resource.Patch(ctx, id.Name(), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	shard, _ := replica.Shard(ctx)
	fmt.Printf("%s %s of shard %d is reconciled by %s\n", id.GVR.Resource, id.NamespacedKey, shard, m.name)
	return nil
}

// report prints the shards that the replica leads, and those that it keeps warm for another leader, when they change.
func report(ctx context.Context, r *replica.Replica) error {
	last := ""
	for tick := time.Tick(50 * time.Millisecond); ctx.Err() == nil; {
		status := r.Status()
		var led, standby []int
		for index, shard := range status.Shards {
			switch {
			case shard.Leading:
				led = append(led, index)
			case shard.Warm:
				standby = append(standby, index)
			}
		}
		line := fmt.Sprint(status.Identity, " leads shards ", led, ", standby for ", standby)
		if line != last {
			fmt.Println(line)
			last = line
		}
		select {
		case <-tick:
		case <-ctx.Done():
		}
	}
	return nil
}
