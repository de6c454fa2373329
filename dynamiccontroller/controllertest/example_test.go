package controllertest_test

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
)

var things = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "things"}

// observe returns a handler that writes the generation of a Thing into its status.
func observe(client dynamic.Interface) dynamiccontroller.Handler {
	return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		resource := client.Resource(id.GVR).Namespace(id.Namespace())
		thing, err := resource.Get(ctx, id.Name(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		} else if err != nil {
			return err
		}
		observed, _, err := unstructured.NestedInt64(thing.Object, "status", "observedGeneration")
		if err != nil || observed == thing.GetGeneration() {
			return err
		}
		thing.Object["status"] = map[string]any{"observedGeneration": thing.GetGeneration()}
		_, err = resource.UpdateStatus(ctx, thing, metav1.UpdateOptions{})
		return err
	}
}

// A handler that reads and writes only with a client can be called without a controller.
func Example() {
	server := controllertest.NewServer(controllertest.Type{GVR: things, Kind: "Thing"})
	handler := observe(server)

	thing := &unstructured.Unstructured{}
	err := yaml.Unmarshal([]byte(`
apiVersion: example.com/v1
kind: Thing
metadata: {name: first, namespace: default}
spec: {size: 1}
`), thing)
	if err != nil {
		fmt.Println(err)
	}
	id := server.Apply(thing)
	fmt.Println(handler(context.Background(), id), server.TakeWrites(), server.Get(id).Object["status"])
	fmt.Println(handler(context.Background(), id), server.TakeWrites())
	server.Delete(id)
	fmt.Println(handler(context.Background(), id), server.TakeWrites())
	// Output:
	// <nil> [update status of things first] map[observedGeneration:1]
	// <nil> []
	// <nil> []
}

// While the watches of a type are held, a client reads a new object, but a watch does not deliver it. A cache that is
// filled from this watch is then outdated.
func ExampleServer_HoldWatches() {
	server := controllertest.NewServer(controllertest.Type{GVR: things, Kind: "Thing"})
	stream, err := server.Resource(things).Watch(context.Background(), metav1.ListOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stream.Stop()

	release := server.HoldWatches(things)
	thing := &unstructured.Unstructured{}
	thing.SetGroupVersionKind(things.GroupVersion().WithKind("Thing"))
	thing.SetNamespace("default")
	thing.SetName("first")
	id := server.Apply(thing)
	fmt.Println("read:", server.Get(id).GetName())
	select {
	case <-stream.ResultChan():
		fmt.Println("delivered too early")
	default:
		fmt.Println("not delivered")
	}

	release()
	event := <-stream.ResultChan()
	fmt.Println("delivered:", event.Type)
	// Output:
	// read: first
	// not delivered
	// delivered: ADDED
}
