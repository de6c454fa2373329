package handlers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/internal/gonehook"
	"github.com/dynamic-controller/engine/handlers/internal/live"
	"github.com/dynamic-controller/engine/handlers/internal/patch"
	"github.com/dynamic-controller/engine/handlers/internal/perrun"
)

// FinalizerConfig configures [Finalizer]. All fields are required.
type FinalizerConfig struct {
	Client dynamic.Interface
	// Name is the finalizer. It must have a domain, such as "platform.example.com/cleanup".
	Name string
	// Reconcile is called for objects that are not being deleted.
	Reconcile ObjectHandler
	// Cleanup is called for objects that are being deleted.
	Cleanup ObjectHandler
}

// Finalizer returns a handler that runs a cleanup before an object is removed:
//
//   - If the object is not being deleted, the finalizer is added and then Reconcile is called. The finalizer is not
//     added to an object whose deletion has begun in the meantime.
//   - If the object is being deleted and has the finalizer, Cleanup is called. When it returns nil, the finalizer is
//     removed. If it returns an error, including a RequeueAfter, the error is returned and the finalizer is kept.
//   - If the object is being deleted and has only finalizers of other controllers, Cleanup is called too, because it
//     may use a part that adds another finalizer, such as children.Reconciler.
//   - If the object is being deleted and has no finalizers except those of Kubernetes' garbage collector, neither
//     Reconcile nor Cleanup is called.
//
// A deletion that began before the finalizer was added can remove the object afterwards, because the API server does
// not look for finalizers again (kubernetes issue 77988). Within [Object], Cleanup is therefore called for an object
// that no longer exists if this run has added the finalizer in the last ten minutes and has not seen the deletion. It
// is called with the last known state of the object, until it returns nil, and after the API server has confirmed that
// the object is gone. After a crash in this short time, Cleanup is not called.
//
// Cleanup must be idempotent. It is called again if the process crashed after the call, or if the cache lags. If
// Reconcile was never called, there may be nothing to clean up. The finalizer is the only state: after a crash, the
// next call continues where the last one ended.
//
// If Reconcile creates something outside the API server that only Cleanup removes, read the object with [Fresh] or
// [Live]. A cache that lags behind the previous leader's writes can hold an object that has already been cleaned up.
//
// Finalizer changes metadata.finalizers with a patch that the API server rejects if the object has changed since it was
// read. After a rejection, it reads the object and tries again, so no finalizer of another controller is lost.
// Finalizer needs get and patch on the type. The admission plugin OwnerReferencesPermissionEnforcement does not require
// further permissions.
//
// If config is invalid, the handler does nothing and returns an error that lists all invalid fields. The error is
// [dynamiccontroller.Terminal].
func Finalizer(config FinalizerConfig) ObjectHandler {
	if err := config.validate(); err != nil {
		return func(context.Context, dynamiccontroller.ObjectIdentifiers, *unstructured.Unstructured) error {
			return dynamiccontroller.Terminal(err)
		}
	}
	return (&finalizer{FinalizerConfig: config}).handle
}

// finalizer is the handler of a Finalizer.
type finalizer struct {
	FinalizerConfig
	added perrun.State[addedFinalizers]
}

func (f *finalizer) handle(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured,
) error {
	added := f.added.For(ctx)
	if err := f.cleanUpIfGone(ctx, id, added.of(id), object.GetUID()); err != nil {
		return err
	}
	objects := live.Resource(f.Client, id.GVR, id.Namespace())
	if object.GetDeletionTimestamp() == nil {
		before := object
		object, err := patch.AddFinalizer(ctx, objects, object, f.Name)
		switch {
		case err != nil && !patch.IsGone(err):
			return fmt.Errorf("add finalizer %s to %s: %w", f.Name, id, err)
		case err != nil || object.GetDeletionTimestamp() != nil:
			return nil // the deletion event causes another reconcile
		}
		if !slices.Contains(before.GetFinalizers(), f.Name) {
			added.add(id, object)
		}
		if added.of(id) != nil {
			gonehook.Add(ctx, id, f, f.gone)
		}
		defer func() { added.update(id, object) }() // Reconcile can have changed the object
		return f.Reconcile(ctx, id, object)
	}
	added.remove(id) // the object exists until the finalizer has been removed
	if !slices.ContainsFunc(object.GetFinalizers(), isOfController) {
		return nil
	}
	if err := f.Cleanup(ctx, id, object); err != nil {
		return err
	}
	if err := patch.RemoveFinalizer(ctx, objects, object, f.Name); err != nil {
		return fmt.Errorf("remove finalizer %s from %s: %w", f.Name, id, err)
	}
	return nil
}

// gone is called for an object that the cache does not hold.
func (f *finalizer) gone(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	return f.cleanUpIfGone(ctx, id, f.added.For(ctx).of(id), "")
}

// cleanUpIfGone calls Cleanup for an earlier object if it no longer exists. The UID is that of the object that the
// cache holds.
func (f *finalizer) cleanUpIfGone(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, earlier *unstructured.Unstructured, uid types.UID,
) error {
	if earlier == nil || earlier.GetUID() == uid {
		return nil
	}
	now, err := live.Get(ctx, f.Client, id)
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("read %s: %w", id, err)
	case err == nil && now.GetUID() == earlier.GetUID() && uid == "":
		return nil // it has left the selection of the type, or the cache lags behind: another event follows
	case err == nil && now.GetUID() == earlier.GetUID():
		return dynamiccontroller.RequeueAfter(lagInterval) // the cache lags behind
	}
	deleted := earlier.DeepCopy()
	deleted.SetDeletionTimestamp(ptr.To(metav1.NewTime(f.added.For(ctx).keep(id))))
	if err := f.Cleanup(ctx, id, deleted); err != nil {
		return err
	}
	f.added.For(ctx).remove(id)
	return nil
}

func (c FinalizerConfig) validate() error {
	var errs []error
	if c.Client == nil {
		errs = append(errs, errors.New("handlers: FinalizerConfig.Client: must not be nil"))
	}
	if !strings.Contains(c.Name, "/") || len(validation.IsQualifiedName(c.Name)) > 0 {
		errs = append(errs, fmt.Errorf("handlers: FinalizerConfig.Name %q: "+
			"must be a name with a domain, such as \"platform.example.com/cleanup\"", c.Name))
	}
	if c.Reconcile == nil {
		errs = append(errs, errors.New("handlers: FinalizerConfig.Reconcile: must not be nil"))
	}
	if c.Cleanup == nil {
		errs = append(errs, errors.New("handlers: FinalizerConfig.Cleanup: must not be nil"))
	}
	return errors.Join(errs...)
}

// isOfController reports whether a finalizer belongs to a controller rather than to Kubernetes' garbage collector.
func isOfController(finalizer string) bool {
	return finalizer != metav1.FinalizerDeleteDependents && finalizer != metav1.FinalizerOrphanDependents
}
