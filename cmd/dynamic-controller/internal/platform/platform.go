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
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

// Engines are the two controllers of the platform.
type Engines struct {
	// Definitions serves Blueprints. It runs on every replica and does not write to the API server.
	Definitions instances.Engine
	// Instances serves the types of Blueprints. It also serves Blueprints, for the writes that they require. Its watches
	// run on every replica, and its workers on the leader.
	Instances instances.Engine
}

// Platform serves Blueprints.
type Platform struct {
	*acceptance.Controller
	log  logr.Logger
	crds clientset.Interface
}

// New returns a Platform. It does not connect to the API server. fenced is used for all writes, which are made only by
// the leader. cfg is used by every replica to read schemas and to review the platform's permissions.
func New(
	log logr.Logger, engines Engines, mapper acceptance.Mapper, cfg, fenced *rest.Config, options Options,
) (*Platform, error) {
	if err := options.validate(); err != nil {
		return nil, err
	}
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
	})}, nil
}

// Install applies the CustomResourceDefinition of Blueprints, with retries, and then waits until ctx is cancelled. It
// is called on the leader.
func (p *Platform) Install(ctx context.Context) error {
	const first, last = 100 * time.Millisecond, 30 * time.Second
	for wait := first; ; wait = min(2*wait, last) {
		err := p.install(ctx)
		if err == nil {
			<-ctx.Done()
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		p.log.Error(err, "CustomResourceDefinition of Blueprints not applied, will retry")
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

func (p *Platform) install(ctx context.Context) error {
	crd, err := blueprint.Manifest()
	if err != nil {
		return err
	}
	// The zero status of the Go type must not be applied.
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
