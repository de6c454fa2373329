package references

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	metadataapi "k8s.io/client-go/metadata"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

type identifiers = dynamiccontroller.ObjectIdentifiers

var (
	widgets    = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	gadgets    = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gadgets"}
	secrets    = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	nodes      = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
)

// fixture is a controller with a Tracker and client-go's fake client.
type fixture struct {
	*testing.T
	client     *fake.FakeDynamicClient
	controller *dynamiccontroller.DynamicController
	tracker    *Tracker

	mu         sync.Mutex                            // guards the fields below
	versions   map[schema.GroupVersionResource]int   // number of writes
	lists      map[schema.GroupVersionResource]int   // number of list requests
	open       map[schema.GroupVersionResource]int   // number of open watch requests
	failing    map[schema.GroupVersionResource]error // errors of list requests
	reconciles []string                              // keys of reconciled objects
	reconcile  map[string]func(ctx context.Context, refs *References) error
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{
		T: t, versions: map[schema.GroupVersionResource]int{}, lists: map[schema.GroupVersionResource]int{},
		open: map[schema.GroupVersionResource]int{}, failing: map[schema.GroupVersionResource]error{},
		reconcile: map[string]func(context.Context, *References) error{},
	}
	f.client = fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{
			widgets: "WidgetList", gadgets: "GadgetList", secrets: "SecretList", configMaps: "ConfigMapList", nodes: "NodeList",
		})
	f.client.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.lists[action.GetResource()]++
		err := f.failing[action.GetResource()]
		return err != nil, nil, err
	})
	f.client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		gvr := action.GetResource()
		options := action.(clienttesting.WatchActionImpl).ListOptions // the watch begins with writes after the list
		w, err := f.client.Tracker().Watch(gvr, action.GetNamespace(), options)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.open[gvr]++
		return true, &countedWatch{Interface: w, stopped: sync.OnceFunc(func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.open[gvr]--
		})}, err
	})
	config := dynamiccontroller.Config{
		Workers: 4, ResyncPeriod: -1, MinRetryDelay: time.Hour, MaxRetryDelay: time.Hour,
	}
	f.controller = dynamiccontroller.NewDynamicController(logr.Discard(), config, f.client,
		dynamiccontroller.WithMetadataClient(metadataClient{f.client}))
	var err error
	f.tracker, err = New(Config{Controller: f.controller, WatchOptions: wholeObjects})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func wholeObjects(schema.GroupVersionResource) []dynamiccontroller.WatchesOption {
	return []dynamiccontroller.WatchesOption{dynamiccontroller.WithCache(dynamiccontroller.CacheFull)}
}

// metadataClient lists and watches the metadata of the fake client's objects.
type metadataClient struct{ client dynamic.Interface }

func (c metadataClient) Resource(gvr schema.GroupVersionResource) metadataapi.Getter {
	of := c.client.Resource(gvr)
	return metadataGetter{metadataOf: metadataOf{of: of}, client: of}
}

// IsWatchListSemanticsUnSupported makes lists plain requests, as with client-go's fake clients.
func (c metadataClient) IsWatchListSemanticsUnSupported() bool { return true }

type metadataGetter struct {
	metadataOf
	client dynamic.NamespaceableResourceInterface
}

func (g metadataGetter) Namespace(namespace string) metadataapi.ResourceInterface {
	return metadataOf{of: g.client.Namespace(namespace)}
}

type metadataOf struct {
	metadataapi.ResourceInterface
	of dynamic.ResourceInterface
}

func (m metadataOf) List(ctx context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	list, err := m.of.List(ctx, o)
	if err != nil {
		return nil, err
	}
	reduced := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: list.GetResourceVersion()}}
	for i := range list.Items {
		reduced.Items = append(reduced.Items, *meta.AsPartialObjectMetadata(&list.Items[i]))
	}
	return reduced, nil
}

func (m metadataOf) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w, err := m.of.Watch(ctx, o)
	if err != nil {
		return nil, err
	}
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		if object, ok := e.Object.(*unstructured.Unstructured); ok {
			e.Object = meta.AsPartialObjectMetadata(object)
		}
		return e, true
	}), nil
}

type countedWatch struct {
	watch.Interface
	stopped func()
}

func (w *countedWatch) Stop() {
	w.stopped()
	w.Interface.Stop()
}

