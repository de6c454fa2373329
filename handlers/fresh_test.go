package handlers

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
	"github.com/dynamic-controller/engine/handlers/internal/fakeserver"
)

func widgetAt(uid, resourceVersion string) *unstructured.Unstructured {
	widget := newWidget()
	widget.SetUID(types.UID(uid))
	widget.SetResourceVersion(resourceVersion)
	return widget
}

// newServerAt returns a server that holds the object with its resourceVersion, or nothing if the object is nil.
func newServerAt(object *unstructured.Unstructured) *controllertest.Server {
	server := newFakeServer()
	server.PrependReactor("get", "widgets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return object != nil, object.DeepCopy(), nil
	})
	return server
}

func TestFresh_ReturnsLiveObject(t *testing.T) {
	for name, c := range map[string]struct {
		cached, live *unstructured.Unstructured
		want         string // the resourceVersion, or empty if the object is not found
	}{
		"the versions are equal":                            {widgetAt("a", "5"), widgetAt("a", "5"), "5"},
		"etcd was restored":                                 {widgetAt("a", "6"), widgetAt("a", "5"), "5"},
		"the versions cannot be compared":                   {widgetAt("a", "x"), widgetAt("a", "y"), "y"},
		"the cache is older":                                {widgetAt("a", "5"), widgetAt("a", "10"), "10"},
		"the cache holds a deleted object of the same name": {widgetAt("a", "5"), widgetAt("b", "10"), "10"},
		"the cache holds a deleted object":                  {widgetAt("a", "5"), nil, ""},
		"the cache does not hold the object yet":            {nil, widgetAt("a", "5"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := newServerAt(c.live)
			got, err := Fresh(server, fakeserver.Cache{"first": c.cached}).Get(t.Context(), widgets, "default", "first")
			switch {
			case c.want == "" && !apierrors.IsNotFound(err):
				t.Errorf("got %v and the error %v, want a NotFound", got, err)
			case c.want != "" && (err != nil || got.GetResourceVersion() != c.want):
				t.Errorf("got %v and the error %v, want the resourceVersion %s", got, err, c.want)
			}
		})
	}
}

func TestFresh_ReadsLiveUntilCacheHasCaughtUp(t *testing.T) {
	cache, server := fakeserver.Cache{"first": widgetAt("a", "5")}, newServerAt(widgetAt("a", "10"))
	reader := Fresh(server, cache)
	// wantRequests calls Get once for each element of want and compares the number of requests with it.
	wantRequests := func(ctx context.Context, name string, want ...int) {
		t.Helper()
		for call, want := range want {
			before := len(server.Actions())
			_, _ = reader.Get(ctx, widgets, "default", "first") // Get returns a NotFound if the cache does not hold the object
			if n := len(server.Actions()) - before; n != want {
				t.Errorf("%s, call %d: sent %d requests, want %d", name, call, n, want)
			}
		}
	}
	fakeserver.InRun(t, func(ctx context.Context) {
		wantRequests(ctx, "the cache lags", 1, 1)
		cache["first"] = widgetAt("a", "10")
		wantRequests(ctx, "the cache has caught up", 1, 0, 0)
	})
	fakeserver.InRun(t, func(ctx context.Context) {
		wantRequests(ctx, "the next run", 1, 0)
		cache["first"] = nil
		wantRequests(ctx, "the object has been deleted", 0)
		cache["first"] = widgetAt("b", "20")
		wantRequests(ctx, "the object has been recreated", 1)
	})
}
