package platform

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/published"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

// Engine is what the platform needs of a [dynamiccontroller.DynamicController].
type Engine interface {
	StartServingGVK(ctx context.Context, gvr schema.GroupVersionResource, handler dynamiccontroller.Handler, opts ...dynamiccontroller.ServeOption) error
	StopServiceGVK(ctx context.Context, gvr schema.GroupVersionResource) error
	Lister(gvr schema.GroupVersionResource) (cache.GenericLister, error)
	SecondaryLister(gvr schema.GroupVersionResource, key dynamiccontroller.WatchKey) (dynamiccontroller.SecondaryLister, error)
	Enqueue(ids ...dynamiccontroller.ObjectIdentifiers)
	Status() []dynamiccontroller.TypeStatus
}

// Engines are the two controllers that the platform is made of.
type Engines struct {
	// Definitions serves Blueprints. It runs on every replica and writes nothing.
	Definitions Engine
	// Instances serves the types of Blueprints, and Blueprints to write what became of them. Its watches run on every
	// replica, and its workers on the leader.
	Instances Engine
}

// Mapper tells which kinds there are, and when that changes.
type Mapper interface {
	meta.RESTMapper
	HasSynced() bool
}

// Schemas describes the objects of kinds that have no CustomResourceDefinition: see [published.Schemas].
type Schemas interface {
	For(ctx context.Context, kind schema.GroupVersionKind) (described common.Schema, name string, err error)
	Changed(group string)
}

// Platform serves Blueprints. It writes nothing unless the engine of instances runs.
type Platform struct {
	log      logr.Logger
	options  Options
	engines  Engines
	mapper   Mapper
	schemas  Schemas
	registry *registry
	rights   *rights
	client   dynamic.Interface
	crds     clientset.Interface
	status   statusWriter
	// bare reads objects without what they say, of which there may be many and large.
	bare    metadata.Interface
	claims  claims
	counts  pace // of instances counted
	ends    pace // of ends looked at
	told    pace // of ends told
	defined defined
	unnamed unnamedKinds
	// compiling is held while a Blueprint is compiled, which needs many times the memory of the result.
	compiling sync.Mutex
}

// New returns a platform. What the leader writes is written with the fenced config; the other is asked what the platform
// may do, by every replica.
func New(log logr.Logger, engines Engines, mapper Mapper, cfg, fenced *rest.Config, options Options) (*Platform, error) {
	if err := options.validate(); err != nil {
		return nil, err
	}
	client, err1 := dynamic.NewForConfig(fenced)
	crds, err2 := clientset.NewForConfig(fenced)
	bare, err3 := metadata.NewForConfig(fenced)
	reviews, err4 := authorizationv1.NewForConfig(cfg)
	asking, err5 := discovery.NewDiscoveryClientForConfig(cfg)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return nil, fmt.Errorf("make the platform's clients: %w", err)
	}
	return &Platform{
		log: log, options: options, engines: engines, mapper: mapper, registry: newRegistry(),
		schemas: published.New(openapi.NewClientWithContext(asking.RESTClient())),
		rights:  newRights(reviews.SelfSubjectAccessReviews()),
		client:  client, crds: crds, bare: bare, status: statusWriter{client: client},
	}, nil
}

// Serve makes the engines serve Blueprints from their runs on.
func (p *Platform) Serve(ctx context.Context) error {
	deciding := p.engines.Definitions.StartServingGVK(ctx, blueprints, p.decide, p.watchCRDs(), p.watchRevisions())
	keeping := p.engines.Instances.StartServingGVK(ctx, blueprints,
		handlers.Object(handlers.Cached(p.engines.Instances.Lister),
			handlers.Finalizer(p.client, finalizer, p.cleanUp, p.keep),
			func(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
				for _, pace := range []*pace{&p.counts, &p.ends, &p.told} {
					pace.forget(id.Name())
				}
				p.unnamed.forget(id.Name())
				return nil
			}))
	return errors.Join(deciding, keeping)
}

// watchCRDs reads CustomResourceDefinitions beside Blueprints, and brings back those that depend on one that changes.
func (p *Platform) watchCRDs() dynamiccontroller.Watch {
	return dynamiccontroller.Watches(definitions, func(_ context.Context, crd dynamiccontroller.Object) []string {
		_, group, _ := strings.Cut(crd.GetName(), ".")
		return p.registry.inType(crd.GetName(), group)
	}, dynamiccontroller.WithCache(dynamiccontroller.CacheFull), dynamiccontroller.WithTransform(slim))
}

// KindChanged is to be told of each kind that begins, changes or ends to be served.
func (p *Platform) KindChanged(kind schema.GroupKind) {
	p.schemas.Changed(kind.Group)
	for _, name := range p.registry.inKind(kind) {
		p.engines.Definitions.Enqueue(blueprintID(name))
	}
}
