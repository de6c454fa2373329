package handlers

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Claim makes the children of an owner those that its selector matches, by the rules of Kubernetes' ControllerRefManager:
//
//   - What has another controller is left alone.
//   - What the owner controls and the selector no longer matches is released: its owner reference is removed.
//   - What nobody controls and the selector matches is adopted, unless it is being deleted, or the owner is, or it is
//     in another namespace than the owner. Before the first adoption the owner is read from the API server itself: one
//     that is being deleted or was made anew since adopts nothing.
//
// It is for children that have no fixed names, of generateName for instance; what has a name is better off with
// [Children]. It is safe for concurrent use.
//
// It writes metadata.ownerReferences, by a patch that is refused if the child changed since it was looked at. It needs
// patch and get on the children's type and get on the owner's; where the admission plugin
// OwnerReferencesPermissionEnforcement is on, also delete on the children's type, without which nobody may change who owns an
// object, and update on the owner's finalizers subresource, for the reference has blockOwnerDeletion.
type Claim struct {
	Client       dynamic.Interface
	FieldManager string
	// Selector must not be empty: it would match everybody's objects.
	Selector labels.Selector
}

// Objects returns those candidates that the owner controls when it is done. A candidate that failed does not keep it from
// the others: the error joins what went wrong, by object. A candidate that is gone, or no longer what it was when it was
// read, is not claimed, without an error in the first case.
func (c Claim) Objects(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, owner *unstructured.Unstructured, gvr schema.GroupVersionResource, candidates []*unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	if c.Selector == nil || c.Selector.Empty() {
		return nil, errors.New("claim objects: Claim.Selector is empty, and would match everybody's objects")
	}
	mayAdopt := recheck(ctx, c.Client, id, owner)
	var claimed []*unstructured.Unstructured
	var errs []error
	for _, candidate := range candidates {
		now, err := c.claim(ctx, owner, gvr, candidate, mayAdopt)
		switch {
		case isGoneOrReplaced(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("claim %s for %s: %w", identify(gvr, candidate), id, err))
		case now != nil:
			claimed = append(claimed, now)
		}
	}
	return claimed, errors.Join(errs...)
}

// claim returns the candidate as it is then, or nil if it is not the owner's.
func (c Claim) claim(ctx context.Context, owner *unstructured.Unstructured, gvr schema.GroupVersionResource, candidate *unstructured.Unstructured, mayAdopt func() error) (*unstructured.Unstructured, error) {
	objects := resource(c.Client, gvr, candidate.GetNamespace())
	matches := c.Selector.Matches(labels.Set(candidate.GetLabels()))
	switch controller := metav1.GetControllerOfNoCopy(candidate); {
	case controller != nil && controller.UID != owner.GetUID():
		return nil, nil
	case controller != nil && matches:
		return candidate, nil
	case owner.GetDeletionTimestamp() != nil:
		return nil, nil
	case controller != nil:
		_, err := patchMetadata(ctx, objects, candidate, c.FieldManager, map[string]any{"ownerReferences": withoutOwner(candidate, owner)})
		return nil, err
	case !matches || candidate.GetDeletionTimestamp() != nil || !canOwn(owner, candidate.GetNamespace()):
		return nil, nil
	}
	if err := mayAdopt(); err != nil {
		return nil, err
	}
	refs, err := unstructuredRefs(append(withoutOwner(candidate, owner), controllerRef(owner)))
	if err != nil {
		return nil, err
	}
	return patchMetadata(ctx, objects, candidate, c.FieldManager, map[string]any{"ownerReferences": refs})
}

// recheck returns a func that reads the owner from the API server, once, and says why it may not adopt, if so.
func recheck(ctx context.Context, client dynamic.Interface, id dynamiccontroller.ObjectIdentifiers, owner *unstructured.Unstructured) func() error {
	asked, answer := false, error(nil)
	return func() error {
		if !asked {
			asked, answer = true, canAdopt(ctx, client, id, owner)
		}
		return answer
	}
}

func canAdopt(ctx context.Context, client dynamic.Interface, id dynamiccontroller.ObjectIdentifiers, owner *unstructured.Unstructured) error {
	now, err := Live(client).Get(ctx, id.GVR, id.Namespace(), id.Name())
	switch {
	case err != nil:
		return fmt.Errorf("read the owner anew before adopting: %s", err.Error()) // not wrapped: its NotFound is not the child's
	case now.GetUID() != owner.GetUID():
		// Not wrapped either.
		return fmt.Errorf("the owner may not adopt: %s: UID %s, not %s", errReplaced.Error(), now.GetUID(), owner.GetUID())
	case now.GetDeletionTimestamp() != nil:
		return errors.New("the owner may not adopt: it is being deleted")
	}
	return nil
}

// canOwn tells whether an owner reference from an object in the namespace, or in none, can hold.
func canOwn(owner metav1.Object, namespace string) bool {
	return owner.GetNamespace() == "" || owner.GetNamespace() == namespace
}

func controllerRef(owner *unstructured.Unstructured) metav1.OwnerReference {
	return *metav1.NewControllerRef(owner, owner.GroupVersionKind())
}

// withoutOwner is never nil: in a patch that would be no list, but the field's removal.
func withoutOwner(object, owner metav1.Object) []metav1.OwnerReference {
	left := []metav1.OwnerReference{}
	for _, ref := range object.GetOwnerReferences() {
		if ref.UID != owner.GetUID() {
			left = append(left, ref)
		}
	}
	return left
}

func unstructuredRefs(refs []metav1.OwnerReference) ([]any, error) {
	list := make([]any, len(refs))
	for i := range refs {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&refs[i])
		if err != nil {
			return nil, err
		}
		list[i] = content
	}
	return list, nil
}
