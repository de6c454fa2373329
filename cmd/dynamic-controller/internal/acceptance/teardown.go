package acceptance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

// teardown cleans up after Blueprints that are being deleted.
type teardown struct {
	registry *registry
	client   dynamic.Interface
	// metadata lists instances. Only their metadata is read, because instances can be large.
	metadata metadata.Interface
	crds     *crdApplier
	store    *historyStore
	status   *statusReporter
	polls    instances.Throttle
	failures instances.Throttle // limits how often the errors of a deletion are written
	// namespacesOf returns the namespaces to which the instances of a type are limited. An empty list means no limit.
	namespacesOf func(gvr schema.GroupVersionResource) []string
}

// pollInterval returns the interval at which the remaining instances are listed. The interval grows with the elapsed
// time, because each poll lists all remaining instances.
func pollInterval(elapsed time.Duration) time.Duration {
	const quick, slow = 500 * time.Millisecond, 5 * time.Second
	return min(max(elapsed/8, quick), slow)
}

// cleanUp deletes or releases the type and the instances of a Blueprint that is being deleted. It must be called until
// it returns nil. Only then can the finalizer of the Blueprint be removed.
func (t *teardown) cleanUp(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured,
) error {
	d, known := t.registry.get(id.Name())
	if !known || d.uid != object.GetUID() || !d.deleting {
		return dynamiccontroller.RequeueAfter(soon) // this replica has not observed the deletion yet
	}
	b, err := blueprint.FromUnstructured(object)
	if err != nil {
		return dynamiccontroller.Terminal(err)
	}
	if instances.IsPaused(object) {
		return t.reportDelay(ctx, id, object, b, d, time.Minute)
	}
	if d.undecided != nil {
		return t.reportDelay(ctx, id, object, b, d, slowUpdate)
	}
	name := blueprint.DefinitionName(b)
	if d.lacksVersion() {
		if err := t.reportLeftBehind(ctx, id, object, b, d); err != nil {
			return err
		}
	}
	switch {
	case d.gvr.Empty() && d.canDelete(b):
		return t.store.deleteHistory(ctx, b, false)
	case d.gvr.Empty():
		return nil // the type belongs to another Blueprint, or does not exist
	case d.deletes(b):
		if err := t.deleteAll(ctx, id, object, b, d); err != nil {
			return err
		}
		return t.store.deleteHistory(ctx, b, true)
	}
	if !d.cleansUpOnly() {
		return dynamiccontroller.RequeueAfter(soon) // this replica still reconciles the instances
	}
	if d.canDelete(b) {
		served, err := t.crds.isOwned(ctx, name, b.UID)
		if err == nil && !served {
			served, err = t.store.hasLive(ctx, b)
		}
		if err != nil || served {
			return cmp.Or(err, dynamiccontroller.RequeueAfter(soon)) // this replica's cache lags
		}
	}
	return t.retain(ctx, id, object, b, d)
}

// reportDelay writes the status of a Blueprint whose deletion cannot proceed, and requests another reconcile.
func (t *teardown) reportDelay(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured,
	b *blueprint.Blueprint, d decision, again time.Duration,
) error {
	conditions, err := t.status.conditionsFor(b, d)
	if err == nil {
		err = t.status.write(ctx, id, object, conditions, d)
	}
	return cmp.Or(err, dynamiccontroller.RequeueAfter(again))
}

// reportFailures returns a handler that calls handle. If a deletion fails, it writes the error to the Serving
// condition. Without it, the newest generation of the Blueprint, which the deletion has begun, would have no
// conditions.
func (t *teardown) reportFailures(handle handlers.ObjectHandler) handlers.ObjectHandler {
	return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured) error {
		err := handle(ctx, id, object)
		_, again := dynamiccontroller.RequeueDelay(err)
		if err == nil || again || ctx.Err() != nil || object.GetDeletionTimestamp() == nil {
			return err
		}
		// The text of an error can change with every attempt, and each write causes another attempt.
		if t.failures.Wait(id.Name(), slowUpdate) > 0 {
			return err
		}
		statusErr := t.reportFailure(ctx, id, object, err)
		if apierrors.IsNotFound(statusErr) {
			statusErr = nil
		}
		return errors.Join(err, statusErr)
	}
}

func (t *teardown) reportFailure(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured, failure error,
) error {
	d, known := t.registry.get(id.Name())
	b, err := blueprint.FromUnstructured(object)
	if err != nil || !known || d.uid != object.GetUID() {
		return err
	}
	conditions, err := t.status.conditionsFor(b, d)
	if err != nil {
		return err
	}
	conditions.serving = falseCondition(blueprint.Serving, reasonDeleting, instances.Truncate(failure.Error()))
	err = t.status.write(ctx, id, object, conditions, d)
	if _, again := dynamiccontroller.RequeueDelay(err); again {
		return nil // the deletion is retried anyway
	}
	return err
}

