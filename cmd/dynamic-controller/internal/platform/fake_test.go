package platform

import (
	"context"
	"sync"

	"github.com/go-logr/logr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// fakeEngine has what its caches have, and serves nothing. It stands for caches that are behind, which no server makes on
// demand.
type fakeEngine struct {
	Engine
	objects, secondary cache.Indexer
	enqueued           []dynamiccontroller.ObjectIdentifiers
	statuses           []dynamiccontroller.TypeStatus
}

func newFakeEngine() *fakeEngine {
	index := func() cache.Indexer { return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}) }
	return &fakeEngine{objects: index(), secondary: index()}
}

func (e *fakeEngine) Lister(gvr schema.GroupVersionResource) (cache.GenericLister, error) {
	return cache.NewGenericLister(e.objects, gvr.GroupResource()), nil
}

func (e *fakeEngine) SecondaryLister(schema.GroupVersionResource, dynamiccontroller.WatchKey) (dynamiccontroller.SecondaryLister, error) {
	return fakeSecondary{cache.NewGenericLister(e.secondary, definitions.GroupResource())}, nil
}

func (e *fakeEngine) Enqueue(ids ...dynamiccontroller.ObjectIdentifiers) {
	e.enqueued = append(e.enqueued, ids...)
}

func (e *fakeEngine) Status() []dynamiccontroller.TypeStatus { return e.statuses }

func (e *fakeEngine) StartServingGVK(context.Context, schema.GroupVersionResource, dynamiccontroller.Handler, ...dynamiccontroller.ServeOption) error {
	return nil
}

func (e *fakeEngine) StopServiceGVK(context.Context, schema.GroupVersionResource) error { return nil }

type fakeSecondary struct{ cache.GenericLister }

func (s fakeSecondary) OwnedBy(owner types.UID) (owned []runtime.Object, err error) {
	all, err := s.List(labels.Everything())
	for _, object := range all {
		if m, ok := object.(metav1.Object); ok {
			if controller := metav1.GetControllerOf(m); controller != nil && controller.UID == owner {
				owned = append(owned, object)
			}
		}
	}
	return owned, err
}

type fakeMapper struct{ *meta.DefaultRESTMapper }

func (fakeMapper) HasSynced() bool { return true }

// fakeSchemas says the same of all kinds.
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

var everything = map[string]bool{"get": true, "list": true, "watch": true, "create": true, "patch": true, "delete": true}

// storedObjects are the ControllerRevisions that function stored has made, by UID.
var storedObjects sync.Map

// storedClient reads ControllerRevisions of which the cache has the revision.
type storedClient struct {
	dynamic.Interface
	cached cache.Indexer
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
	cached cache.Indexer
}

func (r storedReader) Namespace(string) dynamic.ResourceInterface { return r }

func (r storedReader) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*unstructured.Unstructured, error) {
	for _, object := range r.cached.List() {
		if known, ok := object.(*revision); ok && known.Name == name {
			if there, has := storedObjects.Load(known.UID); has {
				return there.(*unstructured.Unstructured).DeepCopy(), nil
			}
		}
	}
	return nil, apierrors.NewNotFound(controllerRevisions.GroupResource(), name)
}

// fakePlatform has these Blueprints, CustomResourceDefinitions and kinds.
func fakePlatform(objects []*unstructured.Unstructured, crds []*apiextensionsv1.CustomResourceDefinition, kinds ...schema.GroupVersionKind) (*Platform, fakeMapper) {
	engine, mapper := newFakeEngine(), fakeMapper{meta.NewDefaultRESTMapper(nil)}
	for _, object := range objects {
		_ = engine.objects.Add(object)
	}
	for _, crd := range crds {
		_ = engine.secondary.Add(crd)
	}
	for _, kind := range kinds {
		mapper.Add(kind, meta.RESTScopeNamespace)
	}
	return &Platform{
		log: logr.Discard(), options: Options{Namespace: "system"}, engines: Engines{Definitions: engine, Instances: engine}, mapper: mapper, schemas: &fakeSchemas{},
		registry: newRegistry(), rights: newRights(&answers{allowed: everything}),
		client: storedClient{dynamic.NewForConfigOrDie(&rest.Config{Host: "http://127.0.0.1:1"}), engine.secondary},
	}, mapper
}
