package children

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/internal/live"
	"github.com/dynamic-controller/engine/handlers/internal/ownerref"
	"github.com/dynamic-controller/engine/handlers/internal/patch"
)

// If a parent is deleted and its dependents are orphaned, the garbage collector removes the owner references to the
// parent, and then the parent's orphan finalizer. Afterwards, the parent looks as if its dependents were to be deleted.
// The owner references are the only difference: unless dependents are orphaned, they remain while the parent exists.
// Marked children have no owner reference. A parent with such children is therefore given a witness, a ConfigMap with
// an owner reference. The annotation <name>/witness on the parent contains the parent's UID once the witness exists.
// The annotation of a parent that was restored from a backup contains another UID.

// witnessName returns the name of the parent's witness. Each controller of the parent has a witness of its own.
func (c *call) witnessName() string {
	return "children-of-" + string(c.parent.GetUID()) + "-" + identityLabel(c.config.Name)[:8]
}

// ensureWitness creates the parent's witness, unless this run has found that it exists. It returns errParentGone
// instead of adding the owner reference for a parent that is being deleted, whose dependents can be orphaned already.
func (c *call) ensureWitness(ctx context.Context) error {
	if c.cache.witness == c.parent.GetUID() {
		return nil
	}
	version := createOnlyVersion
	witness, err := c.readWitness(ctx)
	if err == nil {
		version = witness.GetResourceVersion()
	}
	if apierrors.IsNotFound(err) || err == nil && !ownerref.Refers(witness, c.parent) {
		if _, err = c.readParent(ctx); err == nil {
			err = c.writeWitness(ctx, version)
		}
	}
	if err != nil {
		return fmt.Errorf("the ConfigMap %s/%s, which is required before children in other namespaces: %w",
			c.parent.GetNamespace(), c.witnessName(), err)
	}
	c.cache.witness = c.parent.GetUID()
	return nil
}

// isWitnessed reports whether the annotation of a parent shows that its witness has existed.
func (c *call) isWitnessed(parent metav1.Object) bool {
	return parent.GetAnnotations()[c.witnessKey()] == string(c.parent.GetUID())
}

// checkWitness returns why the parent has no witness, without which a child must not be marked.
func (c *call) checkWitness(child *child) error {
	if child.needsWitness() {
		return c.witnessErr
	}
	return nil
}

func (c *call) witnesses() dynamic.ResourceInterface {
	return c.as.Client.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(c.parent.GetNamespace())
}

func (c *call) readWitness(ctx context.Context) (*unstructured.Unstructured, error) {
	return c.witnesses().Get(ctx, c.witnessName(), metav1.GetOptions{})
}

// writeWitness writes the witness if it still has the given resourceVersion.
func (c *call) writeWitness(ctx context.Context, version string) error {
	witness := &unstructured.Unstructured{Object: map[string]any{"data": map[string]any{
		"purpose": "Shows the controller of its owner whether the owner is deleted with --cascade=orphan.",
	}}}
	witness.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	witness.SetNamespace(c.parent.GetNamespace())
	witness.SetName(c.witnessName())
	witness.SetResourceVersion(version)
	parent := c.parent.GroupVersionKind()
	witness.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: parent.GroupVersion().String(), Kind: parent.Kind, Name: c.parent.GetName(), UID: c.parent.GetUID(),
	}})
	options := metav1.ApplyOptions{FieldManager: c.config.Name, Force: true}
	_, err := c.witnesses().Apply(ctx, witness.GetName(), witness, options)
	return err
}

// errOrphaned is returned instead of deleting marked children whose parent is deleted with orphaned dependents.
var errOrphaned = errors.New("the dependents of the parent were orphaned")

// ErrMaybeOrphaned is the [LeftBehind].Err of children that are kept because nothing shows how their parent was
// deleted.
var ErrMaybeOrphaned = fmt.Errorf("nothing shows whether %w", errOrphaned)

// namespaceDelay is less than the five seconds that pass between the deletion of a namespace and that of its objects. A
// parent that was deleted earlier was deleted by someone else. The clocks of API servers can differ.
const namespaceDelay = 3 * time.Second

// UnknownPropagationError is returned if a parent is being deleted, and the identity cannot read the ConfigMap that
// shows whether its dependents are orphaned. The children are neither deleted nor released.
type UnknownPropagationError struct {
	// Children lists the children that would be deleted.
	Children []dynamiccontroller.ObjectIdentifiers
	// ConfigMap is the namespace and the name of the ConfigMap.
	ConfigMap string
	Err       error
}

// Error lists the first children.
func (e *UnknownPropagationError) Error() string {
	children := make([]string, len(e.Children))
	for i, child := range e.Children {
		children[i] = child.GVR.GroupResource().String() + " " + child.NamespacedKey
	}
	return fmt.Sprintf("cannot delete %s: the ConfigMap %s, which shows whether they must be kept, cannot be read: %v",
		firstOf(children), e.ConfigMap, e.Err)
}

// Unwrap returns the error from the API server.
func (e *UnknownPropagationError) Unwrap() error { return e.Err }