// deleteAll deletes the instances, and then the type. It returns an error until all of them are gone.
func (t *teardown) deleteAll(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured,
	b *blueprint.Blueprint, d decision,
) error {
	deleted := object.GetDeletionTimestamp().Time
	poll := pollInterval(time.Since(deleted))
	if wait := t.polls.Wait(id.Name(), poll); wait > 0 {
		return dynamiccontroller.RequeueAfter(wait) // an event triggered this call before the next poll was due
	}
	left, example, err := t.deleteInstances(ctx, d.gvr, deleted)
	unlisted, err := t.continues(ctx, b, err)
	if unlisted {
		// Do not wait for the type: instances with the platform's finalizer can keep it.
		if _, err := t.crds.delete(ctx, blueprint.DefinitionName(b), b.UID); err != nil {
			return err
		}
		return t.reportLeftBehind(ctx, id, object, b, d)
	}
	message := fmt.Sprintf("waiting for %s to be deleted, for example %s", objects(left, "instance"), example)
	if err == nil && left == 0 {
		var gone bool
		if gone, err = t.crds.delete(ctx, blueprint.DefinitionName(b), b.UID); gone && err == nil {
			return nil
		}
		message = "waiting for the type to be deleted"
	}
	if err != nil {
		message = err.Error()
	}
	return cmp.Or(err, t.reportWaiting(ctx, id, object, b, d, message, poll))
}

// reportWaiting writes the message to the Serving condition of a Blueprint whose deletion waits, and requests another
// reconcile.
func (t *teardown) reportWaiting(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured,
	b *blueprint.Blueprint, d decision, message string, again time.Duration,
) error {
	conditions, err := t.status.conditionsFor(b, d)
	if err != nil {
		return err
	}
	conditions.serving = falseCondition(blueprint.Serving, reasonDeleting, instances.Truncate(message))
	conditions.updateAfter = again
	return cmp.Or(t.status.write(ctx, id, object, conditions, d), conditions.requeue())
}

// deleteInstances deletes the instances that existed when the Blueprint was deleted. It returns the number of remaining
// instances and an example, preferably an instance whose deletion is blocked by a finalizer of another controller.
// Instances are deleted in the foreground, so that each instance exists until its children are deleted. Otherwise, the
// type could be deleted first, and the garbage collector could no longer look up the owners of the children. Instances
// that are created later are ignored, because waiting for them might never end.
func (t *teardown) deleteInstances(
	ctx context.Context, gvr schema.GroupVersionResource, before time.Time,
) (left int, example string, err error) {
	var errs []error
	blocked := ""
	err = t.forEach(ctx, gvr, func(instance *metav1.PartialObjectMetadata) {
		if instance.CreationTimestamp.After(before) {
			return
		}
		left++
		if example == "" || blocked == "" {
			blocked = instances.BlockedBy(slices.DeleteFunc(slices.Clone(instance.GetFinalizers()), func(f string) bool {
				return f == instances.ChildrenFinalizer || f == metav1.FinalizerDeleteDependents
			}))
			example = toolscache.MetaObjectToName(instance).String() + blocked
		}
		if instance.GetDeletionTimestamp() != nil {
			return
		}
		namespace, name := instance.GetNamespace(), instance.GetName()
		err := t.client.Resource(gvr).Namespace(namespace).Delete(ctx, name, metav1.DeleteOptions{
			Preconditions:     &metav1.Preconditions{UID: ptr.To(instance.GetUID())},
			PropagationPolicy: ptr.To(metav1.DeletePropagationForeground),
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("delete instance %s: %w", toolscache.MetaObjectToName(instance), err))
		}
	})
	return left, example, errors.Join(append(errs, err)...)
}

// forEach lists the instances in the API server and calls f for each of them. It lists only the namespaces to which the
// type is limited. If the API server does not support the list or does not serve the type, the error wraps errUnlisted.
func (t *teardown) forEach(
	ctx context.Context, gvr schema.GroupVersionResource, f func(*metav1.PartialObjectMetadata),
) error {
	for _, namespace := range scopes(t.namespacesOf(gvr)) {
		list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return t.metadata.Resource(gvr).Namespace(namespace).List(ctx, options)
		}
		err := pager.New(list).EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
			f(object.(*metav1.PartialObjectMetadata))
			return nil
		})
		switch {
		case apierrors.IsMethodNotSupported(err), apierrors.IsNotFound(err):
			return fmt.Errorf("list the instances: %w: %w", errUnlisted, err)
		case err != nil:
			return fmt.Errorf("list the instances: %w", err)
		}
	}
	return nil
}

// scopes returns the namespaces, or NamespaceAll if the list is empty.
func scopes(namespaces []string) []string {
	if len(namespaces) == 0 {
		return []string{metav1.NamespaceAll}
	}
	return namespaces
}
