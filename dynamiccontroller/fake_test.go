package dynamiccontroller_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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

// fixture is a controller with client-go's fake client. It is used by tests in a synctest bubble, which simulate hours
// or need ten thousand runs. Tests against a real API server are in test/integration.
type fixture struct {
	t          *testing.T
	types      []schema.GroupVersionResource
	shards     int // the number of shards, if the fixture was created by newSharded
	client     *fake.FakeDynamicClient
	controller *dynamiccontroller.DynamicController
	// versions holds the number of writes to each type. The version of an object is this number plus one, so that it
	// matches the versions of the fake client's lists.
	versions map[schema.GroupVersionResource]int
	// beforeList, if not nil, is called before each list of metadata.
	beforeList func(schema.GroupVersionResource)
	// listErrors holds the errors that lists return, by GVR.
	listErrors sync.Map
}

func newFixture(t *testing.T, types int, config dynamiccontroller.Config, opts ...dynamiccontroller.Option) *fixture {
	return newFixtureWithLogger(t, logr.Discard(), types, config, opts...)
}

func newFixtureWithLogger(
	t *testing.T, log logr.Logger, types int, config dynamiccontroller.Config, opts ...dynamiccontroller.Option,
) *fixture {
	gvrs := make([]schema.GroupVersionResource, types)
	for i := range gvrs {
		gvrs[i] = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: fmt.Sprintf("type%ds", i)}
	}
	return newFixtureOf(t, log, gvrs, config, opts...)
}

func newFixtureOf(
	t *testing.T, log logr.Logger, types []schema.GroupVersionResource, config dynamiccontroller.Config,
	opts ...dynamiccontroller.Option,
) *fixture {
	f := &fixture{t: t, types: types, versions: map[schema.GroupVersionResource]int{}}
	kinds := map[schema.GroupVersionResource]string{}
	for i, gvr := range types {
		kinds[gvr] = fmt.Sprintf("Type%dList", i)
	}
	f.client = fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
	f.client.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		err, fails := f.listErrors.Load(action.GetResource())
		if !fails {
			return false, nil, nil
		}
		return true, nil, err.(error)
	})
	f.controller = dynamiccontroller.NewDynamicController(log, config, f.client,
		append(opts, dynamiccontroller.WithMetadataClient(f.metadata()))...)
	return f
}

// failLists makes all lists of a type fail with err, or succeed again if err is nil.
func (f *fixture) failLists(gvr schema.GroupVersionResource, err error) {
	if err == nil {
		f.listErrors.Delete(gvr)
	} else {
		f.listErrors.Store(gvr, err)
	}
}

// retryEverySecond returns a Config with one worker and a retry delay of one second. Objects are parked after the given
// number of retries.
func retryEverySecond(retries int) dynamiccontroller.Config {
	return dynamiccontroller.Config{
		Workers: 1, ResyncPeriod: -1, QueueMaxRetries: retries, MinRetryDelay: time.Second, MaxRetryDelay: time.Second,
	}
}

// metadata returns a metadata client for the objects of the fake client.
func (f *fixture) metadata() metadata.Interface {
	return fakemetadata.New(f.client, func(gvr schema.GroupVersionResource) {
		if f.beforeList != nil {
			f.beforeList(gvr)
		}
	})
}

// run calls Run in the background. The function stop ends it and reports its error as a test failure.
func (f *fixture) run() (stop func()) { return f.stopper(f.start()) }

// start is like run, but stop returns Run's error.
func (f *fixture) start() (stop func() error) { return inBackground(f.controller.Run) }

// runWatches calls RunWatches in the background. The function stop ends it and reports its error as a test failure.
func (f *fixture) runWatches() (stop func()) { return f.stopper(inBackground(f.controller.RunWatches)) }

func (f *fixture) stopper(stop func() error) func() {
	return func() {
		f.t.Helper()
		if err := stop(); err != nil {
			f.t.Error(err)
		}
	}
}

// inBackground calls run in a goroutine and waits until it blocks. The function stop cancels the context of run and
// returns its error.
func inBackground(run func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- run(ctx) }()
	synctest.Wait()
	return func() error {
		cancel()
		return <-result
	}
}

func (f *fixture) serve(
	gvr schema.GroupVersionResource, handler dynamiccontroller.Handler, opts ...dynamiccontroller.ServeOption,
) {
	f.t.Helper()
	if err := f.controller.StartServingGVK(context.Background(), gvr, handler, opts...); err != nil {
		f.t.Fatal(err)
	}
	synctest.Wait()
}

func (f *fixture) id(gvr schema.GroupVersionResource, name string) dynamiccontroller.ObjectIdentifiers {
	return dynamiccontroller.ObjectIdentifiers{NamespacedKey: "default/" + name, GVR: gvr}
}

// uid returns the UID of an object that put creates.
func (f *fixture) uid(gvr schema.GroupVersionResource, name string) types.UID {
	return types.UID(gvr.Resource + "/" + name)
}

// put creates or updates an object, and waits until this has been processed. It returns the object's new version. The
// first of the owners is its controller.
func (f *fixture) put(
	gvr schema.GroupVersionResource, name string, owners ...dynamiccontroller.ObjectIdentifiers,
) (version string) {
	f.t.Helper()
	defer synctest.Wait()
	return f.write(gvr, name, owners...)
}

// write is like put, but does not wait.
func (f *fixture) write(
	gvr schema.GroupVersionResource, name string, owners ...dynamiccontroller.ObjectIdentifiers,
) (version string) {
	f.t.Helper()
	f.versions[gvr]++
	version = fmt.Sprint(f.versions[gvr] + 1)
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gvr.GroupVersion().WithKind("Type"))
	object.SetNamespace("default")
	object.SetName(name)
	object.SetUID(f.uid(gvr, name))
	var references []metav1.OwnerReference
	for i, owner := range owners {
		references = append(references, metav1.OwnerReference{
			APIVersion: owner.GVR.GroupVersion().String(), Kind: "Type", Name: owner.Name(), UID: f.uid(owner.GVR, owner.Name()),
			Controller: ptr.To(i == 0),
		})
	}
	object.SetOwnerReferences(references)
	object.SetResourceVersion(version)
	objects := f.client.Resource(gvr).Namespace("default")
	_, err := objects.Get(context.Background(), name, metav1.GetOptions{})
	if err == nil {
		_, err = objects.Update(context.Background(), object, metav1.UpdateOptions{})
	} else {
		_, err = objects.Create(context.Background(), object, metav1.CreateOptions{})
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return version
}

func (f *fixture) delete(gvr schema.GroupVersionResource, name string) {
	f.t.Helper()
	if err := f.client.Tracker().Delete(gvr, "default", name); err != nil {
		f.t.Fatal(err)
	}
	synctest.Wait()
}

func (f *fixture) status(gvr schema.GroupVersionResource) dynamiccontroller.TypeStatus {
	f.t.Helper()
	for _, status := range f.controller.Status() {
		if status.GVR == gvr {
			return status
		}
	}
	f.t.Fatalf("%s is not served", gvr)
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
