package children

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/internal/gonehook"
	"github.com/dynamic-controller/engine/handlers/internal/live"
	"github.com/dynamic-controller/engine/handlers/internal/ownerref"
)

// A deletion that began before the finalizer was added can remove the parent afterwards: the API server has looked for
// finalizers before it calls admission webhooks, and does not look again (kubernetes issue 77988). The deletion is then
// one in the background, because other deletions add finalizers, which the API server does with the current object.

// Forget deletes the children that this run has written for a parent that no longer exists and that Kubernetes does not
// delete, and drops what the Reconciler has cached for the parent. [handlers.Object] calls it for parents that
// Reconcile was called for, so only other handlers have to.
//
// Nothing is deleted if the API server still has the parent, if its dependents were orphaned, or if Reconcile has seen
// that the parent is being deleted with the finalizer: someone who then removes the finalizer keeps the children. Only
// objects with the mark of the parent are deleted. If an error is returned, Forget must be called again.
func (r *Reconciler) Forget(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	if err := r.deleteWritten(ctx, id, "", r.config.IdentityOf); err != nil {
		return err
	}
	r.drop(id)
	return nil
}

// Release makes Forget keep the children of a parent that is being deleted. It is required only if Reconcile is not
// called for such a parent, for example because it is paused, and someone can remove its finalizer.
func (r *Reconciler) Release(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent types.UID) {
	r.memory.runs.For(ctx).drop(id, parent)
}

// remember records children before they are written. If Kubernetes deletes them with the parent, they are not recorded.
func (c *call) remember(ctx context.Context, children []*child) {
	var written []writtenChild
	for _, child := range children {
		if child.NeedsWitness() {
			stage, _ := strconv.Atoi(child.desired.Template.GetAnnotations()[c.names.Stage()])
			written = append(written, writtenChild{id: child.id, kind: child.kind, stage: stage})
		}
	}
	if len(written) > 0 && c.planner == nil {
		c.memory.runs.For(ctx).add(c.id, c.parent, written)
		gonehook.Add(ctx, c.id, c.settings, c.forgotten)
	}
}

// deleteWritten deletes the children that this run has written for earlier parents with the identifiers. The UID is
// that of the parent that is known to exist, if any.
func (r *Reconciler) deleteWritten(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, uid types.UID,
	identityOf func(context.Context, *unstructured.Unstructured) (Identity, error),
) error {
	memory := r.memory.runs.For(ctx)
	for _, parent := range memory.others(id, uid) {
		now, err := live.Get(ctx, r.config.Client, id)
		switch {
		case err != nil && !apierrors.IsNotFound(err):
			return fmt.Errorf("find out whether %s is gone: %w", id, err)
		case err == nil && now.GetUID() == parent.GetUID():
			continue // it has left the selection of the type, or the cache lags behind: another event follows
		}
		as := Identity{}
		if identityOf != nil {
			if as, err = identityOf(ctx, parent); err != nil {
				return fmt.Errorf("delete the children of %s, which is gone: %w", id, err)
			}
		}
		c := newCall(ctx, r.settings, id, parent, as, r.entryOf(ctx, id))
		if err := c.deleteWrittenChildren(ctx, memory); err != nil {
			return fmt.Errorf("delete the children of %s, which is gone: %w", id, err)
		}
	}
	return nil
}

// deleteWrittenChildren deletes the recorded children of the parent, which no longer exists. If the dependents of the
// parent were orphaned, it removes their marks.
func (d *deletion) deleteWrittenChildren(ctx context.Context, memory *runMemory) error {
	written := memory.of(d.id, d.parent.GetUID())
	orphaned, err := d.wasOrphaned(ctx)
	if err != nil {
		return err
	}
	var errs []error
	var gone []string
	for _, child := range written {
		deleted, err := d.deleteWrittenChild(ctx, child, orphaned)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		memory.keep(d.id, d.parent.GetUID(), func(other writtenChild) bool { return other.id != child.id })
		if deleted {
			gone = append(gone, child.kind.Kind+" "+child.id.NamespacedKey)
		}
	}
	if len(gone) > 0 {
		message := "Deleted the children of a parent that was removed in spite of its finalizer"
		if orphaned {
			message = "Kept the children of a deleted parent"
		}
		logr.FromContextOrDiscard(ctx).Info(message, keyObjects, decide.FirstOf(gone))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if orphaned {
		d.parent.SetAnnotations(map[string]string{d.names.Witness(): string(d.parent.GetUID())})
		if err := d.deleteWitness(ctx); err != nil {
			return err
		}
	}
	memory.drop(d.id, d.parent.GetUID())
	return nil
}

// wasOrphaned reports whether the dependents of the parent, which no longer exists, were orphaned. Only then, the
// witness exists without its owner reference.
func (w *witnessing) wasOrphaned(ctx context.Context) (bool, error) {
	witness, err := w.readWitness(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read the ConfigMap %s/%s, which shows whether they must be kept: %w",
			w.parent.GetNamespace(), w.witnessName(), err)
	}
	return !ownerref.Refers(witness, w.parent), nil
}

// deleteWrittenChild deletes a recorded child, or removes its mark if it is orphaned. It reports whether the child
// existed.
func (d *deletion) deleteWrittenChild(
	ctx context.Context, child writtenChild, orphaned bool,
) (existed bool, err error) {
	mapping, err := d.config.Mapper.RESTMapping(child.kind, child.id.GVR.Version)
	if meta.IsNoMatchError(err) {
		mapping, err = d.config.Mapper.RESTMapping(child.kind)
	}
	switch {
	case meta.IsNoMatchError(err):
		return false, nil // the type is gone, and the child with it
	case err != nil:
		return false, fmt.Errorf("find the resource of %s: %w", child.id, err)
	}
	id := childID{GVR: mapping.Resource, NamespacedKey: child.id.NamespacedKey}
	current, err := live.Get(ctx, d.as.Client, id)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read %s: %w", id, err)
	}
	if written, err := decide.IsExactly(d.rules, current, d.namespaceUID); err != nil || !written {
		return false, err
	}
	if orphaned {
		return true, d.removeMark(ctx, target{id, child.kind, current})
	}
	return true, d.delete(ctx, target{id, child.kind, current}, true)
}
