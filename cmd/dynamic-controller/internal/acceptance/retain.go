package acceptance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// retain releases the instances and the type of a Blueprint that is being deleted. It first waits for the instances
// that are being deleted, because only the platform deletes their children in order, and Kubernetes does not delete all
// of them. It returns a requeue request until they are gone.
//
// No other reconcile adds the platform's finalizer in the meantime: see [definitionReconciler.serve].
func (t *teardown) retain(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured,
	b *blueprint.Blueprint, d decision,
) error {
	poll := pollInterval(time.Since(object.GetDeletionTimestamp().Time))
	if wait := t.polls.Wait(id.Name(), poll); wait > 0 {
		return dynamiccontroller.RequeueAfter(wait)
	}
	before := object.GetDeletionTimestamp().Add(stopPeriod)
	waiting, err := t.requestedDeletions(ctx, d.gvr, before)
	if err == nil && waiting.count > 0 {
		return t.reportWaiting(ctx, id, object, b, d, waiting.String(), poll)
	}
	if err == nil {
		err = t.releaseInstances(ctx, d.gvr, before)
	}
	unlisted, err := t.continues(ctx, b, err)
	if err == nil && unlisted {
		err = t.reportLeftBehind(ctx, id, object, b, d)
	}
	if err != nil {
		return err
	}
	return t.crds.release(ctx, blueprint.DefinitionName(b), b.UID)
}

// deletions describes the instances that are being deleted and have the platform's finalizer. oldest is the one whose
// deletion was requested first.
type deletions struct {
	count     int
	oldest    string
	requested time.Time
	paused    bool // whether the annotation that pauses an instance pauses the deletion of the oldest one
}

func (d *deletions) add(instance *metav1.PartialObjectMetadata) {
	d.count++
	if at := instance.GetDeletionTimestamp().Time; d.count == 1 || at.Before(d.requested) {
		d.oldest, d.requested = toolscache.MetaObjectToName(instance).String(), at
		d.paused = instances.IsPaused(instance)
	}
}

// String returns the message of the Serving condition.
func (d *deletions) String() string {
	why := "; its Ready condition contains the reason"
	if d.paused {
		why = ", which is paused"
	}
	return fmt.Sprintf("waiting for the requested deletion of %s, for example %s%s", objects(d.count, "instance"),
		d.oldest, why)
}

// stopPeriod is the time after the deletion of a Blueprint within which a replica may still reconcile new instances.
// Instances that are created later have no children, and waiting for them might never end.
const stopPeriod = time.Minute

// requestedDeletions returns the instances that were created before the given time, are being deleted, and have the
// platform's finalizer.
func (t *teardown) requestedDeletions(
	ctx context.Context, gvr schema.GroupVersionResource, before time.Time,
) (found deletions, err error) {
	err = t.forEach(ctx, gvr, func(instance *metav1.PartialObjectMetadata) {
		if isHeld(instance) && isDeleted(instance, before) {
			found.add(instance)
		}
	})
	return found, err
}

// isDeleted reports whether an instance that was created before the given time is being deleted.
func isDeleted(instance *metav1.PartialObjectMetadata, before time.Time) bool {
	return instance.GetDeletionTimestamp() != nil && !instance.CreationTimestamp.After(before)
}

// isHeld reports whether an instance has the platform's finalizer.
func isHeld(instance *metav1.PartialObjectMetadata) bool {
	return slices.Contains(instance.GetFinalizers(), instances.ChildrenFinalizer)
}

// releaseInstances removes the platform's finalizer from all instances, because no controller will remove it later. If
// an instance that was created before the given time is being deleted meanwhile, it requests another reconcile.
func (t *teardown) releaseInstances(
	ctx context.Context, gvr schema.GroupVersionResource, before time.Time,
) error {
	var errs []error
	again := false
	err := t.forEach(ctx, gvr, func(instance *metav1.PartialObjectMetadata) {
		switch {
		case !isHeld(instance):
		case isDeleted(instance, before):
			again = true
		default:
			errs = append(errs, t.releaseInstance(ctx, gvr, instance))
		}
	})
	if err := errors.Join(append(errs, err)...); err != nil || !again {
		return err
	}
	return dynamiccontroller.RequeueAfter(soon)
}

// releaseInstance removes the platform's finalizer from an instance. It returns an error if the instance has changed
// since it was read, for example because it is being deleted. The cleanup is then retried.
func (t *teardown) releaseInstance(
	ctx context.Context, gvr schema.GroupVersionResource, instance *metav1.PartialObjectMetadata,
) error {
	namespace, name := instance.GetNamespace(), instance.GetName()
	left := slices.DeleteFunc(instance.GetFinalizers(), func(f string) bool { return f == instances.ChildrenFinalizer })
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": instance.GetUID(), "resourceVersion": instance.GetResourceVersion(), "finalizers": left,
	}})
	if err == nil {
		options := metav1.PatchOptions{FieldManager: instances.Name}
		_, err = t.client.Resource(gvr).Namespace(namespace).Patch(ctx, name, types.MergePatchType, patch, options)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the finalizer from instance %s: %w", toolscache.MetaObjectToName(instance), err)
	}
	return nil
}
