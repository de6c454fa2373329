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
	outside                          int     // instances in other namespaces that cannot be released
	errs                             []error // the first ones
	failed                           int
}

// add adds the counts of another pass over the instances.
func (c *instanceCounts) add(pass instanceCounts) {
	c.released, c.withFinalizer = c.released+pass.released, c.withFinalizer+pass.withFinalizer
	c.deleted, c.foreign, c.example, c.outside = c.deleted+pass.deleted, pass.foreign, pass.example, pass.outside
}

// cleanUpInstances releases the instances of all types, and deletes those of types that are deleted.
func (u *uninstaller) cleanUpInstances(ctx context.Context) error {
	for i := range u.types {
		if err := u.cleanUpInstancesOf(ctx, &u.types[i]); err != nil {
			return err
		}
	}
	return nil
}

func (u *uninstaller) cleanUpInstancesOf(ctx context.Context, t *typeInfo) error {
	if t.unlisted {
		u.warnUnlisted(t)
		return nil
	}
	total, err := u.passOverInstances(ctx, t)
	switch {
	case apierrors.IsNotFound(err):
		t.unlisted = true
		u.warnUnlisted(t)
		return nil
	case err != nil:
		return err
	}
	u.reportInstances(t, total)
	if !u.deletesInstances(*t) || !u.Apply {
		return nil
	}
	return u.waitGone(ctx, "instances of "+t.name, func(ctx context.Context) (left int, example string, err error) {
		blocked := false
		_, err = u.eachInstance(ctx, t, func(instance *metav1.PartialObjectMetadata) {
			if !u.includes(instance.GetNamespace()) {
				return
			}
			left++
			if by := blockedByOthers(instance.GetFinalizers()); !blocked {
				example, blocked = toolscache.MetaObjectToName(instance).String()+by, by != ""
			}
		})
		if apierrors.IsNotFound(err) || apierrors.IsResourceExpired(err) && left > 0 {
			err = nil
		}
		return left, example, err
	})
}

// passOverInstances cleans up the instances of a type. It starts again if instances change in the meantime.
func (u *uninstaller) passOverInstances(ctx context.Context, t *typeInfo) (total instanceCounts, err error) {
	const mostPasses = 5
	for pass := 1; ; pass++ {
		var c instanceCounts
		limited, err := u.eachInstance(ctx, t, func(instance *metav1.PartialObjectMetadata) {
			u.cleanUpInstance(ctx, *t, instance, &c)
		})
		total.add(c)
		if c.failed > 0 {
			c.errs = append(c.errs, fmt.Errorf("%s of %s not cleaned up; fix the cause, and run the command again",
				count(c.failed, "instance"), t.name))
		}
		expired := apierrors.IsResourceExpired(err)
		switch {
		case expired && !u.Apply:
			fmt.Fprintf(u.Out, "note: the numbers for %s are too low, because the list expired\n", t.name)
			err = nil
		case expired && c.failed == 0: // not counted: the next pass gets further, because it skips what is done
			pass--
			continue
		}
		if err := errors.Join(append(c.errs, err)...); err != nil {
			return total, err
		}
		if c.conflicts == 0 {
			if limited {
				u.warnOtherNamespaces(t)
			}
			return total, nil
		}
		if pass == mostPasses {
			return total, fmt.Errorf("%s of %s changed while they were cleaned up; run the command again",
				count(c.conflicts, "instance"), t.name)
		}
	}
}

// reportInstances prints what was done with the instances of a type, and what remains.
func (u *uninstaller) reportInstances(t *typeInfo, total instanceCounts) {
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
	if total.outside > 0 {
		fmt.Fprintf(u.Out, "note: %s of %s outside --namespaces not released, because you are not permitted to patch them\n",
			count(total.outside, "instance"), t.name)
		u.warnOtherNamespaces(t)
	}
}

// warnUnlisted prints that the instances of a type can have the finalizer of the platform.
func (u *uninstaller) warnUnlisted(t *typeInfo) {
	fmt.Fprintf(u.Out, "note: the instances of %s cannot be listed, because the API server does not serve the type; they "+
		"can have the finalizer %s, which must be removed manually\n", t.name, instances.ChildrenFinalizer)
}

// warnOtherNamespaces prints how to find the instances that have not been released.
func (u *uninstaller) warnOtherNamespaces(t *typeInfo) {
	fmt.Fprintf(u.Out, "note: instances of %s in other namespaces can have the finalizer %s, which must be removed "+
		"manually; find them with: kubectl get %s --all-namespaces "+
		"-o custom-columns=NAMESPACE:.metadata.namespace,NAME:.metadata.name,FINALIZERS:.metadata.finalizers\n",
		t.name, instances.ChildrenFinalizer, t.name)
}

// eachInstance lists the instances of a type in all namespaces. If this is forbidden and the platform is limited to
// namespaces, it lists only the instances in these namespaces, and limited is true.
func (u *uninstaller) eachInstance(
	ctx context.Context, t *typeInfo, f func(*metav1.PartialObjectMetadata),
) (limited bool, err error) {
	err = u.eachInstanceIn(ctx, t, metav1.NamespaceAll, f)
	if !apierrors.IsForbidden(err) || !t.namespaced || len(u.Namespaces) == 0 {
		return false, err
	}
	for _, namespace := range u.Namespaces {
		if err := u.eachInstanceIn(ctx, t, namespace, f); err != nil {
			return true, err
		}
	}
	return true, nil
}

func (u *uninstaller) eachInstanceIn(
	ctx context.Context, t *typeInfo, namespace string, f func(*metav1.PartialObjectMetadata),
) error {
	const page = 500
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return u.metadata.Resource(t.gvr).Namespace(namespace).List(ctx, options)
	}
	err := eachPage(ctx, list, page, func(object runtime.Object) error {
		f(object.(*metav1.PartialObjectMetadata))
		return ctx.Err()
	})
	if err != nil {
		return fmt.Errorf("list the instances of %s: %w", t.name, err)
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
	included := u.includes(instance.GetNamespace())
	if err == nil && included && u.deletesInstances(t) && instance.GetDeletionTimestamp() == nil {
		if err = u.delete(ctx, objects, instance.GetName(), instance.GetUID(),
			metav1.DeletePropagationForeground); err == nil {
			c.deleted++
		}
	}
	switch {
	case err == nil || apierrors.IsNotFound(err):
	case apierrors.IsConflict(err):
		c.conflicts++
	case apierrors.IsForbidden(err) && !included:
		c.outside++
	default:
		if c.failed++; c.failed <= mostErrors {
			c.errs = append(c.errs, fmt.Errorf("clean up %s %s: %w", t.name, toolscache.MetaObjectToName(instance), err))
		}
	}
}

// releasePatch returns a patch that removes the platform's finalizer and annotations from an instance. The API server
// rejects the patch if the instance has changed, so that no finalizer of another controller is lost.
func releasePatch(instance *metav1.PartialObjectMetadata) map[string]any {
	left := slices.DeleteFunc(slices.Clone(instance.GetFinalizers()), func(finalizer string) bool {
		return finalizer == instances.ChildrenFinalizer
	})
	return map[string]any{"metadata": map[string]any{
		"uid": instance.GetUID(), "resourceVersion": instance.GetResourceVersion(), "finalizers": left,
		"annotations": map[string]any{instances.InventoryAnnotation: nil, instances.WitnessAnnotation: nil},
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
