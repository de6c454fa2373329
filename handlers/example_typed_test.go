package handlers_test

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/internal/fakeserver"
)

func ExampleTyped() {
	type widget struct {
		Spec struct {
			Size string `json:"size"`
		} `json:"spec"`
	}
	reconcile := func(
		_ context.Context, id dynamiccontroller.ObjectIdentifiers, w *widget, _ *unstructured.Unstructured,
	) error {
		fmt.Println(id.Name(), "has the size", w.Spec.Size)
		return nil
	}
	gone := func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		fmt.Println(id.Name(), "is gone")
		return nil
	}
	invalid := newWidget()
	invalid.SetName("invalid")
	invalid.Object["spec"] = map[string]any{"size": int64(3)}

	reader := handlers.Live(fakeserver.New(newWidget(), invalid))
	handler := handlers.Object(reader, handlers.Typed(reconcile), gone)
	for _, key := range []string{"default/first", "default/unknown", "default/invalid"} {
		id := dynamiccontroller.ObjectIdentifiers{GVR: widgets, NamespacedKey: key}
		if err := handler(context.Background(), id); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// first has the size big
	// unknown is gone
	// terminal: decode widgets.v1.example.com default/invalid: spec.size: got number, want string
}
