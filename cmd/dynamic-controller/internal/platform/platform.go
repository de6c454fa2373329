package platform

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/go-logr/logr"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/client-go/dynamic"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/acceptance"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/events"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/memory"
)

// Engines contains the two engines of the platform.
type Engines struct {
	// Definitions watches and checks Blueprints. It runs on every replica and does not write to the API server.
	Definitions instances.Engine
	// Instances serves the types of Blueprints. It also serves Blueprints themselves to write their statuses, revisions
	// and CustomResourceDefinitions. Its watches run on every replica, and its workers only on the leader.
	Instances instances.Engine
}

// Options contains the operator's settings for the platform. New does not validate them.
type Options struct {
	// Namespace is the platform's own namespace. It is required. Anyone who can write to it is trusted as much as the
	// operator.
	Namespace string
	// Namespaces lists the namespaces to which instances and their children are limited. An empty list means no limit.
	Namespaces []string
	// DefaultServiceAccount is the name of the ServiceAccount for Blueprints without spec.serviceAccountName.
	DefaultServiceAccount string
	// AllowPlatformIdentity allows Blueprints without a ServiceAccount. They run as the platform itself.
	AllowPlatformIdentity bool
	// MaxBlueprintMemory is the maximum estimated memory of all Blueprints together, in bytes. 0 means no limit.
	MaxBlueprintMemory int64
	// InstanceMemory is the memory that the reconciles of instances can hold together, in bytes. 0 means no limit. Workers
	// is the maximum number of concurrent reconciles. It is not used without a limit.
	InstanceMemory int64
	Workers        int
	// Disabled lists the features that Blueprints cannot use.
	Disabled []acceptance.Feature
}

// Platform serves Blueprints.
type Platform struct {
	*acceptance.Controller
	log  logr.Logger
	crds clientset.Interface
}

// instanceMemory returns the budget of all reconciles of instances, or nil if there is no limit.
func (o Options) instanceMemory() *memory.Budget {
	if o.InstanceMemory == 0 {
		return nil
	}
	return memory.NewBudget(o.InstanceMemory, o.Workers)
}

// New returns a Platform. It does not connect to the API server. fenced is used for all writes, which only the leader
// makes. cfg is used on every replica to read schemas and to review the platform's permissions. record records events
// and can be nil.
func New(
	log logr.Logger, engines Engines, mapper acceptance.Mapper, cfg, fenced *rest.Config, options Options,
	record func(events.Event),
) (*Platform, error) {
	contents := rest.CopyConfig(fenced)
	contents.Wrap(func(base http.RoundTripper) http.RoundTripper { return memory.Transport{RoundTripper: base} })
	reduced := rest.CopyConfig(fenced)
	reduced.Wrap(func(base http.RoundTripper) http.RoundTripper {
		return memory.Transport{RoundTripper: base, Reduce: instances.Reduce, ReduceItem: instances.ReduceItem}
	})
	client, err1 := dynamic.NewForConfig(contents)
	instanceClient, err7 := dynamic.NewForConfig(reduced)
	crds, err2 := clientset.NewForConfig(fenced)
	meta, err3 := metadata.NewForConfig(fenced)
	reviews, err4 := authorizationv1.NewForConfig(cfg)
	schemas, err5 := acceptance.NewOpenAPISchemas(cfg)
	identities, err6 := identity.New(fenced, identity.Options{
		Namespace: options.Namespace, DefaultServiceAccount: options.DefaultServiceAccount,
		AllowPlatformIdentity: options.AllowPlatformIdentity,
	})
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7); err != nil {
		return nil, fmt.Errorf("create the platform's clients: %w", err)
	}
	return &Platform{log: log, crds: crds, Controller: acceptance.New(acceptance.Config{
		Log: log, Definitions: engines.Definitions, Instances: engines.Instances, Mapper: mapper, Schemas: schemas,
		Reviews: reviews.SelfSubjectAccessReviews(), Client: client, InstanceClient: instanceClient,
		InstanceMemory: options.instanceMemory(), CRDs: crds, Metadata: meta,
		Identities: identities,
		Namespace:  options.Namespace, Namespaces: options.Namespaces, MaxMemory: options.MaxBlueprintMemory,
		Disabled: options.Disabled, Record: record,
	})}, nil
}
