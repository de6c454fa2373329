// Children makes of each Team a ConfigMap with its motto and a ServiceAccount a member, and keeps them so.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/restmapper"
)

const name = "children.example.com" // by which the API server knows what was written here

var (
	teams           = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "teams"}
	configMaps      = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	serviceAccounts = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
)

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
	log := klog.Background()
	client, clientErr := dynamic.NewForConfig(cfg)
	mapper, mapperErr := restmapper.New(log, cfg)
	engine, engineErr := dynamiccontroller.NewForConfig(log, dynamiccontroller.Config{}, cfg)
	if err := errors.Join(clientErr, mapperErr, engineErr); err != nil {
		return err
	}
	children, err := handlers.NewChildren(handlers.ChildrenConfig{
		Client: client, Mapper: mapper, Name: name,
		// Include the kinds of earlier versions of this program, or their children are never pruned.
		Kinds: []handlers.ChildKind{{GroupKind: schema.GroupKind{Kind: "ConfigMap"}}, {GroupKind: schema.GroupKind{Kind: "ServiceAccount"}}},
		// They are read where the engine keeps them, so that a team in which nothing changed costs no request.
		Cache: handlers.Cached(func(child schema.GroupVersionResource) (cache.GenericLister, error) {
			return engine.SecondaryLister(teams, dynamiccontroller.Owns(child).Key())
		}),
	})
	if err != nil {
		return err
	}
	conditions := handlers.Conditions{Client: client, FieldManager: name + "/status"}

	// Reconcile is the same whatever happened: to the team, to a child, or to this process before it came this far.
	reconcile := func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, t *team, object *unstructured.Unstructured) error {
		if !mapper.HasSynced() {
			return dynamiccontroller.RequeueAfter(100 * time.Millisecond) // the moment after the start
		}
		there, err := children.Reconcile(ctx, id, object, handlers.Desired{Stages: t.children(id.Name())})
		if object.GetDeletionTimestamp() != nil {
			return err // Kubernetes deletes the children, by their owner references
		}
		ready := readiness(there, err)
		changed, statusErr := conditions.Set(ctx, id, object, ready)
		if changed {
			fmt.Printf("%s: %s: %s\n", id.NamespacedKey, ready.Reason, ready.Message)
		}
		return cmp.Or(err, statusErr)
	}
	gone := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		children.Forget(id)
		fmt.Println(id.NamespacedKey, "is gone")
		return nil
	}
	whole := dynamiccontroller.WithCache(dynamiccontroller.CacheFull) // whether a child has drifted is in all of it
	err = engine.StartServingGVK(ctx, teams, handlers.Object(handlers.Cached(engine.Lister), handlers.Typed(reconcile), gone),
		dynamiccontroller.Owns(configMaps, whole), dynamiccontroller.Owns(serviceAccounts, whole))
	if err != nil {
		return err
	}
	ended := make(chan error)
	go func() { ended <- mapper.Run(ctx) }()
	go func() { ended <- engine.Run(ctx) }()
	return errors.Join(<-ended, <-ended)
}

// readiness says in the team's status what came of it.
func readiness(there []*unstructured.Unstructured, err error) metav1.Condition {
	if _, waits := dynamiccontroller.RequeueDelay(err); waits {
		return metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Waiting", Message: "a child is being deleted"}
	}
	if err != nil {
		return metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "NotApplied", Message: err.Error()}
	}
	return metav1.Condition{
		Type: "Ready", Status: metav1.ConditionTrue, Reason: "Applied", Message: fmt.Sprintf("%d children are there", len(there)),
	}
}
