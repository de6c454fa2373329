package acceptance

import (
	"context"
	"sync"

	"github.com/go-logr/logr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	crdfake "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/test/platformtest"
)

// fakeSchemas returns the same schema for all kinds.
type fakeSchemas struct {
	described common.Schema
	name      string
	err       error
	changed   []string
}

func (f *fakeSchemas) For(context.Context, schema.GroupVersionKind) (common.Schema, string, error) {
	return f.described, f.name, f.err
}
func (f *fakeSchemas) Changed(group string) { f.changed = append(f.changed, group) }

var everything = map[string]bool{"get": true, "list": true, "watch": true, "create": true, "patch": true,
	"delete": true}

// storedObjects contains the ControllerRevisions that the function stored has created, by UID.
var storedObjects sync.Map

// storedClient reads the ControllerRevisions of the cached revisions.
type storedClient struct {
	dynamic.Interface
	cached toolscache.Indexer
}

func (c storedClient) Resource(gvr schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	objects := c.Interface.Resource(gvr)
	if gvr != controllerRevisions {
		return objects
	}
	return storedReader{objects, c.cached}
}

type storedReader struct {
	dynamic.NamespaceableResourceInterface
	cached toolscache.Indexer
}

func (r storedReader) Namespace(string) dynamic.ResourceInterface { return r }

func (r storedReader) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*unstructured.Unstructured,
	error) {
	for _, object := range r.cached.List() {
		if known, ok := object.(*revision); ok && known.Name == name {
			if there, has := storedObjects.Load(known.UID); has {
				return there.(*unstructured.Unstructured).DeepCopy(), nil
			}
		}
	}
	return nil, apierrors.NewNotFound(controllerRevisions.GroupResource(), name)
}

// testController is a Controller with fakes.
type testController struct {
	*Controller
	engine, instances *platformtest.Engine
	mapper            platformtest.Mapper
	schemas           *fakeSchemas
}

// newTestController returns a Controller whose caches contain these Blueprints and CustomResourceDefinitions.
func newTestController(
	objects []*unstructured.Unstructured, crds []*apiextensionsv1.CustomResourceDefinition,
	kinds ...schema.GroupVersionKind,
) (*testController, platformtest.Mapper) {
	p := &testController{
		engine: platformtest.NewEngine(), instances: platformtest.NewEngine(), mapper: platformtest.NewMapper(kinds...),
		schemas: &fakeSchemas{},
	}
	for _, object := range objects {
		_ = p.engine.Objects.Add(object)
	}
	for _, crd := range crds {
		_ = p.engine.Secondary.Add(crd)
	}
	client := storedClient{dynamic.NewForConfigOrDie(&rest.Config{Host: "http://127.0.0.1:1"}), p.engine.Secondary}
	identities, err := identity.New(&rest.Config{Host: "http://127.0.0.1:1"},
		identity.Options{AllowPlatformIdentity: true})
	if err != nil {
		panic(err)
	}
	p.Controller = New(Config{
		Log: logr.Discard(), Definitions: p.engine, Instances: p.instances, Mapper: p.mapper, Schemas: p.schemas,
		Reviews: &answers{allowed: everything}, Client: client, CRDs: crdfake.NewClientset(), Namespace: "system",
		Identities: identities,
	})
	return p, p.mapper
}

// use replaces the clients. A client is kept if its replacement is nil.
func (p *testController) use(client dynamic.Interface, crds clientset.Interface) {
	c := p.config
	if client != nil {
		c.Client = client
	}
	if crds != nil {
		c.CRDs = crds
	}
	r := p.registry
	next := New(c)
	p.Controller = next
	for name, d := range r.decisions {
		next.registry.set(name, d)
	}
}

// forgetDecisions simulates a restart.
func (p *testController) forgetDecisions() { p.Controller = New(p.config) }

func (p *testController) decide(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	return p.definitions.reconcile(ctx, id)
}

func (p *testController) allow(api Reviewer) {
	p.definitions.validator.reviews = newAccessReviews(api)
}

func isRequeue(err error) bool {
	_, is := dynamiccontroller.RequeueDelay(err)
	return is
}

var (
	website     = schema.GroupVersionKind{Group: "shop.example.com", Version: "v1", Kind: "Website"}
	websites, _ = meta.UnsafeGuessKindToResource(website)
)

// cleaningUp is a revision for which only deletions are processed.
var cleaningUp = &servedRevision{Revision: instances.Revision{GVR: websites}}

// reconciling is a revision for which all instances are reconciled.
var reconciling = &servedRevision{Revision: instances.Revision{GVR: websites, Compiled: &blueprint.Compiled{}}}
