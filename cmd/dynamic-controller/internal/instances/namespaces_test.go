package instances

import (
	"context"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children"
	"github.com/dynamic-controller/engine/test/platformtest"
)

var configMapKind = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}

// recordingEngine records the options with which types are served.
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
				t.Errorf("the watch %+v is not limited to the namespaces", key)
			}
			if w.Key().Owned && w.Key() != r.newest.owned(maps) {
				t.Error("the lister uses another watch")
			}
		}
	}
	if watches != 2 || len(engine.options) != 4 { // the others limit the watch of the instances, and set the flows
		t.Errorf("got %d options with %d watches, want 4 and 2", len(engine.options), watches)
	}
}

// Children outside the instance's namespace are listed from the API server. A cluster-scoped child can only exist if it
// was created before the platform was limited to namespaces.
func TestCleanUp_ListsChildrenInTheNamespacesOnly(t *testing.T) {
	maps, roles := schema.GroupKind{Kind: "ConfigMap"}, schema.GroupKind{Group: "rbac.example.com", Kind: "ClusterRole"}
	self := &unstructured.Unstructured{Object: map[string]any{}}
	self.SetGroupVersionKind(website)
	self.SetNamespace("shop")
	self.SetName("flowers")
	self.SetUID("u")
	self.SetFinalizers([]string{ChildrenFinalizer})
	self.SetAnnotations(map[string]string{
		inventoryAnnotation: "ClusterRole.rbac.example.com=v1/clusterroles:0,ConfigMap=v1/configmaps:0",
	})
	mapper := platformtest.Mapper{DefaultRESTMapper: meta.NewDefaultRESTMapper([]schema.GroupVersion{
		configMapKind.GroupVersion(), roles.WithVersion("v1").GroupVersion(),
	})}
	mapper.Add(configMapKind, meta.RESTScopeNamespace)
	mapper.Add(roles.WithVersion("v1"), meta.RESTScopeRoot)
	server := platformtest.NewServer([]schema.GroupVersionKind{website, configMapKind, roles.WithVersion("v1")}, self)
	r, err := newReconciler(Clients{
		Engine: platformtest.NewEngine(), Client: server, Mapper: mapper,
		Identities: &fakeIdentities{client: server}, Namespaces: []string{"shop", "team"},
	}, Revision{GVR: websites, Followed: []children.Kind{
		{GroupKind: maps, CrossNamespace: true}, {GroupKind: roles, CrossNamespace: true},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.cleanUp(t.Context(), flowers, self, true); err != nil {
		t.Fatal(err)
	}
	var lists []string
	for _, action := range server.Actions() {
		if action.GetVerb() == "list" {
			lists = append(lists, action.GetResource().Resource+" "+action.GetNamespace())
		}
	}
	if !slices.Equal(lists, []string{"clusterroles ", "configmaps shop", "configmaps team"}) {
		t.Errorf("got the list requests %q", lists)
	}
}

// Instances of a cluster-scoped type can only exist if they were created before the platform was limited to namespaces.
func TestStart_ClusterScopedTypeIsNotLimited(t *testing.T) {
	engine := &recordingEngine{Engine: platformtest.NewEngine()}
	mapper := platformtest.NewMapper()
	mapper.Add(website, meta.RESTScopeRoot)
	_, err := Start(t.Context(), Clients{
		Engine: engine, Client: platformtest.NewServer(nil), Mapper: mapper, Namespaces: []string{"shop"},
	}, Revision{GVR: websites}, Rollout{}, false)
	if err != nil || len(engine.options) != 2 {
		t.Fatalf("got %d options, %v", len(engine.options), err)
	}
	limited := dynamiccontroller.Owns(websites, engine.options[0].(dynamiccontroller.CommonOption)).Key().Namespaces
	if limited != "" {
		t.Errorf("the watch is limited to the namespaces %q", limited)
	}
}

// A child is not forgotten when its namespace is removed from --namespaces.
func TestNamespaces_ChildInARemovedNamespaceIsReported(t *testing.T) {
	for name, test := range map[string]struct {
		deleted bool
		reason  string
		words   []string
	}{
		"prune": {false, reasonFailed, []string{"children of kind ConfigMap: namespace far: ", "--namespaces"}},
		"cleanup": {true, reasonCleanupForbidden, []string{
			"children of kind ConfigMap: namespace far: ", "--namespaces", "kubectl patch websites.shop.example.com flowers",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newIdentityTest(t, place())
			if _, err := c.run(); err != nil {
				t.Fatal(err)
			}
			if test.deleted {
				c.deleted()
			}
			revision := c.Revision
			var err error
			if revision.Compiled, err = blueprint.Compile(chain(1), blueprint.Options{}); err != nil {
				t.Fatal(err)
			}
			c.Reconciler, err = newReconciler(Clients{
				Engine: c.engine, Client: c.server, Mapper: platformtest.NewMapper(configMapKind, website),
				Identities: c.identities, Namespaces: []string{"shop"},
			}, revision)
			if err != nil {
				t.Fatal(err)
			}
			ready, err := c.run()
			c.wantCondition(ready, test.reason, test.words...)
			if err == nil || !slices.Contains(c.finalizers(), ChildrenFinalizer) {
				t.Errorf("got the error %v and the finalizers %q", err, c.finalizers())
			}
		})
	}
}
