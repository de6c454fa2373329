// Children creates a ConfigMap with the motto of each Team, and a ServiceAccount for each member, and keeps them up to
// date.
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
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/children"
	"github.com/dynamic-controller/engine/restmapper"
)

const name = "children.example.com" // used for field managers and annotations

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

// run blocks until ctx is cancelled and everything it started has stopped.
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
	reconciler, err := children.New(children.Config{
		Client: client, Mapper: mapper, Name: name,
		// Do not remove kinds that an earlier version used: children of these kinds would never be pruned.
		Kinds: []children.Kind{
			{GroupKind: schema.GroupKind{Kind: "ConfigMap"}}, {GroupKind: schema.GroupKind{Kind: "ServiceAccount"}},
		},
		// Children are read from the engine's caches, so an unchanged team requires no requests.
		Cache: children.Cached(func(child schema.GroupVersionResource) (dynamiccontroller.SecondaryLister, error) {
			return engine.SecondaryLister(teams, dynamiccontroller.Owns(child).Key())
		}),
	})
	if err != nil {
		return err
	}
	conditions, err := handlers.NewConditions(handlers.ConditionsConfig{Client: client, FieldManager: name + "/status"})
	if err != nil {
		return err
	}

	// reconcile compares the desired state with the actual state, regardless of what triggered the call.
	reconcile := func(
		ctx context.Context, id dynamiccontroller.ObjectIdentifiers, t *team, object *unstructured.Unstructured,
	) error {
		if !mapper.HasSynced() {
			return dynamiccontroller.RequeueAfter(100 * time.Millisecond) // happens only briefly after startup
		}
		result, err := reconciler.Reconcile(ctx, id, object, children.Desired{Stages: t.children(id.Name())})
		if object.GetDeletionTimestamp() != nil {
			return err // the members are deleted first, and then Kubernetes deletes the motto
		}
		ready := readiness(result, err)
		changed, statusErr := conditions.Set(ctx, id, object, ready)
		if changed {
			fmt.Printf("%s: %s: %s\n", id.NamespacedKey, ready.Reason, ready.Message)
		}
		return cmp.Or(err, statusErr)
	}
	gone := func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		fmt.Println(id.NamespacedKey, "is gone")
		return reconciler.Forget(ctx, id)
	}
	// To detect drift, the reconciler reads the children's managedFields, which show the fields that another manager has
	// taken over.
	whole, managed := dynamiccontroller.WithCache(dynamiccontroller.CacheFull), dynamiccontroller.WithManagedFields()
	handler := handlers.Object(handlers.Cached(engine.Lister), handlers.Typed(reconcile), gone)
	err = engine.StartServingGVK(ctx, teams, handler,
		managed, dynamiccontroller.Owns(configMaps, whole, managed), dynamiccontroller.Owns(serviceAccounts, whole, managed))
	if err != nil {
		return err
	}
	ended := make(chan error)
	go func() { ended <- mapper.Run(ctx) }()
	go func() { ended <- engine.Run(ctx) }()
	return errors.Join(<-ended, <-ended)
}

// readiness returns the Ready condition for the result of a reconcile.
func readiness(result children.Result, err error) metav1.Condition {
	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse}
	for _, child := range result.Children {
		if !child.IsApplied() {
			ready.Reason = string(child.Outcome)
			ready.Message = fmt.Sprintf("%s %s: %s", child.Kind.Kind, child.Name(), child.Message)
			return ready
		}
	}
	switch {
	case result.Failure != nil:
		ready.Reason, ready.Message = "Failed", result.Failure.Error()
	case len(result.Pending) > 0:
		ready.Reason, ready.Message = "Waiting", "waiting for a child to be deleted"
	case err != nil:
		ready.Reason, ready.Message = "Failed", err.Error()
	default:
		ready.Status, ready.Reason = metav1.ConditionTrue, "Applied"
		ready.Message = fmt.Sprintf("%d children applied", len(result.Children))
	}
	return ready
}
