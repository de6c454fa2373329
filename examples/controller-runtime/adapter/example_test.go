package adapter_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/examples/controller-runtime/adapter"
)

// The handler can be passed to DynamicController.StartServingGVK.
func ExampleHandler() {
	handler := adapter.Handler(reconcile.Func(
		func(_ context.Context, request reconcile.Request) (reconcile.Result, error) {
			if request.Name == "invalid" {
				return reconcile.Result{}, reconcile.TerminalError(errors.New("the object is invalid"))
			}
			fmt.Println("Reconciling", request)
			return reconcile.Result{RequeueAfter: time.Minute}, nil
		}))

	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	for _, key := range []string{"default/first", "default/invalid"} {
		fmt.Println(handler(context.Background(), dynamiccontroller.ObjectIdentifiers{GVR: pods, NamespacedKey: key}))
	}
	// Output:
	// Reconciling default/first
	// requeue after 1m0s
	// terminal: terminal error: the object is invalid
}
