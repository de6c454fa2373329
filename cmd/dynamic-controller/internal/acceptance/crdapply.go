package acceptance

import (
	"context"
	"fmt"
	"maps"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

// crdApplier creates, updates and deletes the CustomResourceDefinitions of Blueprints.
type crdApplier struct {
	crds   apiextensionsclient.CustomResourceDefinitionInterface
	client dynamic.Interface
	cache  cache
}

// outdated returns the CustomResourceDefinition to apply for a Blueprint and the cached one, which is nil if it does
// not exist. wanted is nil if there is nothing to apply. If the newest generation is rejected, the
// CustomResourceDefinition is that of the served generation.
func (a *crdApplier) outdated(
	b *blueprint.Blueprint, d decision,
) (wanted, current *apiextensionsv1.CustomResourceDefinition, err error) {
	if d.rejection != nil && !d.cleansUpOnly() {
		return a.damaged(b, d)
	}
	return a.different(b, d, d.crd, d.digest)
}

// damaged is like outdated, but returns the CustomResourceDefinition of the served generation: others may have deleted
// or changed it. It is not applied if it would change the schema in an incompatible way, because the schema may be that
// of a later generation that was applied but could not be stored.
func (a *crdApplier) damaged(
	b *blueprint.Blueprint, d decision,
) (wanted, current *apiextensionsv1.CustomResourceDefinition, err error) {
	if d.cleansUpOnly() {
		return nil, nil, nil
	}
	wanted, current, err = a.different(b, d, d.running.crd, d.running.digest)
	if current != nil && !isCompatible(current, wanted, d.running.digest) {
		return nil, nil, nil
	}
	return wanted, current, err
}

// different returns crd with the platform's annotations, and the cached CustomResourceDefinition, which is nil if it
// does not exist. wanted is nil if both are equal, or if crd is nil.
func (a *crdApplier) different(
	b *blueprint.Blueprint, d decision, crd *apiextensionsv1.CustomResourceDefinition, digest string,
) (wanted, current *apiextensionsv1.CustomResourceDefinition, err error) {
	if crd == nil || d.deleting {
		return nil, nil, nil
	}
	wanted = crd.DeepCopy()
	wanted.Annotations = map[string]string{
		ownerNameAnnotation: b.Name, ownerUIDAnnotation: string(b.UID), schemaAnnotation: digest,
	}
	current, err = a.cache.crd(wanted.Name)
	if err != nil || current == nil {
		return wanted, nil, err
	}
	if isUpToDate(wanted, current) {
		return nil, nil, nil
	}
	return wanted, current, nil
}

// apply creates or updates a CustomResourceDefinition. It returns false if the cached CustomResourceDefinition or the
// cached Blueprint is outdated. An event then triggers another reconcile. It therefore first reads the Blueprint from
// the API server: the cache of a new leader can contain an earlier generation, or a Blueprint that has been deleted.
// Nothing would delete a CustomResourceDefinition that is created for a deleted Blueprint.
func (a *crdApplier) apply(
	ctx context.Context, b *blueprint.Blueprint, wanted, current *apiextensionsv1.CustomResourceDefinition,
) (applied bool, err error) {
	if is, err := isCurrent(ctx, a.client, b); err != nil || !is {
		return false, err
	}
	if current == nil {
		return a.create(ctx, wanted)
	}
	if !isReservedFor(current, b) {
		return false, nil
	}
	// The cache omits annotations that the platform does not read. Read the live object, so that the update keeps these
	// annotations.
	next, err := a.crds.Get(ctx, wanted.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && next.ResourceVersion != current.ResourceVersion {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the CustomResourceDefinition: %w", err)
	}
	next.Spec = wanted.Spec
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	maps.Copy(next.Annotations, wanted.Annotations)
	_, err = a.crds.Update(ctx, next, metav1.UpdateOptions{FieldManager: instances.Name})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("update the CustomResourceDefinition: %w", err)
	}
	return true, nil
}

// create creates a CustomResourceDefinition unless it already exists.
func (a *crdApplier) create(
	ctx context.Context, wanted *apiextensionsv1.CustomResourceDefinition,
) (created bool, err error) {
	_, err = a.crds.Create(ctx, wanted, metav1.CreateOptions{FieldManager: instances.Name})
	if apierrors.IsAlreadyExists(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("create the CustomResourceDefinition: %w", err)
	}
	return true, nil
}

// isUpToDate reports whether current already matches wanted, so that no update is needed. If the API server changes a
// value when it stores the object, isUpToDate always returns false, and each reconcile sends an update without effect.
func isUpToDate(wanted, current *apiextensionsv1.CustomResourceDefinition) bool {
	for key, value := range wanted.Annotations {
		if current.Annotations[key] != value {
			return false
		}
	}
	wanted, current = wanted.DeepCopy(), current.DeepCopy()
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(wanted)
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(current)
	return equality.Semantic.DeepEqual(wanted.Spec, current.Spec)
}

// isOwned reads a CustomResourceDefinition from the API server and reports whether it was created for the Blueprint
// with the given UID.
func (a *crdApplier) isOwned(ctx context.Context, name string, uid types.UID) (bool, error) {
	current, err := a.crds.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the CustomResourceDefinition %s: %w", name, err)
	}
	return isOwnedBy(current, uid), nil
}

// release removes the Blueprint's UID from its CustomResourceDefinition. The CustomResourceDefinition then remains
// reserved for later Blueprints with the same name.
func (a *crdApplier) release(ctx context.Context, name string, uid types.UID) error {
	current, err := a.crds.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && !isOwnedBy(current, uid) {
		return nil
	}
	if err == nil {
		delete(current.Annotations, ownerUIDAnnotation)
		_, err = a.crds.Update(ctx, current, metav1.UpdateOptions{FieldManager: instances.Name})
	}
	if err != nil {
		return fmt.Errorf("release the CustomResourceDefinition %s: %w", name, err)
	}
	return nil
}

// delete deletes a CustomResourceDefinition if it was created for the Blueprint with the given UID. gone reports
// whether no such CustomResourceDefinition exists any longer.
func (a *crdApplier) delete(ctx context.Context, name string, uid types.UID) (gone bool, err error) {
	current, err := a.crds.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && !isOwnedBy(current, uid):
		return true, nil
	case err == nil && current.DeletionTimestamp == nil:
		err = a.crds.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
			UID: ptr.To(current.UID), ResourceVersion: ptr.To(current.ResourceVersion),
		}})
	}
	if err != nil {
		return false, fmt.Errorf("delete the CustomResourceDefinition %s: %w", name, err)
	}
	return false, nil
}
