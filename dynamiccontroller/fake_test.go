package dynamiccontroller_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/metadata"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fakemetadata"
)

// world is a controller with client-go's fake client, for tests in a synctest bubble. It is used for behavior that
// takes hours or ten thousand runs. Tests against a real API server are in test/integration.
type world struct {
	t          *testing.T
	types      []schema.GroupVersionResource
	client     *fake.FakeDynamicClient
	controller *dynamiccontroller.DynamicController
	// versions counts the versions of each type like the fake counts those of its lists: the first object has version
	// 2.
	versions map[schema.GroupVersionResource]int
	// beforeList, if not nil, is called before each list of metadata.
	beforeList func(schema.GroupVersionResource)
	// listErrors holds the errors that lists return, by GVR.
	listErrors sync.Map
}

func newWorld(t *testing.T, types int, config dynamiccontroller.Config, opts ...dynamiccontroller.Option) *world {
	w := &world{t: t, versions: map[schema.GroupVersionResource]int{}}
	kinds := map[schema.GroupVersionResource]string{}
	for i := range types {
		gvr := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: fmt.Sprintf("type%ds", i)}
		w.types = append(w.types, gvr)
		kinds[gvr] = fmt.Sprintf("Type%dList", i)
	}
	w.client = fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
	w.client.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		err, fails := w.listErrors.Load(action.GetResource())
		if !fails {
			return false, nil, nil
		}
		return true, nil, err.(error)
	})
	w.controller = dynamiccontroller.NewDynamicController(logr.Discard(), config, w.client,
		append(opts, dynamiccontroller.WithMetadataClient(w.metadata()))...)
	return w
}

// failLists makes all lists of a type fail with err, or succeed again if it is nil.
func (w *world) failLists(gvr schema.GroupVersionResource, err error) {
	if err == nil {
		w.listErrors.Delete(gvr)
	} else {
		w.listErrors.Store(gvr, err)
	}
}

// metadata returns a metadata client for the objects of the fake client.
func (w *world) metadata() metadata.Interface {
	return fakemetadata.Over(w.client, func(gvr schema.GroupVersionResource) {
		if w.beforeList != nil {
			w.beforeList(gvr)
		}
	})
}

// run calls Run in the background. Stop ends it and returns its error.
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

// uid returns the UID of an object that put creates.
func (w *world) uid(gvr schema.GroupVersionResource, name string) types.UID {
	return types.UID(gvr.Resource + "/" + name)
}

// put creates or updates an object and returns its new version. The first of the owners is its controller.
func (w *world) put(gvr schema.GroupVersionResource, name string, owners ...dynamiccontroller.ObjectIdentifiers) (version string) {
	w.t.Helper()
	w.versions[gvr]++
	version = fmt.Sprint(w.versions[gvr] + 1)
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gvr.GroupVersion().WithKind("Type"))
	object.SetNamespace("default")
	object.SetName(name)
	object.SetUID(w.uid(gvr, name))
	var references []metav1.OwnerReference
	for i, owner := range owners {
		references = append(references, metav1.OwnerReference{
			APIVersion: owner.GVR.GroupVersion().String(), Kind: "Type", Name: owner.Name(), UID: w.uid(owner.GVR, owner.Name()),
			Controller: ptr.To(i == 0),
		})
	}
	object.SetOwnerReferences(references)
	object.SetResourceVersion(version)
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
	return version
}

func (w *world) delete(gvr schema.GroupVersionResource, name string) {
	w.t.Helper()
	if err := w.client.Tracker().Delete(gvr, "default", name); err != nil {
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

// events implements TypeEvents. Tests call notify to send type events.
type events struct {
	notify func(schema.GroupVersionResource, bool)
}

func (e *events) subscribe(notify func(schema.GroupVersionResource, bool)) (cancel func()) {
	e.notify = notify
	return func() { e.notify = nil }
}