// checkOrphaned returns an error that wraps errOrphaned if the parent is being deleted, some of the children to delete
// are marked, and the parent's dependents are orphaned or may be orphaned.
func (c *call) checkOrphaned(ctx context.Context, doomed []doomedChild) error {
	var marked []dynamiccontroller.ObjectIdentifiers
	for _, child := range doomed {
		if !ownerref.CanReach(c.parent, child.Namespace()) {
			marked = append(marked, child.ObjectIdentifiers)
		}
	}
	if c.parent.GetDeletionTimestamp() == nil || len(marked) == 0 {
		return nil
	}
	err := c.findPropagation(ctx)
	var unreadable *UnknownPropagationError
	switch {
	case err == nil:
		c.cache.notOrphaned = c.parent.GetUID()
	case errors.As(err, &unreadable):
		unreadable.Children = marked
	case !errors.Is(err, errOrphaned):
		return fmt.Errorf("find out whether the dependents of %s are orphaned: %w", c.id, err)
	}
	return err
}

// findPropagation returns nil if the dependents of a parent that is being deleted are deleted, errOrphaned if they are
// orphaned, and ErrMaybeOrphaned if nothing shows which. The package documentation contains the rules.
func (c *call) findPropagation(ctx context.Context) error {
	finalizers, isWitnessed := c.parent.GetFinalizers(), c.isWitnessed(c.parent)
	switch {
	case slices.Contains(finalizers, metav1.FinalizerOrphanDependents):
		return errOrphaned
	case slices.Contains(finalizers, metav1.FinalizerDeleteDependents):
		return nil
	}
	// The witness is read each time: a deletion can be followed by another one that orphans the dependents.
	var unreadable error
	if isWitnessed {
		witness, err := c.readWitness(ctx)
		switch {
		case err == nil && ownerref.Refers(witness, c.parent):
			return nil
		case err == nil:
			return errOrphaned
		case apierrors.IsForbidden(err):
			unreadable = &UnknownPropagationError{ConfigMap: c.parent.GetNamespace() + "/" + c.witnessName(), Err: err}
		case !apierrors.IsNotFound(err):
			return err
		}
	}
	if c.cache.notOrphaned == c.parent.GetUID() {
		return nil
	}
	namespace, err := c.readNamespace(ctx)
	switch {
	case err != nil:
		return err
	case namespace != nil && namespace.GetDeletionTimestamp() != nil:
		if deleted := namespace.GetDeletionTimestamp(); c.parent.GetDeletionTimestamp().Sub(deleted.Time) > namespaceDelay {
			return nil
		}
		return ErrMaybeOrphaned
	case unreadable != nil:
		return unreadable
	case isWitnessed:
		return nil // A deletion in the foreground deletes the witness first.
	}
	return ErrMaybeOrphaned
}

// release removes the marks of the parent's children, so that they are kept, and a later parent with the same name
// neither owns nor prunes them. It returns the kinds and names of these children.
func (c *call) release(ctx context.Context, reason error) (kept []string, err error) {
	recorded, _ := c.inventoryOf(c.parent, c.isListed)
	for _, entry := range recorded {
		if !c.canCrossNamespaces(entry.kind) {
			continue
		}
		gvr, children, err := c.listKind(ctx, entry, nil)
		if err != nil && !c.leaveBehind(dynamiccontroller.ObjectIdentifiers{GVR: gvr}, entry.kind, err) {
			return nil, fmt.Errorf("release %s: children of kind %s: %w", c.id, entry.kind, err)
		}
		for _, child := range children {
			if ownerref.CanReach(c.parent, child.GetNamespace()) {
				continue
			}
			id := live.Identify(gvr, child)
			if err := c.removeMark(ctx, id, child); err != nil {
				return nil, fmt.Errorf("release %s: %w", id, err)
			}
			kept = append(kept, entry.kind.Kind+" "+id.NamespacedKey)
			if errors.Is(reason, ErrMaybeOrphaned) {
				c.recordLeft(LeftBehind{id, entry.kind, ErrMaybeOrphaned})
			}
		}
	}
	return kept, nil
}

// deleteWitness deletes the witness of a parent whose children are kept. Without an owner reference, the garbage
// collector does not delete the witness.
func (c *call) deleteWitness(ctx context.Context) error {
	if !c.isWitnessed(c.parent) {
		return nil
	}
	err := c.witnesses().Delete(ctx, c.witnessName(), metav1.DeleteOptions{
		PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
	})
	switch {
	case err == nil, apierrors.IsNotFound(err):
		return nil
	case apierrors.IsForbidden(err):
		logr.FromContextOrDiscard(ctx).Info("Kept a ConfigMap that is no longer needed, because its deletion is forbidden",
			keyObjects, c.parent.GetNamespace()+"/"+c.witnessName())
		return nil
	}
	return fmt.Errorf("delete the ConfigMap %s/%s: %w", c.parent.GetNamespace(), c.witnessName(), err)
}

// removeMark removes the mark of a child.
func (c *call) removeMark(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, child *unstructured.Unstructured,
) error {
	objects := live.Resource(c.as.Client, id.GVR, id.Namespace())
	err := patch.RetryOnConflict(ctx, objects, child, func(current *unstructured.Unstructured) error {
		isChild, err := c.isChild(ctx, current)
		if err != nil || !isChild {
			return err
		}
		labels := map[string]any{c.parentLabel(): nil}
		if bucket := dynamiccontroller.BucketOf(c.id.GVR.GroupResource()); current.GetLabels()[c.bucketLabel()] == bucket {
			labels[c.bucketLabel()] = nil // also if LabelBuckets was set before
		}
		_, err = c.patch(ctx, id, current, map[string]any{
			"labels":      labels,
			"annotations": map[string]any{c.parentLabel(): nil, c.selfKey(): nil, c.restoredKey(): nil},
		})
		return err
	})
	if patch.IsGone(err) {
		return nil
	}
	return err
}
