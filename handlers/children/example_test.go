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
