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
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/internal/live"
	"github.com/dynamic-controller/engine/handlers/internal/ownerref"
)

// witnessing keeps the witness of the parent, and reads from it how the parent was deleted.
type witnessing struct {
	*ledger
}

// ensureWitness creates the parent's witness, unless this run has found that it exists. It returns decide.ErrParentGone
// instead of adding the owner reference for a parent that is being deleted, whose dependents can be orphaned already.
func (w *witnessing) ensureWitness(ctx context.Context) error {
	if w.entry.witness == w.parent.GetUID() {
		return nil
	}
	version := decide.CreateOnlyVersion
	witness, err := w.readWitness(ctx)
	if err == nil {
		version = witness.GetResourceVersion()
	}
	if apierrors.IsNotFound(err) || err == nil && !ownerref.Refers(witness, w.parent) {
		if _, err = w.readParent(ctx); err == nil && w.planner != nil {
			w.planner.record(w.planWitness(ActionCreateWitness, "it shows how the parent is deleted"))
		} else if err == nil {
			err = w.writeWitness(ctx, version)
		}
	}
	if err != nil {
		return fmt.Errorf("the ConfigMap %s/%s, which is required before children in other namespaces: %w",
			w.parent.GetNamespace(), w.witnessName(), err)
	}
	w.entry.witness = w.parent.GetUID()
	return nil
}

// writeWitness writes the witness if it still has the given resourceVersion.
func (w *witnessing) writeWitness(ctx context.Context, version string) error {
	witness := &unstructured.Unstructured{Object: map[string]any{"data": map[string]any{
		"purpose": "Shows the controller of its owner whether the owner is deleted with --cascade=orphan.",
	}}}
	witness.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	witness.SetNamespace(w.parent.GetNamespace())
	witness.SetName(w.witnessName())
	witness.SetResourceVersion(version)
	parent := w.parent.GroupVersionKind()
	witness.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: parent.GroupVersion().String(), Kind: parent.Kind, Name: w.parent.GetName(), UID: w.parent.GetUID(),
	}})
	options := metav1.ApplyOptions{FieldManager: w.config.Name, Force: true}
	_, err := w.witnesses().Apply(ctx, witness.GetName(), witness, options)
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

// checkOrphaned returns an error that wraps decide.ErrOrphaned if the parent is being deleted, some of the children to
// delete are marked, and the parent's dependents are orphaned or may be orphaned.
func (w *witnessing) checkOrphaned(ctx context.Context, doomed []decide.Doomed) error {
	var marked []dynamiccontroller.ObjectIdentifiers
	for _, child := range doomed {
		if !ownerref.CanReach(w.parent, child.Object.GetNamespace()) {
			marked = append(marked, live.Identify(child.Resource, child.Object))
		}
	}
	if w.parent.GetDeletionTimestamp() == nil || len(marked) == 0 {
		return nil
	}
	err := w.findPropagation(ctx)
	var unreadable *UnknownPropagationError
	switch {
	case err == nil:
		w.entry.notOrphaned = w.parent.GetUID()
	case errors.As(err, &unreadable):
		unreadable.Children = marked
	case !errors.Is(err, decide.ErrOrphaned):
		return fmt.Errorf("find out whether the dependents of %s are orphaned: %w", w.id, err)
	}
	return err
}

// findPropagation returns nil if the dependents of a parent that is being deleted are deleted, decide.ErrOrphaned if
// they are orphaned, and ErrMaybeOrphaned if nothing shows which. The package documentation contains the rules.
func (w *witnessing) findPropagation(ctx context.Context) error {
	var forbidden error
	propagation, err := decide.PropagationOf(decide.Evidence{
		Parent: w.rules, WasDeleted: w.entry.notOrphaned == w.parent.GetUID(),
		Witness: func() (decide.Witness, error) {
			witness, err := w.readWitness(ctx)
			switch {
			case apierrors.IsNotFound(err):
				return decide.WitnessIsGone, nil
			case apierrors.IsForbidden(err):
				forbidden = err
				return decide.WitnessIsHidden, nil
			case err != nil:
				return 0, err
			case ownerref.Refers(witness, w.parent):
				return decide.WitnessIsOwned, nil
			}
			return decide.WitnessIsOrphaned, nil
		},
		NamespaceDeleted: func() (time.Time, error) {
			namespace, err := w.readNamespace(ctx)
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
		return &UnknownPropagationError{ConfigMap: w.parent.GetNamespace() + "/" + w.witnessName(), Err: forbidden}
	}
	return ErrMaybeOrphaned
}

// deleteWitness deletes the witness of a parent whose children are kept. Without an owner reference, the garbage
// collector does not delete the witness.
func (w *witnessing) deleteWitness(ctx context.Context) error {
	if !w.rules.IsWitnessed(w.parent) {
		return nil
	}
	if w.planner != nil {
		w.planner.record(w.planWitness(ActionDeleteWitness, "nothing else deletes it"))
		return nil
	}
	err := w.witnesses().Delete(ctx, w.witnessName(), metav1.DeleteOptions{
		PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
	})
	switch {
	case err == nil, apierrors.IsNotFound(err):
		return nil
	case apierrors.IsForbidden(err):
		logr.FromContextOrDiscard(ctx).Info("Kept a ConfigMap that is no longer needed, because its deletion is forbidden",
			keyObjects, w.parent.GetNamespace()+"/"+w.witnessName())
		return nil
	}
	return fmt.Errorf("delete the ConfigMap %s/%s: %w", w.parent.GetNamespace(), w.witnessName(), err)
}
