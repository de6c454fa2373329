package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A minimal controller for a real cluster.
func ExampleNewForConfig() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		panic(err)
	}
	controller, err := dynamiccontroller.NewForConfig(klog.Background(), dynamiccontroller.Config{}, cfg)
	if err != nil {
		panic(err)
	}
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	err = controller.StartServingGVK(ctx, widgets, func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		lister, err := controller.Lister(id.GVR)
		if err != nil {
			return err
		}
		widget, err := lister.ByNamespace(id.Namespace()).Get(id.Name())
		if apierrors.IsNotFound(err) {
			return nil // deleted, and there is nothing to clean up
		}
		if err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Reconciling", "widget", widget)
		return nil
	})
	if err != nil {
		panic(err)
	}
	if err := controller.Run(ctx); err != nil {
		panic(err)
	}
}

// A type is served and stopped while the controller is running.
func Example() {
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{widgets: "WidgetList"},
		&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget",
			"metadata": map[string]any{"namespace": "default", "name": "first"},
		}})
	controller := dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{}, client)

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- controller.Run(ctx) }()

	reconciled := make(chan dynamiccontroller.ObjectIdentifiers)
	handler := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		reconciled <- id
		return nil
	}
	if err := controller.StartServingGVK(ctx, widgets, handler); err != nil {
		fmt.Println(err)
	}
	fmt.Println("reconciled", <-reconciled)

	if err := controller.StopServiceGVK(ctx, widgets); err != nil {
		fmt.Println(err)
	}
	fmt.Println("types served:", len(controller.Status()))
	cancel()
	fmt.Println("ended with", <-ended)
	// Output:
	// reconciled widgets.v1.example.com default/first
	// types served: 0
	// ended with <nil>
}

// An event of a child reconciles its owner. The handler reads the children of the owner from the cache.
func ExampleOwns() {
	parents := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "parents"}
	children := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "children"}
	object := func(kind, name string, owners ...metav1.OwnerReference) *unstructured.Unstructured {
		o := &unstructured.Unstructured{}
		o.SetAPIVersion("example.com/v1")
		o.SetKind(kind)
		o.SetName(name)
		o.SetUID(types.UID("uid of " + name))
		o.SetOwnerReferences(owners)
		return o
	}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{parents: "ParentList", children: "ChildList"}, object("Parent", "anna"))
	// NewForConfig creates a metadata client, so that the option can be omitted.
	owned := dynamiccontroller.Owns(children, dynamiccontroller.WithCache(dynamiccontroller.CacheFull))

	controller := dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{}, client)
	called := make(chan string)
	err := controller.StartServingGVK(context.Background(), parents, func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		lister, err := controller.SecondaryLister(parents, owned.Key())
		if err != nil {
			return err
		}
		found, err := lister.OwnedBy(types.UID("uid of " + id.Name()))
		called <- fmt.Sprintf("%s has %d children", id.Name(), len(found))
		return err
	}, owned)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- controller.Run(ctx) }()
	fmt.Println(<-called)
	reference := metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Parent", Name: "anna", UID: "uid of anna", Controller: ptr.To(true)}
	if _, err := client.Resource(children).Create(ctx, object("Child", "ben", reference), metav1.CreateOptions{}); err != nil {
		panic(err)
	}
	fmt.Println(<-called)
	cancel()
	fmt.Println(<-ended)
	// Output:
	// anna has 0 children
	// anna has 1 children
	// <nil>
}

// A change of a class reconciles all widgets of the class. The MapFunc finds them with the lister of the served type.
func ExampleWatches() {
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	classes := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "classes"}
	object := func(kind, name string, class map[string]string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{}
		o.SetAPIVersion("example.com/v1")
		o.SetKind(kind)
		o.SetName(name)
		o.SetLabels(class)
		return o
	}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{widgets: "WidgetList", classes: "ClassList"},
		object("Widget", "one", map[string]string{"class": "large"}), object("Widget", "two", map[string]string{"class": "small"}))
	controller := dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{Workers: 1}, client)

	widgetsOf := func(_ context.Context, class dynamiccontroller.Object) (keys []string) {
		lister, err := controller.Lister(widgets)
		if err != nil {
			return nil
		}
		found, err := lister.List(labels.SelectorFromSet(labels.Set{"class": class.GetName()}))
		if err != nil {
			return nil // the widgets have not synced: all of them are reconciled when they have
		}
		for _, widget := range found {
			keys = append(keys, widget.(*unstructured.Unstructured).GetName())
		}
		return keys
	}
	reconciled := make(chan string)
	handler := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		reconciled <- id.Name()
		return nil
	}
	err := controller.StartServingGVK(context.Background(), widgets, handler,
		dynamiccontroller.Watches(classes, widgetsOf, dynamiccontroller.WithCache(dynamiccontroller.CacheFull)))
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- controller.Run(ctx) }()
	first, second := <-reconciled, <-reconciled
	fmt.Println("initial list:", min(first, second), max(first, second))
	if _, err := client.Resource(classes).Create(ctx, object("Class", "large", nil), metav1.CreateOptions{}); err != nil {
		panic(err)
	}
	fmt.Println("new class:", <-reconciled)
	cancel()
	fmt.Println(<-ended)
	// Output:
	// initial list: one two
	// new class: one
	// <nil>
}

// A handler that writes the result of a reconcile into a status can distinguish a requeue from a failure.
func ExampleRequeueDelay() {
	for _, err := range []error{
		fmt.Errorf("the disk is being created: %w", dynamiccontroller.RequeueAfter(time.Second)),
		errors.New("the disk cannot be created"),
	} {
		after, requeue := dynamiccontroller.RequeueDelay(err)
		fmt.Println(requeue, after)
	}
	// Output:
	// true 1s
	// false 0s
}
