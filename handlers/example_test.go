package handlers_test

import (
	"cmp"
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/children"
	"github.com/dynamic-controller/engine/handlers/internal/fakeserver"
)

// The examples reconcile the widget default/first on a fake API server.
var (
	widgets    = fakeserver.Widgets
	configMaps = fakeserver.ConfigMaps
	first      = fakeserver.First
)

func newWidget() *unstructured.Unstructured { return fakeserver.NewWidget() }

// This handler combines a finalizer, children, conditions and two middlewares. Its type is dynamiccontroller.Handler,
// as required by StartServingGVK.
func Example() {
	client := fakeserver.New(newWidget())
	reconciler, err := children.New(children.Config{
		Client: client, Mapper: fakeserver.NewMapper(), Name: "platform.example.com",
		Kinds: []children.Kind{{GroupKind: schema.GroupKind{Kind: "ConfigMap"}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	conditions, err := handlers.NewConditions(handlers.ConditionsConfig{
		Client: client, FieldManager: "platform.example.com/status",
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	reconcile := func(
		ctx context.Context, id dynamiccontroller.ObjectIdentifiers, widget *unstructured.Unstructured,
	) error {
		size, _, _ := unstructured.NestedString(widget.Object, "spec", "size")
		_, err := reconciler.Reconcile(ctx, id, widget, children.Desired{
			Stages: [][]children.Child{children.Stage(fakeserver.NewConfigMap("settings", size))},
		})
		ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Applied"}
		if err != nil {
			ready = metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Failed", Message: err.Error()}
		}
		_, statusErr := conditions.Set(ctx, id, widget, ready)
		return cmp.Or(err, statusErr)
	}
	deleteBucket := func(context.Context, dynamiccontroller.ObjectIdentifiers, *unstructured.Unstructured) error {
		return nil // delete the bucket of the widget
	}
	handler := handlers.Logging()(handlers.Object(
		handlers.Live(client),
		handlers.Finalizer(handlers.FinalizerConfig{
			Client: client, Name: "platform.example.com/bucket", Reconcile: reconcile, Cleanup: deleteBucket,
		}),
		reconciler.Forget,
	))

	ctx := context.Background()
	fmt.Println(handler(ctx, first))
	widget, err := handlers.Live(client).Get(ctx, widgets, "default", "first")
	fmt.Println(widget.GetFinalizers(), err)
	settings, err := handlers.Live(client).Get(ctx, configMaps, "default", "settings")
	fmt.Println(settings.Object["data"], metav1.IsControlledBy(settings, widget), err)
	// Output:
	// <nil>
	// [platform.example.com/bucket] <nil>
	// map[key:big] true <nil>
}

func ExampleChain() {
	traced := func(handler dynamiccontroller.Handler) dynamiccontroller.Handler {
		return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			defer fmt.Println("end of the trace")
			return handler(ctx, id)
		}
	}
	reconcile := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		fmt.Println("reconcile", id)
		return nil
	}
	handler := handlers.Chain(handlers.Logging(), traced)(reconcile)
	fmt.Println(handler(context.Background(), first))
	// Output:
	// reconcile widgets.v1.example.com default/first
	// end of the trace
	// <nil>
}

func ExampleObject() {
	client := fakeserver.New(newWidget())
	handler := handlers.Object(handlers.Live(client),
		func(_ context.Context, _ dynamiccontroller.ObjectIdentifiers, widget *unstructured.Unstructured) error {
			fmt.Println("reconcile", widget.GetName())
			return nil
		},
		func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			fmt.Println(id.Name(), "is gone")
			return nil
		})
	ctx := context.Background()
	second := dynamiccontroller.ObjectIdentifiers{GVR: widgets, NamespacedKey: "default/second"}
	fmt.Println(handler(ctx, first), handler(ctx, second))
	// Output:
	// reconcile first
	// second is gone
	// <nil> <nil>
}

func ExampleFresh() {
	lagging := handlers.Live(fakeserver.New(newWidget())) // simulates a cache that still holds the widget
	client := fakeserver.New()                            // the previous leader has cleaned up the widget
	handler := handlers.Object(handlers.Fresh(client, lagging),
		func(context.Context, dynamiccontroller.ObjectIdentifiers, *unstructured.Unstructured) error {
			fmt.Println("create the bucket")
			return nil
		},
		func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
			fmt.Println(id.Name(), "is gone")
			return nil
		})
	fmt.Println(handler(context.Background(), first))
	// Output:
	// first is gone
	// <nil>
}

func ExampleFinalizer() {
	client := fakeserver.New(newWidget())
	handler := handlers.Finalizer(handlers.FinalizerConfig{
		Client: client,
		Name:   "platform.example.com/bucket",
		Reconcile: func(
			_ context.Context, _ dynamiccontroller.ObjectIdentifiers, widget *unstructured.Unstructured,
		) error {
			fmt.Println("create the bucket with the finalizers", widget.GetFinalizers())
			return nil
		},
		Cleanup: func(context.Context, dynamiccontroller.ObjectIdentifiers, *unstructured.Unstructured) error {
			fmt.Println("delete the bucket if it exists")
			return nil
		},
	})
	ctx := context.Background()
	fmt.Println(handler(ctx, first, newWidget()))

	deleted, err := handlers.Live(client).Get(ctx, widgets, "default", "first")
	if err != nil {
		fmt.Println(err)
		return
	}
	deleted.SetDeletionTimestamp(&metav1.Time{Time: time.Now()})
	fmt.Println(handler(ctx, first, deleted))
	now, err := handlers.Live(client).Get(ctx, widgets, "default", "first")
	fmt.Println("finalizers:", now.GetFinalizers(), err)
	// Output:
	// create the bucket with the finalizers [platform.example.com/bucket]
	// <nil>
	// delete the bucket if it exists
	// <nil>
	// finalizers: [] <nil>
}

func ExampleClaimer() {
	client := fakeserver.New(newWidget())
	orphan := fakeserver.NewConfigMap("orphan", "x")
	orphan.SetNamespace("default")
	orphan.SetLabels(map[string]string{"app": "first"})
	ctx := context.Background()
	_, err := client.Resource(configMaps).Namespace("default").Create(ctx, orphan, metav1.CreateOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}

	claimer, err := handlers.NewClaimer(handlers.ClaimerConfig{
		Client: client, FieldManager: "platform.example.com", Selector: labels.SelectorFromSet(labels.Set{"app": "first"}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	candidates, err := handlers.Live(client).List(ctx, configMaps, "default", labels.Everything())
	if err != nil {
		fmt.Println(err)
		return
	}
	claimed, err := claimer.Claim(ctx, first, newWidget(), configMaps, candidates)
	for _, child := range claimed {
		fmt.Println(child.GetName(), metav1.IsControlledBy(child, newWidget()))
	}
	fmt.Println(err)
	// Output:
	// orphan true
	// <nil>
}

func ExampleExpectations() {
	client := fakeserver.New()
	lagging := handlers.Live(fakeserver.New()) // simulates a cache that does not hold the child yet
	expectations, err := handlers.NewExpectations(handlers.ExpectationsConfig{Client: client, Cache: lagging})
	if err != nil {
		fmt.Println(err)
		return
	}

	// The handler creates one child.
	handler := func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		if err := expectations.CatchUp(ctx, id, configMaps, "default", labels.Everything()); err != nil {
			return err
		}
		if err := expectations.Await(ctx, id); err != nil {
			return err
		}
		existing, err := lagging.List(ctx, configMaps, "default", labels.Everything())
		if err != nil || len(existing) > 0 {
			return err
		}
		child := fakeserver.NewConfigMap("", "x")
		child.SetNamespace("default")
		child.SetGenerateName("child-")
		_, err = expectations.Create(ctx, id, configMaps, child)
		return err
	}
	ctx := context.Background()
	fmt.Println(handler(ctx, first))
	fmt.Println(handler(ctx, first))
	created, err := handlers.Live(client).List(ctx, configMaps, "default", labels.Everything())
	fmt.Println("children:", len(created), err)
	// Output:
	// <nil>
	// requeue after 1s
	// children: 1 <nil>
}

func ExampleConditions() {
	client := fakeserver.New(newWidget())
	conditions, err := handlers.NewConditions(handlers.ConditionsConfig{
		Client: client, FieldManager: "platform.example.com/status",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	widget := newWidget()
	for _, ready := range []metav1.Condition{
		{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Starting"},
		{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Starting"},
		{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Started"},
	} {
		changed, err := conditions.Set(ctx, first, widget, ready)
		fmt.Println(ready.Reason, changed, err)
	}
	// Output:
	// Starting true <nil>
	// Starting false <nil>
	// Started true <nil>
}
