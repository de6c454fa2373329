package children

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/internal/live"
	"github.com/dynamic-controller/engine/handlers/internal/ownerref"
)

// witnessName returns the name of the parent's witness. Each controller of the parent has a witness of its own.
func (c *call) witnessName() string {
	return "children-of-" + string(c.parent.GetUID()) + "-" + decide.IdentityLabel(c.config.Name)[:8]
}

// ensureWitness creates the parent's witness, unless this run has found that it exists. It returns decide.ErrParentGone
// instead of adding the owner reference for a parent that is being deleted, whose dependents can be orphaned already.
func (c *call) ensureWitness(ctx context.Context) error {
	if c.cache.witness == c.parent.GetUID() {
		return nil
	}
	version := decide.CreateOnlyVersion
	witness, err := c.readWitness(ctx)
	if err == nil {
		version = witness.GetResourceVersion()
	}
	if apierrors.IsNotFound(err) || err == nil && !ownerref.Refers(witness, c.parent) {
		if _, err = c.readParent(ctx); err == nil && c.planner != nil {
			c.planner.record(c.planWitness(ActionCreateWitness, "it shows how the parent is deleted"))
		} else if err == nil {
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

// ErrMaybeOrphaned is the [LeftBehind].Err of children that are kept because nothing shows how their parent was
// deleted.
var ErrMaybeOrphaned = decide.ErrMaybeOrphaned

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
		decide.FirstOf(children), e.ConfigMap, e.Err)
}

// Unwrap returns the error from the API server.
func (e *UnknownPropagationError) Unwrap() error { return e.Err }

// checkOrphaned returns an error that wraps decide.ErrOrphaned if the parent is being deleted, some of the children to delete
// are marked, and the parent's dependents are orphaned or may be orphaned.
func (c *call) checkOrphaned(ctx context.Context, doomed []decide.Doomed) error {
	var marked []dynamiccontroller.ObjectIdentifiers
	for _, child := range doomed {
		if !ownerref.CanReach(c.parent, child.Object.GetNamespace()) {
			marked = append(marked, live.Identify(child.Resource, child.Object))
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
	case !errors.Is(err, decide.ErrOrphaned):
		return fmt.Errorf("find out whether the dependents of %s are orphaned: %w", c.id, err)
	}
	return err
}

// findPropagation returns nil if the dependents of a parent that is being deleted are deleted, decide.ErrOrphaned if they
// are orphaned, and ErrMaybeOrphaned if nothing shows which. The package documentation contains the rules.
func (c *call) findPropagation(ctx context.Context) error {
	var forbidden error
	propagation, err := decide.PropagationOf(decide.Evidence{
		Parent: c.rules, WasDeleted: c.cache.notOrphaned == c.parent.GetUID(),
		Witness: func() (decide.Witness, error) {
			witness, err := c.readWitness(ctx)
			switch {
			case apierrors.IsNotFound(err):
				return decide.WitnessIsGone, nil
			case apierrors.IsForbidden(err):
				forbidden = err
				return decide.WitnessIsHidden, nil
			case err != nil:
				return 0, err
			case ownerref.Refers(witness, c.parent):
				return decide.WitnessIsOwned, nil
			}
			return decide.WitnessIsOrphaned, nil
		},
		NamespaceDeleted: func() (time.Time, error) {
			namespace, err := c.readNamespace(ctx)
			if err != nil || namespace == nil || namespace.GetDeletionTimestamp() == nil {
				return time.Time{}, err
			}
			return namespace.GetDeletionTimestamp().Time, nil
		},
	})
	switch {
	case err != nil:
		return err
	case propagation == decide.Deleted:
		return nil
	case propagation == decide.Orphaned:
		return decide.ErrOrphaned
	case propagation == decide.Hidden:
		return &UnknownPropagationError{ConfigMap: c.parent.GetNamespace() + "/" + c.witnessName(), Err: forbidden}
	}
	return ErrMaybeOrphaned
}

// release removes the marks of the parent's children, so that they are kept, and a later parent with the same name
// neither owns nor prunes them. It returns the kinds and names of these children.
func (c *call) release(ctx context.Context, reason error) (kept []string, err error) {
	recorded, _ := c.inventoryOf(c.parent, c.isListed)
	for _, entry := range recorded {
		if !c.canCrossNamespaces(entry.Kind) {
			continue
		}
		gvr, children, err := c.listKind(ctx, entry, nil)
		if err != nil && !c.leaveBehind(dynamiccontroller.ObjectIdentifiers{GVR: gvr}, entry.Kind, err) {
			return nil, fmt.Errorf("release %s: children of kind %s: %w", c.id, entry.Kind, err)
		}
		for _, child := range children {
			if ownerref.CanReach(c.parent, child.GetNamespace()) {
				continue
			}
			id := live.Identify(gvr, child)
			if err := c.removeMark(ctx, target{id, entry.Kind, child}); err != nil {
				return nil, fmt.Errorf("release %s: %w", id, err)
			}
			kept = append(kept, entry.Kind.Kind+" "+id.NamespacedKey)
			if errors.Is(reason, ErrMaybeOrphaned) {
				c.recordLeft(LeftBehind{id, entry.Kind, ErrMaybeOrphaned})
			}
		}
	}
	return kept, nil
}

// deleteWitness deletes the witness of a parent whose children are kept. Without an owner reference, the garbage
// collector does not delete the witness.
func (c *call) deleteWitness(ctx context.Context) error {
	if !c.rules.IsWitnessed(c.parent) {
		return nil
	}
	if c.planner != nil {
		c.planner.record(c.planWitness(ActionDeleteWitness, "nothing else deletes it"))
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
func (c *call) removeMark(ctx context.Context, child target) error {
	bucket := dynamiccontroller.BucketOf(c.id.GVR.GroupResource())
	return c.remove(ctx, child, decide.BeginRelease(c.rules, child.object, bucket, time.Now())).Err
}
