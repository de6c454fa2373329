package acceptance

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/events"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/memory"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

// Mapper is a REST mapper that is populated in the background.
type Mapper interface {
	meta.RESTMapper
	HasSynced() bool
	// Verbs returns the verbs that the API server supports for a resource.
	Verbs(schema.GroupVersionResource) ([]string, error)
}

// Schemas provides the published schemas of kinds that have no CustomResourceDefinition.
type Schemas interface {
	For(ctx context.Context, kind schema.GroupVersionKind) (described common.Schema, name string, err error)
	Changed(group string)
}

// Identities resolves the identities of Blueprints and of instances. It is implemented by [identity.Manager].
type Identities interface {
	instances.Identities
	ServiceAccountName(name string) (string, *identity.Rejection)
}

// Config configures a [Controller]. All fields except Namespaces, MaxMemory, Disabled and Record are
// required.
type Config struct {
	Log logr.Logger
	// Definitions is the engine that serves Blueprints on every replica.
	Definitions instances.Engine
	// Instances is the engine that serves the types of Blueprints. Its workers run on the leader only.
	Instances instances.Engine
	Mapper    Mapper
	Schemas   Schemas
	// Reviews creates the SelfSubjectAccessReviews that check the permissions of the platform.
	Reviews Reviewer
	// Client, CRDs and Metadata are the clients that the leader uses.
	Client     dynamic.Interface
	CRDs       clientset.Interface
	Metadata   metadata.Interface
	Identities Identities
	// Namespace is the platform's own namespace.
	Namespace string
	// Namespaces lists the namespaces to which instances and children are limited. An empty list means no limit.
	Namespaces []string
	// MaxMemory is the maximum estimated memory of all Blueprints together, in bytes. 0 means no limit.
	MaxMemory int64
	// InstanceClient is like Client, but its responses can lack the content of large objects. Defaults to Client.
	InstanceClient dynamic.Interface
	// InstanceMemory limits the memory of all reconciles of instances together. If it is nil, there is no limit.
	InstanceMemory *memory.Budget
	// Disabled lists the features that Blueprints cannot use.
	Disabled []Feature
	// Record records events about Blueprints and instances.
	Record func(events.Event)
}

// Controller validates Blueprints, and starts and stops reconciling their instances.
type Controller struct {
	config      Config
	registry    *registry
	definitions *definitionReconciler
	blueprints  *blueprintReconciler
}

// New returns a Controller. It does not connect to the API server.
func New(c Config) *Controller {
	if c.Record == nil {
		c.Record = func(events.Event) {}
	}
	r, cached := newRegistry(), cache{c.Definitions, c.Namespace}
	claims := &claims{cache: cached, registry: r, decoded: &decodedClaims{}}
	kinds := kindFinder{c.Mapper, c.Mapper.Verbs}
	store := &historyStore{cache: cached, client: c.Client, namespace: c.Namespace, kinds: kinds, instances: c.Instances}
	crds := &crdApplier{c.CRDs.ApiextensionsV1().CustomResourceDefinitions(), c.Client, cached}
	status := &statusReporter{
		writer: instances.NewConditions(c.Client, instances.StatusManager, recorder(c.Record).recordConditions),
		engine: c.Instances, cache: cached,
	}
	instanceClient := c.InstanceClient
	if instanceClient == nil {
		instanceClient = c.Client
	}
	clients := instances.Clients{
		Engine: c.Instances, Client: instanceClient, Contents: c.Client, Mapper: c.Mapper, Identities: c.Identities,
		Namespaces: c.Namespaces, Memory: c.InstanceMemory, Record: c.Record,
	}
	return &Controller{
		config: c, registry: r,
		definitions: &definitionReconciler{
			log: c.Log, definitions: c.Definitions, mapper: c.Mapper, registry: r, cache: cached, store: store,
			clients: clients,
			validator: &validator{
				log: c.Log, kinds: kinds, schemas: c.Schemas, crd: cached.crd, claims: claims,
				reviews: newAccessReviews(c.Reviews), identities: c.Identities, namespaces: c.Namespaces, disabled: c.Disabled,
				memory: &memoryBudget{limit: c.MaxMemory, claims: claims}, compiling: &sync.Mutex{},
			},
		},
		blueprints: &blueprintReconciler{
			logged: decisionLog{logged: map[string]loggedDecision{}}, definitions: c.Definitions, registry: r, store: store,
			crds: crds, status: status,
			teardown: &teardown{
				registry: r, client: c.Client, metadata: c.Metadata, crds: crds, store: store, status: status,
				namespacesOf: clients.NamespacesOf,
			},
		},
	}
}

// Serve starts serving Blueprints with both engines.
func (c *Controller) Serve(ctx context.Context) error {
	b := c.blueprints
	handler := b.teardown.reportFailures(handlers.Finalizer(handlers.FinalizerConfig{
		Client: c.config.Client, Name: finalizer, Reconcile: b.reconcile, Cleanup: b.teardown.cleanUp,
	}))
	return errors.Join(
		c.config.Definitions.StartServingGVK(ctx, blueprints, c.definitions.reconcile,
			watchCRDs(c.registry), watchRevisions(c.config.Namespace, c.registry)),
		c.config.Instances.StartServingGVK(ctx, blueprints,
			handlers.Object(handlers.Cached(c.config.Instances.Lister), handler, b.gone)),
	)
}

// EndTerm must be called when all reconciles of the Instances engine in a term have returned.
func (c *Controller) EndTerm() { c.blueprints.logged.reset() }

// KindChanged must be called when a kind starts or stops being served, or changes.
func (c *Controller) KindChanged(kind schema.GroupKind) {
	c.config.Schemas.Changed(kind.Group)
	c.definitions.enqueue(c.registry.dependentsOfKind(kind), "")
}

// watchCRDs returns a watch of CustomResourceDefinitions. A change to a CustomResourceDefinition triggers a reconcile
// of the Blueprints that depend on it.
func watchCRDs(r *registry) dynamiccontroller.Watch {
	return dynamiccontroller.Watches(definitions, func(_ context.Context, crd dynamiccontroller.Object) []string {
		_, group, _ := strings.Cut(crd.GetName(), ".")
		return r.dependentsOfCRD(crd.GetName(), group)
	}, dynamiccontroller.WithCache(dynamiccontroller.CacheFull), dynamiccontroller.WithTransform(typedCRD))
}

// watchRevisions returns a watch of the stored revisions. A change to a revision triggers a reconcile of its Blueprint
// and of all Blueprints that claim the same type.
func watchRevisions(namespace string, r *registry) dynamiccontroller.Watch {
	stored, err := labels.NewRequirement(blueprintLabel, selection.Exists, nil)
	if err != nil {
		panic(err) // the key is a constant
	}
	return dynamiccontroller.Watches(controllerRevisions, func(_ context.Context, o dynamiccontroller.Object) []string {
		changed, ok := o.Object().(*revision)
		if !ok {
			return nil // malformed; readRevision has returned an error, which was logged
		}
		return append(r.rivals(changed.blueprint), changed.blueprint)
	}, dynamiccontroller.WithNamespaces(namespace),
		dynamiccontroller.WithLabelSelector(labels.NewSelector().Add(*stored)),
		dynamiccontroller.WithCache(dynamiccontroller.CacheFull), dynamiccontroller.WithTransform(readRevision))
}
