package handlers_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

var (
	widgets    = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	first      = dynamiccontroller.ObjectIdentifiers{GVR: widgets, NamespacedKey: "default/first"}
)

func newWidget() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"namespace": "default", "name": "first", "uid": "1234", "resourceVersion": "1", "generation": int64(1)},
		"spec":     map[string]any{"size": "big"},
	}}
}

func newConfigMap(name string, data map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": name, "labels": map[string]any{"app": "first"}},
		"data":     data,
	}}
}

// All parts as one handler, which dynamiccontroller.StartServingGVK takes.
func Example() {
	client := handlers.NewFakeServer(newWidget())
	children, err := handlers.NewChildren(handlers.ChildrenConfig{Client: client, Mapper: handlers.NewMapper(), Name: "platform.example.com"})
	if err != nil {
		panic(err)
	}
	conditions := handlers.Conditions{Client: client, FieldManager: "platform.example.com/status"}

	deleteBucket := func(context.Context, dynamiccontroller.ObjectIdentifiers, *unstructured.Unstructured) error {
		fmt.Println("delete the bucket")
		return nil
	}
	reconcile := func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, widget *unstructured.Unstructured) error {
		size, _, _ := unstructured.NestedString(widget.Object, "spec", "size")
		_, err := children.Reconcile(ctx, id, widget, handlers.Desired{
			Stages: [][]*unstructured.Unstructured{{newConfigMap("settings", map[string]any{"size": size})}},
		})
		ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "AllApplied"}
		if err != nil {
			ready = metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "NotApplied", Message: err.Error()}
		}
		_, statusErr := conditions.Set(ctx, id, widget, ready)
		return cmp.Or(err, statusErr)
	}
	forget := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		children.Forget(id)
		return nil
	}
	handler := handlers.Chain(
		handlers.Logging(),
		handlers.Concurrency(4, dynamiccontroller.ObjectIdentifiers.Namespace),
	)(handlers.Object(handlers.Live(client), handlers.Finalizer(client, "platform.example.com/bucket", deleteBucket, reconcile), forget))

	ctx := context.Background()
	fmt.Println(handler(ctx, first), handler(ctx, first))
	widget, _ := handlers.Live(client).Get(ctx, widgets, "default", "first")
	fmt.Println(widget.GetFinalizers(), widget.GetAnnotations())
	settings, _ := handlers.Live(client).Get(ctx, configMaps, "default", "settings")
	fmt.Println(settings.Object["data"], metav1.IsControlledBy(settings, widget))
	// Output:
	// <nil> <nil>
	// [platform.example.com/bucket] map[platform.example.com/inventory:ConfigMap=v1/configmaps]
	// map[size:big] true
}

func ExampleChain() {
	handler := handlers.Chain(
		handlers.Logging(),
		handlers.Timeout(time.Minute),
	)(func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		fmt.Println("reconcile", id)
		return nil
	})
	fmt.Println(handler(context.Background(), first))
	// Output:
	// reconcile widgets.v1.example.com default/first
	// <nil>
}

func ExampleTimeout() {
	handler := handlers.Timeout(time.Millisecond)(func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
		<-ctx.Done() // a request that hangs
		return ctx.Err()
	})
	err := handler(context.Background(), first)
	fmt.Println(errors.Is(err, handlers.ErrTimeout))
	// Output: true
}

func ExampleConcurrency() {
	oneANamespace := handlers.Concurrency(1, dynamiccontroller.ObjectIdentifiers.Namespace)
	second := dynamiccontroller.ObjectIdentifiers{GVR: widgets, NamespacedKey: "default/second"}
	elsewhere := dynamiccontroller.ObjectIdentifiers{GVR: widgets, NamespacedKey: "elsewhere/third"}

	inner := oneANamespace(func(context.Context, dynamiccontroller.ObjectIdentifiers) error { return nil })
	outer := oneANamespace(func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
		fmt.Println("in the same namespace:", inner(ctx, second) == nil)
		fmt.Println("in another namespace:", inner(ctx, elsewhere) == nil)
		return nil
	})
	_ = outer(context.Background(), first)
	// Output:
	// in the same namespace: false
	// in another namespace: true
}

func ExampleObject() {
	client := handlers.NewFakeServer(newWidget())
	handler := handlers.Object(handlers.Live(client),
		func(_ context.Context, _ dynamiccontroller.ObjectIdentifiers, widget *unstructured.Unstructured) error {
			fmt.Println("there is", widget.GetName())
			return nil
		},
		func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			fmt.Println("there is no", id.Name())
			return nil
		})
	_ = handler(context.Background(), first)
	_ = handler(context.Background(), dynamiccontroller.ObjectIdentifiers{GVR: widgets, NamespacedKey: "default/second"})
	// Output:
	// there is first
	// there is no second
}

func ExampleTyped() {
	type widget struct {
		Spec struct {
			Size string `json:"size"`
		} `json:"spec"`
	}
	handler := handlers.Object(handlers.Live(handlers.NewFakeServer(newWidget())), handlers.Typed(
		func(_ context.Context, _ dynamiccontroller.ObjectIdentifiers, w *widget, _ *unstructured.Unstructured) error {
			fmt.Println(w.Spec.Size)
			return nil
		}), nil)
	_ = handler(context.Background(), first)
	// Output: big
}

