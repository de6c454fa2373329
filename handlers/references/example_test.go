package references_test

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/references"
)

var (
	widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
)

// A widget reads the Secret "credentials" in its namespace. When the Secret is created, the widget is reconciled.
func Example() {
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{widgets: "WidgetList", secrets: "SecretList"},
		newObject("example.com/v1", "Widget", "first"))
	config := dynamiccontroller.Config{Workers: 1}
	controller := dynamiccontroller.NewDynamicController(logr.Discard(), config, client)
	whole := dynamiccontroller.WithCache(dynamiccontroller.CacheFull) // the fake client cannot watch only metadata
	tracker, err := references.New(references.Config{
		Controller: controller,
		WatchOptions: func(schema.GroupVersionResource) []dynamiccontroller.WatchesOption {
			return []dynamiccontroller.WatchesOption{whole}
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	found := make(chan bool, 10)
	reconcile := func(
		ctx context.Context, id dynamiccontroller.ObjectIdentifiers, _ *unstructured.Unstructured,
	) error {
		refs := tracker.Begin(ctx, id)
		defer refs.Abort() // has no effect after Commit
		reader := refs.Reader(handlers.Live(client))
		_, err := reader.Get(ctx, secrets, id.Namespace(), "credentials")
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		found <- err == nil
		refs.Commit()
		return nil
	}
	gone := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		tracker.Forget(id)
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	handler := handlers.Object(handlers.Cached(controller.Lister), reconcile, gone)
	if err := controller.StartServingGVK(ctx, widgets, handler, whole); err != nil {
		fmt.Println(err)
	}
	ended := make(chan error)
	go func() { ended <- controller.Run(ctx) }()

	fmt.Println("found:", <-found)
	secret := newObject("v1", "Secret", "credentials")
	_, err = client.Resource(secrets).Namespace("default").Create(ctx, secret, metav1.CreateOptions{})
	if err != nil {
		fmt.Println(err)
	}
	for !<-found {
		continue // the reconcile after the sync of the watch can precede the creation
	}
	fmt.Println("found: true")
	cancel()
	fmt.Println(<-ended)
	// Output:
	// found: false
	// found: true
	// <nil>
}

// The numbers and the hooks of a tracker can be published as metrics.
func ExampleTracker_Stats() {
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{secrets: "SecretList"})
	controller := dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{}, client)
	whole := dynamiccontroller.WithCache(dynamiccontroller.CacheFull) // the fake client cannot watch only metadata
	tracker, err := references.New(references.Config{
		Controller: controller,
		WatchOptions: func(schema.GroupVersionResource) []dynamiccontroller.WatchesOption {
			return []dynamiccontroller.WatchesOption{whole}
		},
		Hooks: references.Hooks{
			WatchStarted: func(gvr schema.GroupVersionResource) { fmt.Println("watching", gvr.Resource) },
			WatchStopped: func(gvr schema.GroupVersionResource) { fmt.Println("no longer watching", gvr.Resource) },
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	id := dynamiccontroller.ObjectIdentifiers{GVR: widgets, NamespacedKey: "default/first"}
	refs := tracker.Begin(context.Background(), id)
	for _, name := range []string{"credentials", "certificate"} {
		if err := refs.Object(secrets, id.Namespace(), name); err != nil {
			fmt.Println(err)
		}
	}
	refs.Commit()
	stats := tracker.Stats()
	fmt.Println(stats.References, "references of", stats.Referrers, "object")
	tracker.Forget(id)
	fmt.Println(tracker.Stats().References, "references")
	// Output:
	// watching secrets
	// 2 references of 1 object
	// no longer watching secrets
	// 0 references
}

func newObject(apiVersion, kind, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(apiVersion)
	object.SetKind(kind)
	object.SetNamespace("default")
	object.SetName(name)
	object.SetResourceVersion("1")
	return object
}
