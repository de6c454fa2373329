package children

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/internal/fakeserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	widgets    = fakeserver.Widgets
	configMaps = fakeserver.ConfigMaps
	namespaces = fakeserver.Namespaces
	first      = fakeserver.First

	newFakeServer = fakeserver.New
	newWidget     = fakeserver.NewWidget
	newConfigMap  = fakeserver.NewConfigMap
	newObject     = fakeserver.NewObject

	configMapKind = Kind{GroupKind: schema.GroupKind{Kind: "ConfigMap"}}
	namespaceKind = Kind{GroupKind: schema.GroupKind{Kind: "Namespace"}}
	widgetKind    = Kind{GroupKind: schema.GroupKind{Group: "example.com", Kind: "Widget"}}
)

// newReconciler returns a Reconciler. It sets all required fields of config except Client. By default, config maps can
// be outside their parent's namespace, and the children in a stage are applied one after another.
func newReconciler(t testing.TB, config Config) *Reconciler {
	t.Helper()
	config.Mapper, config.Name = fakeserver.NewMapper(), "platform.example.com"
	if config.Kinds == nil {
		config.Kinds = []Kind{{GroupKind: configMapKind.GroupKind, CrossNamespace: true}, widgetKind}
	}
	config.MaxConcurrentApplies = cmp.Or(config.MaxConcurrentApplies, 1)
	reconciler, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return reconciler
}

// newIdentityServer returns a server for the config maps of an identity. Only the platform can list them.
func newIdentityServer(platform *controllertest.Server) *controllertest.Server {
	identity, isPlatform := newFakeServer(), false
	identity.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return !isPlatform, nil, apierrors.NewForbidden(configMaps.GroupResource(), "", errors.New("test"))
	})
	platform.PrependReactor("list", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		isPlatform = true
		defer func() { isPlatform = false }()
		options := action.(clienttesting.ListActionImpl).ListOptions
		list, err := identity.Resource(configMaps).Namespace(action.GetNamespace()).List(context.Background(), options)
		return true, list, err
	})
	return identity
}

// callFor returns a call for the first widget.
func callFor(t testing.TB, r *Reconciler, parent *unstructured.Unstructured) *call {
	t.Helper()
	return newCall(t.Context(), r.settings, first, parent, Identity{}, r.entryOf(t.Context(), first))
}

// cacheOf returns the apply cache that is used outside of runs.
func cacheOf(t testing.TB, r *Reconciler) *applyCache {
	t.Helper()
	return r.memory.caches.For(t.Context())
}

// entriesOf returns the entries of an apply cache.
func entriesOf(cache *applyCache) map[any]*parentEntry {
	entries := map[any]*parentEntry{}
	for parent, entry := range cache.parents.Range {
		entries[parent] = entry.(*parentEntry)
	}
	return entries
}

// oneStage returns children in a single stage.
func oneStage(children ...*unstructured.Unstructured) Desired {
	return Desired{Stages: [][]Child{Stage(children...)}}
}

// newRemoteConfigMap returns a config map outside the namespace of the first widget.
func newRemoteConfigMap(name string) *unstructured.Unstructured {
	child := newConfigMap(name, "x")
	child.SetNamespace("other")
	return child
}

// failUnlessRequeued fails the test if err is neither nil nor a RequeueAfter.
func failUnlessRequeued(t testing.TB, err error) {
	t.Helper()
	if _, requeued := dynamiccontroller.RequeueDelay(err); err != nil && !requeued {
		t.Fatal(err)
	}
}

// getParent reads the first widget from the server.
func getParent(t testing.TB, server *controllertest.Server) *unstructured.Unstructured {
	t.Helper()
	parent, err := handlers.Live(server).Get(t.Context(), widgets, first.Namespace(), first.Name())
	if err != nil {
		t.Fatal(err)
	}
	return parent
}

// witnessName is the name of the witness of the first widget.
const witnessName = "children-of-widget-uid-1017ff7e"

// listing is a Cache with a lister. Objects are read from the API server.
type listing struct {
	lister *fakeserver.Lister
	err    error
}

func (l *listing) Get(
	_ context.Context, gvr schema.GroupVersionResource, _, _ string,
) (*unstructured.Unstructured, error) {
	return nil, fmt.Errorf("%s: %w", gvr.Resource, dynamiccontroller.ErrNotServed)
}

func (l *listing) Lister(schema.GroupVersionResource) (dynamiccontroller.Lister, error) {
	return *l.lister, l.err
}

// reconciling is a server with a parent and a Reconciler.
type reconciling struct {
	*controllertest.Server
	reconciler *Reconciler
	parent     *unstructured.Unstructured
}

// newReconciling returns a new server with the given objects, the first of which is the parent.
func newReconciling(t testing.TB, objects ...*unstructured.Unstructured) reconciling {
	t.Helper()
	server, parent := newFakeServer(objects...), objects[0].DeepCopy()
	if stored := server.Get(first); parent.GetResourceVersion() == "" && stored != nil {
		parent.SetResourceVersion(stored.GetResourceVersion())
	}
	return reconciling{server, newReconciler(t, Config{Client: server}), parent}
}

// failWith returns a reaction that rejects requests.
func failWith(err error) clienttesting.ReactionFunc {
	return func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err }
}

// with returns a map with another entry. It changes the given map, unless it is nil.
func with(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}