func ExampleFresh() {
	lags := handlers.Live(handlers.NewFakeServer(newWidget())) // a cache that still shows the widget
	client := handlers.NewFakeServer()                         // which the leader before let go
	handler := handlers.Object(handlers.NewFresh(client, lags),
		func(context.Context, dynamiccontroller.ObjectIdentifiers, *unstructured.Unstructured) error {
			fmt.Println("make the bucket")
			return nil
		},
		func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			fmt.Println("nothing to do for", id.Name())
			return nil
		})
	fmt.Println(handler(context.Background(), first))
	// Output:
	// nothing to do for first
	// <nil>
}

func ExampleFinalizer() {
	client := handlers.NewFakeServer(newWidget())
	handler := handlers.Finalizer(client, "platform.example.com/bucket",
		func(context.Context, dynamiccontroller.ObjectIdentifiers, *unstructured.Unstructured) error {
			fmt.Println("delete the bucket, if there is one")
			return nil
		},
		func(_ context.Context, _ dynamiccontroller.ObjectIdentifiers, widget *unstructured.Unstructured) error {
			fmt.Println("make the bucket, held by", widget.GetFinalizers())
			return nil
		})
	ctx := context.Background()
	_ = handler(ctx, first, newWidget())

	deleted, _ := handlers.Live(client).Get(ctx, widgets, "default", "first")
	deleted.SetDeletionTimestamp(&metav1.Time{Time: time.Now()})
	_ = handler(ctx, first, deleted)
	now, _ := handlers.Live(client).Get(ctx, widgets, "default", "first")
	fmt.Println("held by", now.GetFinalizers())
	// Output:
	// make the bucket, held by [platform.example.com/bucket]
	// delete the bucket, if there is one
	// held by []
}

func ExampleChildren() {
	client := handlers.NewFakeServer(newWidget())
	children, err := handlers.NewChildren(handlers.ChildrenConfig{Client: client, Mapper: handlers.NewMapper(), Name: "platform.example.com"})
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	wants := func(names ...string) {
		var stage []*unstructured.Unstructured
		for _, name := range names {
			stage = append(stage, newConfigMap(name, map[string]any{"of": "first"}))
		}
		widget, _ := handlers.Live(client).Get(ctx, widgets, "default", "first")
		_, err := children.Reconcile(ctx, first, widget, handlers.Desired{Stages: [][]*unstructured.Unstructured{stage}})
		there, _ := handlers.Live(client).List(ctx, configMaps, "default", labels.Everything())
		var all []string
		for _, child := range there {
			all = append(all, child.GetName())
		}
		fmt.Println(strings.Join(all, " "), err)
	}
	wants("settings", "users")
	wants("settings", "users")
	wants("settings")
	// Output:
	// settings users <nil>
	// settings users <nil>
	// settings <nil>
}

func ExampleClaim() {
	client := handlers.NewFakeServer(newWidget())
	ctx := context.Background()
	orphan := newConfigMap("orphan", nil)
	orphan.SetNamespace("default")
	if _, err := client.Resource(configMaps).Namespace("default").Create(ctx, orphan, metav1.CreateOptions{}); err != nil {
		panic(err)
	}
	claim := handlers.Claim{Client: client, FieldManager: "platform.example.com", Selector: labels.SelectorFromSet(labels.Set{"app": "first"})}
	candidates, _ := handlers.Live(client).List(ctx, configMaps, "default", labels.Everything())
	claimed, err := claim.Objects(ctx, first, newWidget(), configMaps, candidates)
	fmt.Println(len(claimed), metav1.IsControlledBy(claimed[0], newWidget()), err)
	// Output: 1 true <nil>
}

func ExampleExpectations() {
	client := handlers.NewFakeServer()
	late := handlers.NewFakeServer() // a cache that shows nothing yet
	expected := handlers.NewExpectations(client, handlers.Live(late), 0)
	ctx := context.Background()

	keepOne := func() error {
		if err := expected.Await(ctx, first); err != nil {
			return err
		}
		there, err := handlers.Live(late).List(ctx, configMaps, "default", labels.Everything())
		if err != nil || len(there) > 0 {
			return err
		}
		child := newConfigMap("", nil)
		child.SetNamespace("default")
		child.SetGenerateName("child-")
		_, err = expected.Create(ctx, first, configMaps, child)
		return err
	}
	fmt.Println(keepOne())
	fmt.Println(keepOne())
	made, _ := handlers.Live(client).List(ctx, configMaps, "default", labels.Everything())
	fmt.Println("made:", len(made))
	// Output:
	// <nil>
	// requeue after 1s
	// made: 1
}

func ExampleConditions() {
	client := handlers.NewFakeServer(newWidget())
	conditions := handlers.Conditions{Client: client, FieldManager: "platform.example.com/status"}
	ctx := context.Background()
	set := func(status metav1.ConditionStatus, reason string) {
		widget, _ := handlers.Live(client).Get(ctx, widgets, "default", "first")
		changed, err := conditions.Set(ctx, first, widget, metav1.Condition{Type: "Ready", Status: status, Reason: reason})
		fmt.Println(changed, err)
	}
	set(metav1.ConditionFalse, "Starting")
	set(metav1.ConditionFalse, "Starting")
	set(metav1.ConditionTrue, "Started")
	// Output:
	// true <nil>
	// false <nil>
	// true <nil>
}
