// Generated-names keeps as many ConfigMaps as the size of each Pool. The ConfigMaps have generated names, so the
// program finds them by their label.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

const (
	name      = "generated-names.example.com" // used for the field manager and the label
	poolLabel = name + "/pool"                // has the name of the Pool
)

var (
	pools      = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "pools"}
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
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
	client, clientErr := dynamic.NewForConfig(cfg)
	engine, engineErr := dynamiccontroller.NewForConfig(klog.Background(), dynamiccontroller.Config{}, cfg)
	if err := errors.Join(clientErr, engineErr); err != nil {
		return err
	}
	// Owns would not find a ConfigMap that nobody owns and that a Pool adopts. The label names the Pool in both cases.
	watch := dynamiccontroller.Watches(configMaps, poolOf, dynamiccontroller.WithCache(dynamiccontroller.CacheFull))
	cached := handlers.Cached(func(gvr schema.GroupVersionResource) (dynamiccontroller.SecondaryLister, error) {
		return engine.SecondaryLister(pools, watch.Key())
	})
	expectations, err := handlers.NewExpectations(handlers.ExpectationsConfig{Client: client, Cache: cached})
	if err != nil {
		return err
	}
	p := platform{client: client, cached: cached, expectations: expectations}
	gone := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		expectations.Forget(id)
		fmt.Println(id.NamespacedKey, "is gone")
		return nil
	}
	// A new leader counts the children for the size that the Pool has now.
	handler := handlers.Object(handlers.Fresh(client, handlers.Cached(engine.Lister)), p.reconcile, gone)
	if err := engine.StartServingGVK(ctx, pools, handler, watch); err != nil {
		return err
	}
	return engine.Run(ctx)
}

// poolOf returns the key of the Pool in the label of a ConfigMap.
func poolOf(_ context.Context, configMap dynamiccontroller.Object) []string {
	pool := configMap.GetLabels()[poolLabel]
	if pool == "" {
		return nil
	}
	return []string{configMap.GetNamespace() + "/" + pool}
}

type platform struct {
	client       dynamic.Interface
	cached       handlers.Reader // reads ConfigMaps
	expectations *handlers.Expectations
}

// reconcile creates missing ConfigMaps and deletes excess ones.
func (p platform) reconcile(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, pool *unstructured.Unstructured,
) error {
	if pool.GetDeletionTimestamp() != nil {
		return nil // Kubernetes deletes the ConfigMaps, which have an owner reference
	}
	// The cache can lag behind the writes of the last call. A handler that counted the ConfigMaps in such a cache would
	// create too many.
	selector := labels.SelectorFromSet(labels.Set{poolLabel: id.Name()})
	if err := p.expectations.CatchUp(ctx, id, configMaps, id.Namespace(), selector); err != nil {
		return err
	}
	if err := p.expectations.Await(ctx, id); err != nil {
		return err
	}
	// Claim adopts ConfigMaps that have the label and no owner, and releases those that have lost the label. Therefore,
	// all ConfigMaps in the namespace are candidates.
	candidates, err := p.cached.List(ctx, configMaps, id.Namespace(), labels.Everything())
	if err != nil {
		return err
	}
	claimer, err := handlers.NewClaimer(handlers.ClaimerConfig{Client: p.client, FieldManager: name, Selector: selector})
	if err != nil {
		return err
	}
	owned, err := claimer.Claim(ctx, id, pool, configMaps, candidates)
	if err != nil {
		return err
	}
	owned = slices.DeleteFunc(owned, func(c *unstructured.Unstructured) bool { return c.GetDeletionTimestamp() != nil })

	size, _, _ := unstructured.NestedInt64(pool.Object, "spec", "size")
	for range int(size) - len(owned) {
		if _, err := p.expectations.Create(ctx, id, configMaps, newMember(id, pool)); err != nil {
			return err
		}
	}
	for _, excess := range owned[min(int(size), len(owned)):] {
		if err := p.expectations.Delete(ctx, id, configMaps, excess); err != nil {
			return err
		}
	}
	fmt.Printf("%s: %d of %d ConfigMaps existed\n", id.NamespacedKey, len(owned), size)
	return nil
}

func newMember(id dynamiccontroller.ObjectIdentifiers, pool *unstructured.Unstructured) *unstructured.Unstructured {
	member := &unstructured.Unstructured{}
	member.SetAPIVersion("v1")
	member.SetKind("ConfigMap")
	member.SetNamespace(id.Namespace())
	member.SetGenerateName(id.Name() + "-")
	member.SetLabels(map[string]string{poolLabel: id.Name()})
	member.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(pool, pool.GroupVersionKind())})
	return member
}