// serve serves a type with a handler that calls the function for the object's name in f.reconcile. It commits if the
// function returns nil, and aborts otherwise.
func (f *fixture) serve(gvr schema.GroupVersionResource) {
	f.Helper()
	handler := func(ctx context.Context, id identifiers) error {
		f.mu.Lock()
		f.reconciles = append(f.reconciles, id.Name())
		reconcile := f.reconcile[id.Name()]
		f.mu.Unlock()
		refs := f.tracker.Begin(ctx, id)
		defer refs.Abort()
		if reconcile != nil {
			if err := reconcile(ctx, refs); err != nil {
				return err
			}
		}
		refs.Commit()
		return nil
	}
	full := dynamiccontroller.WithCache(dynamiccontroller.CacheFull)
	if err := f.controller.StartServingGVK(f.Context(), gvr, handler, full); err != nil {
		f.Fatal(err)
	}
}

// run calls Run in the background. The function stop ends it.
func (f *fixture) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- f.controller.Run(ctx) }()
	synctest.Wait()
	return func() {
		f.Helper()
		cancel()
		if err := <-result; err != nil {
			f.Error(err)
		}
		synctest.Wait()
	}
}

// runSynced calls Run in the background, and waits until all objects have been reconciled and all watches have synced.
func (f *fixture) runSynced() (stop func()) {
	f.Helper()
	types := []schema.GroupVersionResource{secrets, configMaps}
	for _, gvr := range types {
		f.fail(gvr, errors.New("on purpose"))
	}
	stop = f.run()
	for _, gvr := range types {
		f.fail(gvr, nil)
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reconciles = nil
	return stop
}

// on sets the function that the handler calls for an object.
func (f *fixture) on(name string, reconcile func(ctx context.Context, refs *References) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reconcile[name] = reconcile
}

// refersTo makes the handler declare objects of a type by name, in the namespace default.
func (f *fixture) refersTo(name string, gvr schema.GroupVersionResource, targets ...string) {
	f.on(name, func(_ context.Context, refs *References) error {
		var errs []error
		for _, target := range targets {
			errs = append(errs, refs.Object(gvr, "default", target))
		}
		return errors.Join(errs...)
	})
}

// selects makes the handler declare a selector.
func (f *fixture) selects(name string, gvr schema.GroupVersionResource, namespace, selector string) {
	parsed, err := labels.Parse(selector)
	if err != nil {
		f.Fatal(err)
	}
	f.on(name, func(_ context.Context, refs *References) error { return refs.Objects(gvr, namespace, parsed) })
}

func (f *fixture) fail(gvr schema.GroupVersionResource, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failing[gvr] = err
}

// put creates or updates an object, with the label app if it is not empty.
func (f *fixture) put(gvr schema.GroupVersionResource, namespace, name, app string) {
	f.Helper()
	f.mu.Lock()
	f.versions[gvr]++
	object := &unstructured.Unstructured{}
	object.SetResourceVersion(strconv.Itoa(f.versions[gvr] + 1)) // not newer than the fake client's next list
	f.mu.Unlock()
	object.SetAPIVersion(gvr.GroupVersion().String())
	object.SetKind("Kind")
	object.SetNamespace(namespace)
	object.SetName(name)
	object.SetUID(types.UID(name))
	if app != "" {
		object.SetLabels(map[string]string{"app": app})
	}
	objects := f.client.Resource(gvr).Namespace(namespace)
	_, err := objects.Update(context.Background(), object, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = objects.Create(context.Background(), object, metav1.CreateOptions{})
	}
	if err != nil {
		f.Error(err)
	}
}

func (f *fixture) delete(gvr schema.GroupVersionResource, namespace, name string) {
	f.Helper()
	if err := f.client.Tracker().Delete(gvr, namespace, name); err != nil && !apierrors.IsNotFound(err) {
		f.Error(err)
	}
}

// want compares the objects that have been reconciled since the last call, with repetitions.
func (f *fixture) want(situation string, names ...string) {
	f.Helper()
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	slices.Sort(f.reconciles)
	slices.Sort(names)
	if !slices.Equal(f.reconciles, names) {
		f.Errorf("%s: reconciled %v, want %v", situation, f.reconciles, names)
	}
	f.reconciles = nil
}

// wantAtLeastOnce is like want, but ignores how often an object was reconciled.
func (f *fixture) wantAtLeastOnce(situation string, names ...string) {
	f.Helper()
	synctest.Wait()
	f.mu.Lock()
	slices.Sort(f.reconciles)
	f.reconciles = slices.Compact(f.reconciles)
	f.mu.Unlock()
	f.want(situation, names...)
}

func (f *fixture) wantWatches(situation string, gvr schema.GroupVersionResource, want int) {
	f.Helper()
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open[gvr] != want {
		f.Errorf("%s: %d watches of %s are open, want %d", situation, f.open[gvr], gvr.Resource, want)
	}
}
