package handlers

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/internal/live"
	"github.com/dynamic-controller/engine/handlers/internal/ownerref"
	"github.com/dynamic-controller/engine/handlers/internal/patch"
)

// ClaimerConfig configures a [Claimer]. All fields are required.
type ClaimerConfig struct {
	Client       dynamic.Interface
	FieldManager string
	// Selector matches the children of an owner. It must not be empty, because it would match all objects.
	Selector labels.Selector
}

// Claimer adopts and releases objects by their labels. It follows the rules of Kubernetes' ControllerRefManager:
//
//   - An object with another controller is not changed.
//   - If the owner is the controller of an object that no longer matches the selector, the object is released: its
//     reference to the owner is removed.
//   - An object that matches the selector and has no controller is adopted, unless the object or the owner is being
//     deleted, or the object's namespace differs from the owner's. Before the first adoption, the owner is read from
//     the API server. If the owner is being deleted or has been recreated, nothing is adopted.
//
// Use a Claimer for children without fixed names, such as those with a generateName. For children with fixed names, use
// children.Reconciler. A Claimer is safe for concurrent use.
//
// A Claimer changes metadata.ownerReferences with a patch that the API server rejects if the child has changed since it
// was read. It needs get and patch on the type of the children, and get on the type of the owner. If the admission
// plugin OwnerReferencesPermissionEnforcement is enabled, it needs two more permissions: delete on the type of the
// children, which is required to change an object's owners; and update on the finalizers subresource of the owner,
// because the owner references set blockOwnerDeletion.
type Claimer struct{ config ClaimerConfig }

// NewClaimer returns a Claimer. The error lists all invalid fields of config.
func NewClaimer(config ClaimerConfig) (*Claimer, error) {
	var errs []error
	if config.Client == nil {
		errs = append(errs, errors.New("handlers: ClaimerConfig.Client: must not be nil"))
	}
	if config.FieldManager == "" {
		errs = append(errs, errors.New("handlers: ClaimerConfig.FieldManager: must not be empty"))
	}
	if config.Selector == nil || config.Selector.Empty() {
		errs = append(errs,
			errors.New("handlers: ClaimerConfig.Selector: must not be empty, because it would match all objects"))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return &Claimer{config: config}, nil
}

// Claim adopts and releases candidates of a type and returns those that the owner controls afterwards. It skips
// candidates that no longer exist, and continues after an error. The returned error joins the errors for all
// candidates, each of which names its object. The error for a candidate is a conflict if the candidate has changed
// since it was read.
func (c *Claimer) Claim(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, owner *unstructured.Unstructured,
	gvr schema.GroupVersionResource, candidates []*unstructured.Unstructured,
) ([]*unstructured.Unstructured, error) {
	canAdopt := live.CanAdoptFunc(ctx, c.config.Client, id, owner)
	var claimed []*unstructured.Unstructured
	var errs []error
	for _, candidate := range candidates {
		now, err := c.claim(ctx, owner, gvr, candidate, canAdopt)
		switch {
		case patch.IsGone(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("claim %s for %s: %w", live.Identify(gvr, candidate), id, err))
		case now != nil:
			claimed = append(claimed, now)
		}
	}
	return claimed, errors.Join(errs...)
}

// claim returns the latest known version of the candidate, or nil if the owner is not its controller.
func (c *Claimer) claim(
	ctx context.Context, owner *unstructured.Unstructured, gvr schema.GroupVersionResource,
	candidate *unstructured.Unstructured, canAdopt func() error,
) (*unstructured.Unstructured, error) {
	objects := live.Resource(c.config.Client, gvr, candidate.GetNamespace())
	matches := c.config.Selector.Matches(labels.Set(candidate.GetLabels()))
	switch controller := metav1.GetControllerOfNoCopy(candidate); {
	case controller != nil && controller.UID != owner.GetUID():
		return nil, nil
	case controller != nil && matches:
		return candidate, nil
	case owner.GetDeletionTimestamp() != nil:
		return nil, nil
	case controller != nil:
		changes := map[string]any{"ownerReferences": ownerref.Without(candidate, owner)}
		_, err := patch.Metadata(ctx, objects, candidate, c.config.FieldManager, changes)
		return nil, err
	case !matches || candidate.GetDeletionTimestamp() != nil || !ownerref.CanReach(owner, candidate.GetNamespace()):
		return nil, nil
	}
	if err := canAdopt(); err != nil {
		return nil, err
	}
	refs, err := ownerref.WithController(candidate, owner)
	if err != nil {
		return nil, err
	}
	changes := map[string]any{"ownerReferences": refs}
	return patch.Metadata(ctx, objects, candidate, c.config.FieldManager, changes)
}
