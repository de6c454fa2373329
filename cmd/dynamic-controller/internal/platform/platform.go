package platform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/acceptance"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/events"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

// Engines contains the two engines of the platform.
type Engines struct {
	// Definitions serves Blueprints. It runs on every replica and does not write to the API server.
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
	// Disabled lists the features that Blueprints cannot use.
	Disabled []acceptance.Feature
}

// Platform serves Blueprints.
type Platform struct {
	*acceptance.Controller
	log  logr.Logger
	crds clientset.Interface
}

// New returns a Platform. It does not connect to the API server. fenced is used for all writes, which only the leader
// makes. cfg is used on every replica to read schemas and to review the platform's permissions. record records events
// and can be nil.
func New(
	log logr.Logger, engines Engines, mapper acceptance.Mapper, cfg, fenced *rest.Config, options Options,
	record func(events.Event),
) (*Platform, error) {
	client, err1 := dynamic.NewForConfig(fenced)
	crds, err2 := clientset.NewForConfig(fenced)
	meta, err3 := metadata.NewForConfig(fenced)
	reviews, err4 := authorizationv1.NewForConfig(cfg)
	schemas, err5 := acceptance.NewOpenAPISchemas(cfg)
	identities, err6 := identity.New(fenced, identity.Options{
		Namespace: options.Namespace, DefaultServiceAccount: options.DefaultServiceAccount,
		AllowPlatformIdentity: options.AllowPlatformIdentity,
	})
	if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
		return nil, fmt.Errorf("create the platform's clients: %w", err)
	}
	return &Platform{log: log, crds: crds, Controller: acceptance.New(acceptance.Config{
		Log: log, Definitions: engines.Definitions, Instances: engines.Instances, Mapper: mapper, Schemas: schemas,
		Reviews: reviews.SelfSubjectAccessReviews(), Client: client, CRDs: crds, Metadata: meta,
		Identities: identities,
		Namespace:  options.Namespace, Namespaces: options.Namespaces, MaxMemory: options.MaxBlueprintMemory,
		Disabled: options.Disabled, Record: record,
	})}, nil
}

// Install applies the Blueprint CustomResourceDefinition, with retries, and then waits until ctx is cancelled. Only
// the leader calls it.
func (p *Platform) Install(ctx context.Context) error {
	const first, last = 100 * time.Millisecond, 30 * time.Second
	for delay := first; ctx.Err() == nil; delay = min(2*delay, last) {
		var retry <-chan time.Time // nil after success
		if err := p.install(ctx); err != nil && ctx.Err() == nil {
			p.log.Error(err, "Blueprint CustomResourceDefinition not applied, will retry")
			retry = time.After(delay)
		}
		select {
		case <-ctx.Done():
		case <-retry:
		}
	}
	return nil
}

func (p *Platform) install(ctx context.Context) error {
	crd, err := blueprint.Manifest()
	if err != nil {
		return err
	}
	// The zero value of the status must not be applied.
	data, err := json.Marshal(map[string]any{
		"apiVersion": crd.APIVersion, "kind": crd.Kind, "metadata": map[string]any{"name": crd.Name}, "spec": crd.Spec,
	})
	if err != nil {
		return err
	}
	_, err = p.crds.ApiextensionsV1().CustomResourceDefinitions().Patch(ctx, crd.Name, types.ApplyPatchType, data,
		metav1.PatchOptions{FieldManager: instances.Name, Force: ptr.To(true)})
	if err != nil {
		return fmt.Errorf("apply the CustomResourceDefinition %s: %w", crd.Name, err)
	}
	return nil
}
