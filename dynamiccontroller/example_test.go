package dynamiccontroller_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
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
	handler := func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		lister, err := controller.Lister(id.GVR)
		if err != nil {
			return err
		}
		widget, err := lister.ByNamespace(id.Namespace()).Get(id.Name())
		if apierrors.IsNotFound(err) {
			return nil // The widget was deleted, and there is nothing to clean up.
		}
		if err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Reconciling", "widget", widget)
		return nil
	}
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	if err := controller.StartServingGVK(ctx, widgets, handler); err != nil {
		panic(err)
	}
	if err := controller.Run(ctx); err != nil {
		panic(err)
	}
}

// The controller starts and stops serving a type while it is running.
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

// An event for a child reconciles its owner. The handler reads the children of the owner from the cache.
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
	// With NewForConfig, WithCache can be omitted. NewDynamicController needs a metadata client for the default mode.
	owned := dynamiccontroller.Owns(children, dynamiccontroller.WithCache(dynamiccontroller.CacheFull))

	controller := dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{}, client)
	called := make(chan string)
	handler := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		lister, err := controller.SecondaryLister(parents, owned.Key())
		if err != nil {
			return err
		}
		found, err := lister.OwnedBy(types.UID("uid of " + id.Name()))
		called <- fmt.Sprintf("children of %s: %d", id.Name(), len(found))
		return err
	}
	if err := controller.StartServingGVK(context.Background(), parents, handler, owned); err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- controller.Run(ctx) }()
	fmt.Println(<-called)
	child := object("Child", "ben", metav1.OwnerReference{
		APIVersion: "example.com/v1", Kind: "Parent", Name: "anna", UID: "uid of anna", Controller: ptr.To(true),
	})
	if _, err := client.Resource(children).Create(ctx, child, metav1.CreateOptions{}); err != nil {
		panic(err)
	}
	fmt.Println(<-called)
	cancel()
	fmt.Println(<-ended)
	// Output:
	// children of anna: 0
	// children of anna: 1
	// <nil>
}

// A change to a class reconciles all widgets of that class. The MapFunc finds them with the lister of the served type.
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
		object("Widget", "one", map[string]string{"class": "large"}),
		object("Widget", "two", map[string]string{"class": "small"}))
	controller := dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{Workers: 1}, client)

	widgetsOf := func(_ context.Context, class dynamiccontroller.Object) (keys []string) {
		lister, err := controller.Lister(widgets)
		if err != nil {
			return nil
		}
		found, err := lister.List(labels.SelectorFromSet(labels.Set{"class": class.GetName()}))
		if err != nil {
			return nil // The widgets have not synced. All of them will be reconciled after the sync.
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

// An index finds the objects that refer to another object.
func ExampleWithIndex() {
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	widget := func(name, class string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget",
			"metadata": map[string]any{"name": name}, "spec": map[string]any{"class": class},
		}}
	}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{widgets: "WidgetList"}, widget("one", "large"), widget("two", "small"))
	controller := dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{}, client)
	byClass := dynamiccontroller.WithIndex("class", func(o dynamiccontroller.Object) []string {
		class, _, _ := unstructured.NestedString(o.Object().(*unstructured.Unstructured).Object, "spec", "class")
		return []string{class}
	})
	handler := func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil }
	if err := controller.StartServingGVK(context.Background(), widgets, handler, byClass); err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- controller.Run(ctx) }()
	if err := controller.WaitForGVRSync(ctx, widgets); err != nil {
		panic(err)
	}
	lister, err := controller.Lister(widgets)
	if err != nil {
		panic(err)
	}
	found, err := lister.ByIndex("class", "large")
	for _, widget := range found {
		fmt.Println(widget.GetName(), err)
	}
	_, err = lister.ByIndex("color", "green")
	fmt.Println("no such index:", errors.Is(err, dynamiccontroller.ErrNoIndex))
	cancel()
	fmt.Println(<-ended)
	// Output:
	// one <nil>
	// no such index: true
	// <nil>
}

// A handler that reports the result of a reconcile in a status can distinguish a requeue from a failure.
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

// A typed lister decodes objects directly into a Go type.
func ExampleNewTypedLister() {
	type Widget struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Color string `json:"color"`
		} `json:"spec"`
	}
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{widgets: "WidgetList"},
		&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget",
			"metadata": map[string]any{"namespace": "default", "name": "first"},
			"spec":     map[string]any{"color": "green"},
		}})
	controller := dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{}, client)

	ctx, stop := context.WithCancel(context.Background())
	err := controller.StartServingGVK(ctx, widgets, func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		defer stop()
		lister, err := controller.Lister(id.GVR)
		if err != nil {
			return err
		}
		typed, err := dynamiccontroller.NewTypedLister[Widget](lister)
		if err != nil {
			return err
		}
		widget, err := typed.Get(id.NamespacedKey)
		if err != nil {
			return err
		}
		fmt.Println(widget.Name, "is", widget.Spec.Color)
		return nil
	})
	if err != nil {
		panic(err)
	}
	if err := controller.Run(ctx); err != nil {
		panic(err)
	}
	// Output: first is green
}

// A function that takes a typed lister can be tested with any lister.
func ExampleNewTypedLister_test() {
	countKeys := func(configMaps dynamiccontroller.TypedLister[corev1.ConfigMap], key string) (int, error) {
		configMap, err := configMaps.Get(key)
		if err != nil {
			return 0, err
		}
		return len(configMap.Data), nil
	}

	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	inMemory := cache.NewGenericLister(indexer, schema.GroupResource{Resource: "configmaps"})
	lister, err := dynamiccontroller.NewTypedLister[corev1.ConfigMap](inMemory)
	if err != nil {
		panic(err)
	}
	if err := indexer.Add(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "first"}, Data: map[string]string{"color": "green"},
	}); err != nil {
		panic(err)
	}
	fmt.Println(countKeys(lister, "default/first"))
	fmt.Println(countKeys(lister, "default/second"))
	// Output:
	// 1 <nil>
	// 0 configmaps "default/second" not found
}

