package platform

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// tellEvery is how often at most it is written how far an end is.
const tellEvery = time.Second

// endPoll is how often an end is looked at that waits for others, for each look lists all that is left: the longer it takes,
// the less often.
func endPoll(elapsed time.Duration) time.Duration {
	const quick, slow = 250 * time.Millisecond, 5 * time.Second
	return min(max(elapsed/8, quick), slow)
}

// cleanUp ends a Blueprint that is being deleted, before its finalizer is removed.
func (p *Platform) cleanUp(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured) error {
	d, known := p.registry.get(id.Name())
	if !known || d.uid != object.GetUID() || !d.ending {
		return dynamiccontroller.RequeueAfter(soon) // this replica has yet to see that it ends
	}
	b, err := blueprint.FromUnstructured(object)
	if err != nil {
		return dynamiccontroller.Terminal(err)
	}
	if d.revisionsProblem != "" {
		return dynamiccontroller.RequeueAfter(tellEvery)
	}
	name := blueprint.DefinitionName(b)
	p.defined.forget(name)
	deletes := d.deletes(b)
	switch {
	case d.gvr.Empty() && d.canDelete(b):
		return p.deleteHistory(ctx, b, false)
	case d.gvr.Empty():
		return nil // the type is another's, or there is none
	case deletes:
		if err := p.deleteAll(ctx, id, object, b, d); err != nil {
			return err
		}
		return p.deleteHistory(ctx, b, true)
	}
	if d.running != nil {
		return dynamiccontroller.RequeueAfter(soon)
	}
	if d.canDelete(b) {
		if served, err := p.wasServed(ctx, name, b); err != nil || served {
			return cmp.Or(err, dynamiccontroller.RequeueAfter(soon)) // this replica has yet to see it
		}
	}
	if err := p.freeAll(ctx, d.gvr); err != nil {
		return err
	}
	return p.leaveBehind(ctx, name, b)
}

// wasServed reports whether, according to the API server, the type was created for the Blueprint or a spec of it is stored.
func (p *Platform) wasServed(ctx context.Context, crdName string, b *blueprint.Blueprint) (bool, error) {
	crd, err := p.crds.ApiextensionsV1().CustomResourceDefinitions().Get(ctx, crdName, metav1.GetOptions{})
	switch {
	case err == nil && crd.Annotations[madeByKey] == string(b.UID):
		return true, nil
	case err != nil && !apierrors.IsNotFound(err):
		return false, fmt.Errorf("read the CustomResourceDefinition %s: %w", crdName, err)
	}
	selector := labels.SelectorFromSet(labels.Set{revisionLabelKey: revisionLabel(b.Name)}).String()
	list, err := p.revisionClient().List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return false, fmt.Errorf("list the stored revisions: %w", err)
	}
	return slices.ContainsFunc(list.Items, func(object unstructured.Unstructured) bool {
		read, err := readRevision(&object)
		r, ok := read.(*revision)
		return err == nil && ok && r.blueprint == b.Name && r.blueprintUID == b.UID // the cache ignores malformed ones, too
	}), nil
}

// deleteAll deletes the instances, then the type.
func (p *Platform) deleteAll(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured, b *blueprint.Blueprint, d decision) error {
	poll := endPoll(time.Since(object.GetDeletionTimestamp().Time))
	if wait := p.ends.due(id.Name(), poll, time.Now()); wait > 0 {
		return dynamiccontroller.RequeueAfter(wait) // an event brought it here
	}
	left, err := p.deleteInstances(ctx, d.gvr, object.GetDeletionTimestamp().Time)
	what := fmt.Sprintf("waiting for %s, and what it became, to go", instancesOf(left))
	if err == nil && left == 0 {
		var gone bool
		if gone, err = p.undefine(ctx, blueprint.DefinitionName(b), b); gone && err == nil {
			return nil
		}
		what = "waiting for the type to go"
	}
	if p.told.due(id.Name(), tellEvery, time.Now()) > 0 {
		return cmp.Or(err, dynamiccontroller.RequeueAfter(poll))
	}
	stands, standErr := p.standOf(b, d)
	if standErr != nil {
		return cmp.Or(err, standErr)
	}
	if err != nil {
		what = cut(err.Error())
	}
	stands.serving = condition(blueprint.Serving, reasonDeleting, what)
	stands.unsettled = poll
	statusErr := p.setStatus(ctx, id, object, stands, d)
	return cmp.Or(err, statusErr, stands.again())
}

func instancesOf(n int) string {
	if n == 1 {
		return "1 instance"
	}
	return fmt.Sprintf("%d instances", n)
}

// deleteInstances deletes what was there when the Blueprint was deleted, in the foreground: an instance is gone when its
// children are, for nobody could tell whose they were once the type is gone. It returns how many are left. What is made
// meanwhile does not count, or whoever makes it again each time would hold up the end.
func (p *Platform) deleteInstances(ctx context.Context, gvr schema.GroupVersionResource, before time.Time) (left int, err error) {
	var errs []error
	err = p.each(ctx, gvr, func(instance *metav1.PartialObjectMetadata) {
		if instance.CreationTimestamp.After(before) {
			return
		}
		left++
		if instance.GetDeletionTimestamp() != nil {
			return
		}
		err := p.client.Resource(gvr).Namespace(instance.GetNamespace()).Delete(ctx, instance.GetName(), metav1.DeleteOptions{
			Preconditions:     &metav1.Preconditions{UID: ptr.To(instance.GetUID())},
			PropagationPolicy: ptr.To(metav1.DeletePropagationForeground),
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("delete instance %s/%s: %w", instance.GetNamespace(), instance.GetName(), err))
		}
	})
	return left, errors.Join(append(errs, err)...)
}

// freeAll takes the platform's finalizer off the instances, for nobody will any more.
func (p *Platform) freeAll(ctx context.Context, gvr schema.GroupVersionResource) error {
	var errs []error
	err := p.each(ctx, gvr, func(instance *metav1.PartialObjectMetadata) {
		if slices.Contains(instance.GetFinalizers(), childrenFinalizer) {
			errs = append(errs, p.free(ctx, gvr, instance))
		}
	})
	return errors.Join(append(errs, err)...)
}

// free is refused if the instance has changed since it was read, and tried again then.
func (p *Platform) free(ctx context.Context, gvr schema.GroupVersionResource, instance *metav1.PartialObjectMetadata) error {
	left := slices.DeleteFunc(instance.GetFinalizers(), func(name string) bool { return name == childrenFinalizer })
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": instance.GetUID(), "resourceVersion": instance.GetResourceVersion(), "finalizers": left,
	}})
	if err == nil {
		_, err = p.client.Resource(gvr).Namespace(instance.GetNamespace()).Patch(ctx, instance.GetName(), types.MergePatchType, patch,
			metav1.PatchOptions{FieldManager: Name})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("take the finalizer off instance %s/%s: %w", instance.GetNamespace(), instance.GetName(), err)
	}
	return nil
}

// each calls f for every instance that the API server has. A type that is not served has none.
func (p *Platform) each(ctx context.Context, gvr schema.GroupVersionResource, f func(*metav1.PartialObjectMetadata)) error {
	const page = 500
	options := metav1.ListOptions{Limit: page}
	for {
		list, err := p.bare.Resource(gvr).List(ctx, options)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list the instances: %w", err)
		}
		for i := range list.Items {
			f(&list.Items[i])
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}
