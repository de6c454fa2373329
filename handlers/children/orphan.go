package children

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
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
// Children with an owner reference therefore witness how the parent is deleted. A parent whose first marked children
// are not preceded by such a child is given a witness: a ConfigMap with an owner reference to the parent.

// witnessName returns the name of the parent's witness. Each controller of the parent has a witness of its own.
func (c *call) witnessName() string {
	return "children-of-" + string(c.parent.GetUID()) + "-" + identityLabel(c.config.Name)[:8]
}

// errNoWitness is returned if a marked child cannot be created yet.
var errNoWitness = errors.New("is created once a child in the parent's namespace exists")

// createWitness creates the parent's witness, unless this run has found that it exists.
func (c *call) createWitness(ctx context.Context) error {
	if c.cache.witness == c.parent.GetUID() {
		return nil
	}
	witness, err := c.readWitness(ctx)
	if apierrors.IsNotFound(err) || err == nil && !c.refersToParent(witness) {
		if err = c.checkParent(ctx); err == nil {
			err = c.writeWitness(ctx)
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

func (c *call) writeWitness(ctx context.Context) error {
	witness := &unstructured.Unstructured{Object: map[string]any{"data": map[string]any{
		"purpose": "Shows the controller of its owner whether the owner is deleted with --cascade=orphan.",
	}}}
	witness.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	witness.SetNamespace(c.parent.GetNamespace())
	witness.SetName(c.witnessName())
	parent := c.parent.GroupVersionKind()
	witness.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: parent.GroupVersion().String(), Kind: parent.Kind, Name: c.parent.GetName(), UID: c.parent.GetUID(),
	}})
	options := metav1.ApplyOptions{FieldManager: c.config.Name, Force: true}
	_, err := c.witnesses().Apply(ctx, witness.GetName(), witness, options)
	return err
}

// errOrphaned is returned instead of deleting marked children whose parent is deleted with orphaned dependents.
var errOrphaned = errors.New("the children are orphaned")

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

// checkOrphaned returns errOrphaned if the parent is deleted with orphaned dependents and some of the children to
// delete are marked. If the parent's namespace is terminating, permissions to read the dependents can already have been
// deleted. Nothing then shows that they are orphaned.
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
	orphaned, err := c.isOrphaned(ctx)
	var unreadable *UnknownPropagationError
	switch {
	case err != nil && c.isNamespaceTerminating(ctx):
		return nil
	case errors.As(err, &unreadable):
		unreadable.Children = marked
		return unreadable
	case err != nil:
		return fmt.Errorf("find out whether the dependents of %s are orphaned: %w", c.id, err)
	case orphaned:
		return errOrphaned
	}
	return nil
}

// isOrphaned reports whether the dependents of a parent that is being deleted are orphaned.
func (c *call) isOrphaned(ctx context.Context) (bool, error) {
	if slices.Contains(c.parent.GetFinalizers(), metav1.FinalizerOrphanDependents) {
		return true, nil
	}
	if c.cache.notOrphaned == c.parent.GetUID() ||
		slices.Contains(c.parent.GetFinalizers(), metav1.FinalizerDeleteDependents) {
		return false, nil
	}
	dependents, err := c.dependents(ctx)
	if err != nil {
		return false, err
	}
	// The garbage collector removes all owner references before it removes the finalizer. An object that still has its
	// reference can have been created afterwards, or before the garbage collector has watched its type.
	if slices.ContainsFunc(dependents, func(d *unstructured.Unstructured) bool { return !c.refersToParent(d) }) {
		return true, nil
	}
	c.cache.notOrphaned = c.parent.GetUID()
	return false, nil
}

func (c *call) refersToParent(object *unstructured.Unstructured) bool {
	return ownerref.Refers(object, c.parent)
}

// dependents reads the objects in the parent's namespace to which this Reconciler has given an owner reference to the
// parent. A dependent that no longer exists is not evidence: if the parent is deleted in the foreground, its dependents
// are deleted first.
func (c *call) dependents(ctx context.Context) (dependents []*unstructured.Unstructured, err error) {
	if c.parent.GetAnnotations()[c.witnessKey()] != "" {
		switch witness, err := c.readWitness(ctx); {
		case err == nil:
			return []*unstructured.Unstructured{witness}, nil
		case apierrors.IsForbidden(err):
			return nil, &UnknownPropagationError{ConfigMap: c.parent.GetNamespace() + "/" + c.witnessName(), Err: err}
		case !apierrors.IsNotFound(err):
			return nil, err
		}
	}
	selector := labels.SelectorFromSet(labels.Set{c.parentLabel(): string(c.parent.GetUID())})
	recorded, _ := c.inventoryOf(c.parent, c.isListed)
	for _, entry := range recorded {
		mapping, err := c.mappingOf(entry)
		if err != nil {
			return nil, fmt.Errorf("children of kind %s: %w", entry.kind, err)
		}
		gvr := entry.gvr()
		if mapping != nil && isClusterScoped(mapping) || checkRoute(gvr, true) != nil {
			continue
		}
		if mapping != nil {
			gvr = mapping.Resource
		}
		objects, err := live.List(ctx, c.config.Client, gvr, c.parent.GetNamespace(), selector)
		if err != nil && !c.isUnsupported(err) && (mapping != nil || !apierrors.IsNotFound(err)) {
			return nil, fmt.Errorf("children of kind %s: %w", entry.kind, err)
		}
		for _, object := range objects {
			if !c.isRetained(object) {
				dependents = append(dependents, object)
			}
		}
	}
	return dependents, nil
}

// release removes the marks of the parent's children, so that they are kept, and a later parent with the same name
// neither owns nor prunes them.
func (c *call) release(ctx context.Context) error {
	recorded, _ := c.inventoryOf(c.parent, c.isListed)
	for _, entry := range recorded {
		if !c.canCrossNamespaces(entry.kind) {
			continue
		}
		gvr, children, err := c.listKind(ctx, entry, nil)
		if err != nil && !c.leaveBehind(dynamiccontroller.ObjectIdentifiers{GVR: gvr}, entry.kind, err) {
			return fmt.Errorf("release %s: children of kind %s: %w", c.id, entry.kind, err)
		}
		for _, child := range children {
			if ownerref.CanReach(c.parent, child.GetNamespace()) {
				continue
			}
			id := live.Identify(gvr, child)
			if err := c.removeMark(ctx, id, child); err != nil {
				return fmt.Errorf("release %s: %w", id, err)
			}
		}
	}
	return nil
}

// deleteWitness deletes the witness of an orphaning deletion. Afterwards, nothing shows how the parent was deleted.
// Without an owner reference, the garbage collector does not delete the witness.
func (c *call) deleteWitness(ctx context.Context) error {
	if c.parent.GetAnnotations()[c.witnessKey()] == "" {
		return nil
	}
	err := c.witnesses().Delete(ctx, c.witnessName(), metav1.DeleteOptions{
		PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
	})
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsForbidden(err) && c.isNamespaceTerminating(ctx):
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
		_, err = c.patch(ctx, id, current, map[string]any{
			"labels":      map[string]any{c.parentLabel(): nil},
			"annotations": map[string]any{c.parentLabel(): nil, c.selfKey(): nil, c.restoredKey(): nil},
		})
		return err
	})
	if patch.IsGone(err) {
		return nil
	}
	return err
}
