package dynamiccontroller_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// world is a controller on client-go's fake client, in a bubble: time passes only when all wait. What a real API server
// can show is shown in test/integration; here is what takes hours, or ten thousand runs.
type world struct {
	t          *testing.T
	types      []schema.GroupVersionResource
	client     *fake.FakeDynamicClient
	controller *dynamiccontroller.DynamicController
	version    int
}

func newWorld(t *testing.T, types int, config dynamiccontroller.Config) *world {
	w := &world{t: t}
	kinds := map[schema.GroupVersionResource]string{}
	for i := range types {
		gvr := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: fmt.Sprintf("type%ds", i)}
		w.types = append(w.types, gvr)
		kinds[gvr] = fmt.Sprintf("Type%dList", i)
	}
	w.client = fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
	w.controller = dynamiccontroller.NewDynamicController(logr.Discard(), config, w.client)
	return w
}

// run runs the controller until stop, which returns what Run did.
func (w *world) run() (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error)
	go func() { result <- w.controller.Run(ctx) }()
	synctest.Wait()
	return func() error {
		cancel()
		return <-result
	}
}

func (w *world) serve(gvr schema.GroupVersionResource, handler dynamiccontroller.Handler, opts ...dynamiccontroller.ServeOption) {
	w.t.Helper()
	if err := w.controller.StartServingGVK(context.Background(), gvr, handler, opts...); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

func (w *world) id(gvr schema.GroupVersionResource, name string) dynamiccontroller.ObjectIdentifiers {
	return dynamiccontroller.ObjectIdentifiers{NamespacedKey: "default/" + name, GVR: gvr}
}

// put creates or changes an object.
func (w *world) put(gvr schema.GroupVersionResource, name string) {
	w.t.Helper()
	w.version++
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gvr.GroupVersion().WithKind("Type"))
	object.SetNamespace("default")
	object.SetName(name)
	object.SetResourceVersion(fmt.Sprint(w.version))
	objects := w.client.Resource(gvr).Namespace("default")
	_, err := objects.Get(context.Background(), name, metav1.GetOptions{})
	if err == nil {
		_, err = objects.Update(context.Background(), object, metav1.UpdateOptions{})
	} else {
		_, err = objects.Create(context.Background(), object, metav1.CreateOptions{})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

func (w *world) status(gvr schema.GroupVersionResource) dynamiccontroller.TypeStatus {
	w.t.Helper()
	for _, status := range w.controller.Status() {
		if status.GVR == gvr {
			return status
		}
	}
	w.t.Fatalf("%s is not served", gvr)
	return dynamiccontroller.TypeStatus{}
}

// events is a TypeEvents that a test speaks through.
type events struct {
	tell func(schema.GroupVersionResource, bool)
}

func (e *events) subscribe(tell func(schema.GroupVersionResource, bool)) (cancel func()) {
	e.tell = tell
	return func() { e.tell = nil }
}
