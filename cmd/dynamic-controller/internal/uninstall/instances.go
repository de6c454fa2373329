package uninstall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

// instanceCounts counts the instances of a type.
type instanceCounts struct {
	released, withFinalizer, deleted int
	foreign                          int    // instances with finalizers of other controllers
	example                          string // one of them
	conflicts                        int
	errs                             []error // the first ones
	failed                           int
}

// cleanUpInstances releases the instances of all types, and deletes those of types that are deleted.
func (u *uninstaller) cleanUpInstances(ctx context.Context) error {
	for _, t := range u.types {
		if err := u.cleanUpInstancesOf(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

func (u *uninstaller) cleanUpInstancesOf(ctx context.Context, t typeInfo) error {
	const mostPasses = 5
	deletes := u.DeleteInstances && t.owned
	var total instanceCounts
	for pass := 1; ; pass++ {
		var c instanceCounts
		err := u.eachInstance(ctx, t, func(instance *metav1.PartialObjectMetadata) {
			u.cleanUpInstance(ctx, t, instance, &c)
		})
		total.released, total.withFinalizer = total.released+c.released, total.withFinalizer+c.withFinalizer
		total.deleted, total.foreign, total.example = total.deleted+c.deleted, c.foreign, c.example
		if c.failed > 0 {
			c.errs = append(c.errs, fmt.Errorf("%s of %s not cleaned up; fix the cause, and run the command again",
				count(c.failed, "instance"), t.name))
		}
		if err := errors.Join(append(c.errs, err)...); err != nil {
			return err
		}
		if c.conflicts == 0 {
			break
		}
		if pass == mostPasses {
			return fmt.Errorf("%s of %s changed while they were cleaned up; run the command again",
				count(c.conflicts, "instance"), t.name)
		}
	}
	u.report("released", "release", total.released, "%s of %s", count(total.released, "instance"), t.name)
	u.report("deleted", "delete", total.deleted, "%s of %s", count(total.deleted, "instance"), t.name)
	if total.withFinalizer > 0 {
		fmt.Fprintf(u.Out, "note: %s of %s can have children that Kubernetes does not delete with the instance, or deletes "+
			"in any order; they have the label platform.example.com/parent\n", count(total.withFinalizer, "instance"), t.name)
	}
	if total.foreign > 0 {
		fmt.Fprintf(u.Out, "note: %s of %s with finalizers of other controllers, which are kept, for example %s\n",
			count(total.foreign, "instance"), t.name, total.example)
	}
	if !deletes || !u.Apply {
		return nil
	}
	return u.waitGone(ctx, "instances of "+t.name, func(ctx context.Context) (left int, example string, err error) {
		err = u.eachInstance(ctx, t, func(instance *metav1.PartialObjectMetadata) {
			left++
			example = toolscache.MetaObjectToName(instance).String() + blockedByOthers(instance.GetFinalizers())
		})
		return left, example, err
	})
}

// eachInstance lists the instances of a type. It does nothing if the type is not served.
func (u *uninstaller) eachInstance(
	ctx context.Context, t typeInfo, f func(*metav1.PartialObjectMetadata),
) error {
	const page = 500
	for _, namespace := range u.scopesOf(t) {
		list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return u.metadata.Resource(t.gvr).Namespace(namespace).List(ctx, options)
		}
		err := eachPage(ctx, list, page, func(object runtime.Object) error {
			f(object.(*metav1.PartialObjectMetadata))
			return ctx.Err()
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("list the instances of %s: %w", t.name, err)
		}
	}
	return nil
}

// isOfOthers reports whether a finalizer belongs to neither the platform nor Kubernetes' garbage collector.
func isOfOthers(finalizer string) bool {
	return finalizer != instances.ChildrenFinalizer && finalizer != metav1.FinalizerDeleteDependents &&
		finalizer != metav1.FinalizerOrphanDependents
}

// blockedByOthers describes the finalizers of other controllers.
func blockedByOthers(finalizers []string) string {
	return instances.BlockedBy(slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool { return !isOfOthers(f) }))
}

// cleanUpInstance releases an instance and, if its type is deleted, deletes it in the foreground, so that the instance
// exists until its children have been deleted. If the type were deleted first, the garbage collector could not look up
// the owners of the children, and would keep them.
func (u *uninstaller) cleanUpInstance(
	ctx context.Context, t typeInfo, instance *metav1.PartialObjectMetadata, c *instanceCounts,
) {
	const mostErrors = 3
	finalizers := instance.GetFinalizers()
	if slices.ContainsFunc(finalizers, isOfOthers) {
		c.foreign++
		c.example = toolscache.MetaObjectToName(instance).String() + blockedByOthers(finalizers)
	}
	hasFinalizer := slices.Contains(finalizers, instances.ChildrenFinalizer)
	objects := u.metadata.Resource(t.gvr).Namespace(instance.GetNamespace())
	var err error
	if hasFinalizer || instance.GetAnnotations()[instances.InventoryAnnotation] != "" {
		if err = u.patch(ctx, objects, instance.GetName(), releasePatch(instance)); err == nil {
			c.released++
			if hasFinalizer {
				c.withFinalizer++
			}
		}
	}
	if err == nil && u.DeleteInstances && t.owned && instance.GetDeletionTimestamp() == nil {
		if err = u.delete(ctx, objects, instance.GetName(), instance.GetUID(),
			metav1.DeletePropagationForeground); err == nil {
			c.deleted++
		}
	}
	switch {
	case err == nil || apierrors.IsNotFound(err):
	case apierrors.IsConflict(err):
		c.conflicts++
	default:
		if c.failed++; c.failed <= mostErrors {
			c.errs = append(c.errs, fmt.Errorf("clean up %s %s: %w", t.name, toolscache.MetaObjectToName(instance), err))
		}
	}
}

// releasePatch returns a patch that removes the platform's finalizer and inventory from an instance. The API server
// rejects the patch if the instance has changed, so that no finalizer of another controller is lost.
func releasePatch(instance *metav1.PartialObjectMetadata) map[string]any {
	left := slices.DeleteFunc(slices.Clone(instance.GetFinalizers()), func(finalizer string) bool {
		return finalizer == instances.ChildrenFinalizer
	})
	return map[string]any{"metadata": map[string]any{
		"uid": instance.GetUID(), "resourceVersion": instance.GetResourceVersion(), "finalizers": left,
		"annotations": map[string]any{instances.InventoryAnnotation: nil},
	}}
}

// patch merges a patch into an object, except in a dry run.
func (u *uninstaller) patch(
	ctx context.Context, objects metadata.ResourceInterface, name string, patch map[string]any,
) error {
	data, err := json.Marshal(patch)
	if err == nil && u.Apply {
		_, err = objects.Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{FieldManager: instances.Name})
	}
	return err
}

// delete deletes an object, except in a dry run.
func (u *uninstaller) delete(
	ctx context.Context, objects metadata.ResourceInterface, name string, uid types.UID, policy metav1.DeletionPropagation,
) error {
	if !u.Apply {
		return nil
	}
	return objects.Delete(ctx, name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: ptr.To(uid)}, PropagationPolicy: ptr.To(policy),
	})
}
