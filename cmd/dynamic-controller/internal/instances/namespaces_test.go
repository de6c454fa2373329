package instances

import (
	"context"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/platformtest"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children"
)

var configMapKind = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}

func TestListingIn_ListsEachNamespace(t *testing.T) {
	var objects []*unstructured.Unstructured
	for _, namespace := range []string{"shop", "team", "other"} {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(configMapKind)
		object.SetNamespace(namespace)
		object.SetName("a")
		objects = append(objects, object)
	}
	server := platformtest.NewServer([]schema.GroupVersionKind{configMapKind}, objects...)
	maps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	for _, test := range []struct{ limit, want, requests []string }{
		{nil, []string{"other", "shop", "team"}, []string{""}},
		{[]string{"team", "shop"}, []string{"shop", "team"}, []string{"team", "shop"}},
	} {
		server.ClearActions()
		list, err := listingIn(server, test.limit).Resource(maps).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var got, requests []string
		for _, object := range list.Items {
			got = append(got, object.GetNamespace())
		}
		for _, action := range server.Actions() {
			requests = append(requests, action.GetNamespace())
		}
		slices.Sort(got)
		if !slices.Equal(got, test.want) || !slices.Equal(requests, test.requests) {
			t.Errorf("listed %q with requests for %q, want %q with %q", got, requests, test.want, test.requests)
		}
	}
}

// recordingEngine records the options of the types that it serves.
type recordingEngine struct {
	*platformtest.Engine
	options []dynamiccontroller.ServeOption
}

func (e *recordingEngine) StartServingGVK(
	ctx context.Context, gvr schema.GroupVersionResource, handler dynamiccontroller.Handler,
	opts ...dynamiccontroller.ServeOption,
) error {
	e.options = opts
	return e.Engine.StartServingGVK(ctx, gvr, handler, opts...)
}

func TestStart_LimitsAllWatchesToTheNamespaces(t *testing.T) {
	engine := &recordingEngine{Engine: platformtest.NewEngine()}
	maps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	kinds := []schema.GroupVersionKind{website, configMapKind}
	r, err := Start(t.Context(), Clients{
		Engine: engine, Client: platformtest.NewServer(kinds), Mapper: platformtest.NewMapper(kinds...),
		Namespaces: []string{"shop", "team"},
	}, Revision{GVR: websites, Children: []Child{{GVK: configMapKind, GVR: maps, CrossNamespace: true}}}, Rollout{}, false)
	if err != nil {
		t.Fatal(err)
	}
	watches := 0
	for _, option := range engine.options {
		if w, ok := option.(dynamiccontroller.Watch); ok {
			watches++
			if key := w.Key(); key.Namespaces != "shop,team" {
				t.Errorf("the watch %+v is not limited", key)
			}
			if w.Key().Owned && w.Key() != r.newest.owned(maps) {
				t.Error("the lister reads another watch")
			}
		}
	}
	if watches != 2 || len(engine.options) != 3 {
		t.Errorf("%d options with %d watches, want three with two", len(engine.options), watches)
	}
}

// Children outside of the instance's namespace are listed in the API server.
func TestCleanUp_ListsChildrenInTheNamespacesOnly(t *testing.T) {
	maps := schema.GroupKind{Kind: "ConfigMap"}
	self := &unstructured.Unstructured{Object: map[string]any{}}
	self.SetGroupVersionKind(website)
	self.SetNamespace("shop")
	self.SetName("flowers")
	self.SetUID("u")
	self.SetFinalizers([]string{ChildrenFinalizer})
	self.SetAnnotations(map[string]string{inventoryAnnotation: "ConfigMap=v1/configmaps"})
	kinds := []schema.GroupVersionKind{website, configMapKind}
	server := platformtest.NewServer(kinds, self)
	r, err := newReconciler(Clients{
		Engine: platformtest.NewEngine(), Client: server, Mapper: platformtest.NewMapper(kinds...),
		Identities: &fakeIdentities{client: server}, Namespaces: []string{"shop", "team"},
	}, Revision{GVR: websites, Followed: []children.Kind{{GroupKind: maps, CrossNamespace: true}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cleanUp(t.Context(), flowers, self); err != nil {
		t.Fatal(err)
	}
	var lists []string
	for _, action := range server.Actions() {
		if action.GetVerb() == "list" {
			lists = append(lists, action.GetNamespace())
		}
	}
	if !slices.Equal(lists, []string{"shop", "team"}) {
		t.Errorf("children were listed in the namespaces %q", lists)
	}
}
