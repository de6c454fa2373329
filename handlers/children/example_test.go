package children_test

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/children"
	"github.com/dynamic-controller/engine/handlers/internal/fakeserver"
)

// A plan shows what a reconcile would write, before it does.
func ExampleReconciler_Plan() {
	client := fakeserver.New(fakeserver.NewWidget())
	reconciler, err := children.New(children.Config{
		Client: client, Mapper: fakeserver.NewMapper(), Name: "platform.example.com",
		Kinds: []children.Kind{{GroupKind: schema.GroupKind{Kind: "ConfigMap"}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, widget := context.Background(), fakeserver.NewWidget()
	desired := func(value string) children.Desired {
		return children.Desired{Stages: [][]children.Child{children.Stage(fakeserver.NewConfigMap("settings", value))}}
	}
	show := func(desired children.Desired) {
		plan, err := reconciler.Plan(ctx, fakeserver.First, widget, desired, children.PlanOptions{DryRun: true})
		for _, operation := range plan.Operations {
			fmt.Println(operation.Action, operation.Kind.Kind, operation.Name()+":", operation.Reason)
			for _, change := range operation.Changes {
				if strings.HasPrefix(change.Field, "data.") {
					fmt.Println(" ", change.Field, change.From, "->", change.To)
				}
			}
		}
		if err != nil {
			fmt.Println(err)
		}
	}
	show(desired("x"))
	if _, err := reconciler.Reconcile(ctx, fakeserver.First, widget, desired("x")); err != nil {
		fmt.Println(err)
	}
	show(desired("y"))
	show(children.Desired{})
	// Output:
	// RecordKinds Widget first: children are found by the kinds that the parent lists
	// Create ConfigMap settings: the child does not exist
	//   data.key <nil> -> x
	// Apply ConfigMap settings: the child differs from its desired state
	//   data.key x -> y
	// Delete ConfigMap settings: it is not desired
	// waiting for deletion: ConfigMap default/settings
}

// This handler creates the config maps that a widget lists, and deletes those that it no longer lists.
func Example() {
	client := fakeserver.New(fakeserver.NewWidget())
	reconciler, err := children.New(children.Config{
		Client: client, Mapper: fakeserver.NewMapper(), Name: "platform.example.com",
		Kinds: []children.Kind{{GroupKind: schema.GroupKind{Kind: "ConfigMap"}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	names := []string{"settings", "users"}
	handler := handlers.Object(handlers.Live(client),
		func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, widget *unstructured.Unstructured) error {
			var stage []*unstructured.Unstructured
			for _, name := range names {
				stage = append(stage, fakeserver.NewConfigMap(name, id.Name()))
			}
			_, err := reconciler.Reconcile(ctx, id, widget, children.Desired{
				Stages: [][]children.Child{children.Stage(stage...)},
			})
			return err
		},
		reconciler.Forget)

	ctx := context.Background()
	reconcile := func() {
		if err := handler(ctx, fakeserver.First); err != nil {
			fmt.Println(err)
			return
		}
		existing, err := handlers.Live(client).List(ctx, fakeserver.ConfigMaps, "default", labels.Everything())
		var all []string
		for _, child := range existing {
			all = append(all, child.GetName())
		}
		fmt.Println(strings.Join(all, " "), err)
	}
	reconcile()
	names = []string{"settings"}
	reconcile()
	// Output:
	// settings users <nil>
	// settings <nil>
}