// A program whose objects have Go types can decode cached objects directly, also into values that exist already.
func ExampleDecodeInto() {
	type Widget struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Color string `json:"color"`
		} `json:"spec"`
	}
	object := func(name, color string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget",
			"metadata": map[string]any{"namespace": "default", "name": name},
			"spec":     map[string]any{"color": color},
		}}
	}
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{widgets: "WidgetList"}, object("first", "green"), object("second", "red"))
	controller := dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{}, client)

	ctx, stop := context.WithCancel(context.Background())
	handler := func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil }
	if err := controller.StartServingGVK(ctx, widgets, handler); err != nil {
		panic(err)
	}
	ended := make(chan error)
	go func() { ended <- controller.Run(ctx) }()
	if err := controller.WaitForGVRSync(ctx, widgets); err != nil {
		panic(err)
	}
	lister, err := controller.Lister(widgets)
	if err != nil {
		panic(err)
	}
	var widget Widget
	if err := dynamiccontroller.GetInto(lister, "default/second", &widget); err != nil {
		panic(err)
	}
	fmt.Println(widget.Name, "is", widget.Spec.Color)
	all, err := lister.Objects("default", nil)
	if err != nil {
		panic(err)
	}
	for _, object := range all { // in no particular order
		if object.GetName() == "first" { // so that only this object is decoded
			if err := dynamiccontroller.DecodeInto(object, &widget); err != nil {
				panic(err)
			}
			fmt.Println(widget.Name, "is", widget.Spec.Color)
		}
	}
	stop()
	fmt.Println(<-ended)
	// Output:
	// second is red
	// first is green
	// <nil>
}

// A host publishes the errors of all watches, as with cache.WatchErrorHandler.
func ExampleWithWatchErrors() {
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{widgets: "WidgetList"})
	client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(widgets.GroupResource(), "", errors.New("no RBAC policy matched"))
	})
	reported := make(chan dynamiccontroller.WatchError, 10)
	controller := dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{}, client,
		dynamiccontroller.WithWatchErrors(func(e dynamiccontroller.WatchError) { reported <- e }))

	ctx, stop := context.WithCancel(context.Background())
	handler := func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil }
	if err := controller.StartServingGVK(ctx, widgets, handler); err != nil {
		panic(err)
	}
	ended := make(chan error)
	go func() { ended <- controller.Run(ctx) }()
	e := <-reported
	fmt.Println(e.GVR.Resource, e.State, apierrors.IsForbidden(e.Err))
	stop()
	fmt.Println(<-ended)
	// Output:
	// widgets Forbidden true
	// <nil>
}

// A part of a program receives events without reconciling anything.
func ExampleDynamicController_AddEventHandler() {
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	widget := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "a", "uid": "1"},
	}}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{widgets: "WidgetList"}, widget)
	controller := dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{}, client)
	events, err := controller.AddEventHandler(widgets, dynamiccontroller.EventHandler{
		OnAdd: func(_ context.Context, object dynamiccontroller.Object, isInInitialList bool) {
			fmt.Println("add", object.GetName(), isInInitialList)
		},
	}, dynamiccontroller.WithCache(dynamiccontroller.CacheFull))
	if err != nil {
		panic(err)
	}

	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- controller.RunWatches(ctx) }()
	fmt.Println(events.WaitForSync(ctx))
	fmt.Println(events.Remove(ctx))
	stop()
	fmt.Println(<-ended)
	// Output:
	// add a true
	// <nil>
	// <nil>
	// <nil>
}

// A host adds an index to a watch that is running.
func ExampleAddIndex() {
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{widgets: "WidgetList"},
		&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget",
			"metadata": map[string]any{"name": "one", "labels": map[string]any{"class": "large"}},
		}})
	controller := dynamiccontroller.NewDynamicController(logr.Discard(), dynamiccontroller.Config{}, client)
	ctx, stop := context.WithCancel(context.Background())
	handler := func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil }
	if err := controller.StartServingGVK(ctx, widgets, handler); err != nil {
		panic(err)
	}
	ended := make(chan error)
	go func() { ended <- controller.Run(ctx) }()
	if err := controller.WaitForGVRSync(ctx, widgets); err != nil {
		panic(err)
	}
	lister, err := controller.Lister(widgets)
	if err != nil {
		panic(err)
	}
	if err := dynamiccontroller.AddIndex(ctx, lister, "class", func(o dynamiccontroller.Object) []string {
		return []string{o.GetLabels()["class"]}
	}); err != nil {
		panic(err)
	}
	found, err := lister.ByIndex("class", "large")
	for _, widget := range found {
		fmt.Println(widget.GetName(), err)
	}
	stop()
	fmt.Println(<-ended)
	// Output:
	// one <nil>
	// <nil>
}

// The cache keeps Secrets without their data. Fields that the Go type does not have are kept.
func ExampleTypedTransform() {
	transform := dynamiccontroller.TypedTransform(func(secret *corev1.Secret) error {
		secret.Data = nil
		return nil
	})
	option := dynamiccontroller.WithTransform(transform) // for StartServingGVK, Owns or Watches
	_ = option

	stored, err := transform(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "first"},
		"data": map[string]any{"password": "MTIzNDU2"}, "newField": "kept",
	}})
	fmt.Println(stored.(*unstructured.Unstructured).Object, err)
	// Output:
	// map[apiVersion:v1 kind:Secret metadata:map[name:first] newField:kept] <nil>
}
