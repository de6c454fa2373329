package uninstall

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/acceptance"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/servingcert"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/webhook"
)

var (
	webhookConfigurations = admissionregistrationv1.SchemeGroupVersion.WithResource("validatingwebhookconfigurations")
	controllerRevisions   = appsv1.SchemeGroupVersion.WithResource("controllerrevisions")
	secrets               = corev1.SchemeGroupVersion.WithResource("secrets")
)

// deleteWebhook deletes the ValidatingWebhookConfiguration, unless it contains other webhooks.
func (u *uninstaller) deleteWebhook(ctx context.Context) error {
	config, err := u.dynamic.Resource(webhookConfigurations).Get(ctx, u.WebhookName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the ValidatingWebhookConfiguration %s: %w", u.WebhookName, err)
	}
	list, _, _ := unstructured.NestedSlice(config.Object, "webhooks")
	for _, item := range list {
		if entry, _ := item.(map[string]any); entry["name"] != webhook.Name {
			return fmt.Errorf("the ValidatingWebhookConfiguration %s contains the webhook %v of another program: "+
				"remove %s from it, or set --webhook-name", u.WebhookName, entry["name"], webhook.Name)
		}
	}
	return u.deleteObject(ctx, webhookConfigurations, "", config, "the ValidatingWebhookConfiguration "+u.WebhookName)
}

func (u *uninstaller) deleteSecret(ctx context.Context) error {
	secret, err := u.getSecret(ctx)
	if err != nil || secret == nil {
		return err
	}
	return u.deleteObject(ctx, secrets, u.Namespace, secret, fmt.Sprintf("the Secret %s/%s", u.Namespace, u.WebhookName))
}

// checkSecret returns an error if another program uses the Secret. It is called before anything is changed.
func (u *uninstaller) checkSecret(ctx context.Context) error {
	_, err := u.getSecret(ctx)
	return err
}

// getSecret returns the Secret of the webhook, or nil if it does not exist. It returns an error if the Secret contains
// something other than certificates and keys of the webhook. The Secret can be empty if it was created in advance.
func (u *uninstaller) getSecret(ctx context.Context) (*unstructured.Unstructured, error) {
	secret, err := u.dynamic.Resource(secrets).Namespace(u.Namespace).Get(ctx, u.WebhookName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the Secret %s/%s: %w", u.Namespace, u.WebhookName, err)
	}
	data, _, _ := unstructured.NestedMap(secret.Object, "data")
	keys := slices.Collect(maps.Keys(data))
	if len(keys) > 0 && !servingcert.IsOwn(keys) {
		return nil, fmt.Errorf("the Secret %s/%s belongs to another program, because it does not contain the keys of the "+
			"webhook: set --webhook-name to the value with which the platform runs", u.Namespace, u.WebhookName)
	}
	return secret, nil
}

// deleteObject deletes an object and reports it.
func (u *uninstaller) deleteObject(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, object metav1.Object, what string,
) error {
	u.report("deleted", "delete", 1, "%s", what)
	if !u.Apply {
		return nil
	}
	err := u.metadata.Resource(gvr).Namespace(namespace).Delete(ctx, object.GetName(), metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: ptr.To(object.GetUID())},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s: %w", what, err)
	}
	return nil
}

// eachBlueprint lists the Blueprints. It does nothing if Blueprints are not defined.
func (u *uninstaller) eachBlueprint(ctx context.Context, f func(*unstructured.Unstructured) error) error {
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return u.dynamic.Resource(blueprint.GroupVersionResource).List(ctx, options)
	}
	var failed error // the error from f
	err := eachPage(ctx, list, pageSize, func(object runtime.Object) error {
		failed = f(object.(*unstructured.Unstructured))
		return failed
	})
	switch {
	case failed != nil:
		return failed
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("list the Blueprints: %w", err)
	}
	return nil
}

// deleteBlueprints removes the platform's finalizer from all Blueprints and deletes them.
func (u *uninstaller) deleteBlueprints(ctx context.Context) error {
	deleted := 0
	err := u.eachBlueprint(ctx, func(object *unstructured.Unstructured) error {
		deleted++
		return u.deleteBlueprint(ctx, object)
	})
	if err != nil {
		return err
	}
	u.report("deleted", "delete", deleted, "%s", count(deleted, "Blueprint"))
	if !u.Apply {
		return nil
	}
	return u.waitGone(ctx, "Blueprints", func(ctx context.Context) (left int, example string, err error) {
		err = u.eachBlueprint(ctx, func(object *unstructured.Unstructured) error {
			left++
			example = object.GetName() + blockedByOthers(object.GetFinalizers())
			return nil
		})
		return left, example, err
	})
}

// deleteBlueprint removes the platform's finalizer from a Blueprint and then deletes the Blueprint. The order matters:
// a replica deletes the instances of a Blueprint that is being deleted, has the platform's finalizer, and has the
// deletion policy Delete. The deletion fails if a replica has added the finalizer again.
func (u *uninstaller) deleteBlueprint(ctx context.Context, object *unstructured.Unstructured) error {
	const attempts = 5
	name, uid := object.GetName(), object.GetUID()
	objects := u.metadata.Resource(blueprint.GroupVersionResource)
	if !u.Apply {
		return nil
	}
	var err error
	for range attempts {
		var current *metav1.PartialObjectMetadata
		current, err = objects.Get(ctx, name, metav1.GetOptions{})
		if err == nil && current.UID != uid {
			return nil
		}
		if err == nil && slices.Contains(current.Finalizers, acceptance.Finalizer) {
			current, err = objects.Patch(ctx, name, types.MergePatchType, withoutFinalizer(current, acceptance.Finalizer),
				metav1.PatchOptions{FieldManager: instances.Name})
		}
		if err == nil && current.DeletionTimestamp == nil {
			err = objects.Delete(ctx, name, metav1.DeleteOptions{
				Preconditions:     &metav1.Preconditions{UID: ptr.To(uid), ResourceVersion: ptr.To(current.ResourceVersion)},
				PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
			})
		}
		if !apierrors.IsConflict(err) {
			break
		}
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete Blueprint %s: %w", name, err)
	}
	return nil
}

// withoutFinalizer returns a merge patch that removes a finalizer. The API server rejects the patch if the object has
// changed, so that no finalizer of another controller is lost.
func withoutFinalizer(object *metav1.PartialObjectMetadata, finalizer string) []byte {
	left := slices.DeleteFunc(slices.Clone(object.Finalizers), func(f string) bool { return f == finalizer })
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": object.UID, "resourceVersion": object.ResourceVersion, "finalizers": left,
	}})
	return patch
}

// deleteManifest deletes the CustomResourceDefinition of Blueprints. All Blueprints must have been deleted.
func (u *uninstaller) deleteManifest(ctx context.Context) error {
	name := blueprint.GroupVersionResource.GroupResource().String()
	crd, err := u.crds.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the CustomResourceDefinition %s: %w", name, err)
	}
	u.report("deleted", "delete", 1, "the CustomResourceDefinition %s", name)
	return u.deleteDefinition(ctx, name, crd.UID)
}

// deleteDefinition deletes a CustomResourceDefinition and waits until it is gone.
func (u *uninstaller) deleteDefinition(ctx context.Context, name string, uid types.UID) error {
	if !u.Apply {
		return nil
	}
	err := u.crds.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(uid)}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the CustomResourceDefinition %s: %w", name, err)
	}
	return u.waitGone(ctx, "the CustomResourceDefinition "+name, func(ctx context.Context) (int, string, error) {
		crd, err := u.crds.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && crd.UID != uid {
			return 0, "", nil
		}
		if err != nil {
			return 0, "", fmt.Errorf("read the CustomResourceDefinition %s: %w", name, err)
		}
		return 1, name + instances.BlockedBy(crd.Finalizers), nil
	})
}

// deleteRevisions deletes the accepted specs of Blueprints.
func (u *uninstaller) deleteRevisions(ctx context.Context) error {
	deleted := 0
	revisions := u.metadata.Resource(controllerRevisions).Namespace(u.Namespace)
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		options.LabelSelector = acceptance.RevisionLabel
		return revisions.List(ctx, options)
	}
	const page = 500
	err := eachPage(ctx, list, page, func(object runtime.Object) error {
		revision := object.(*metav1.PartialObjectMetadata)
		deleted++
		err := u.delete(ctx, revisions, revision.Name, revision.UID, metav1.DeletePropagationBackground)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("delete the ControllerRevisions in namespace %s: %w", u.Namespace, err)
	}
	u.report("deleted", "delete", deleted, "%s in namespace %s", count(deleted, "ControllerRevision"), u.Namespace)
	return nil
}

// pollInterval returns the interval at which remaining objects are listed. The interval grows with the elapsed time,
// because each poll lists all of them.
func pollInterval(elapsed time.Duration) time.Duration {
	const quick, slow = 500 * time.Millisecond, 5 * time.Second
	return min(max(elapsed/8, quick), slow)
}

// waitGone waits until left returns 0. It prints what it is waiting for, and returns ErrIncomplete if the number of
// objects has not decreased for Timeout.
func (u *uninstaller) waitGone(
	ctx context.Context, what string, left func(context.Context) (n int, example string, err error),
) error {
	const reportEvery = 10 * time.Second
	began := time.Now()
	progressed, reported, fewest := began, began.Add(pollInterval(0)-reportEvery), 0
	for {
		n, example, err := left(ctx)
		if err != nil || n == 0 {
			return err
		}
		now := time.Now()
		if fewest == 0 || n < fewest {
			progressed, fewest = now, n
		}
		if now.Sub(progressed) >= u.Timeout {
			return errBlocked(what, n, example, now.Sub(progressed))
		}
		if now.Sub(reported) >= reportEvery {
			reported = now
			fmt.Fprintf(u.Out, "waiting for %s: %d left, for example %s\n", what, n, example)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(pollInterval(now.Sub(began)), u.Timeout-now.Sub(progressed))):
		}
	}
}

// errBlocked returns an error about objects that have not been deleted. It mentions finalizers only if the example has
// some.
func errBlocked(what string, n int, example string, waited time.Duration) error {
	advice := "find out why, or set a longer --timeout, and run the command again"
	if strings.Contains(example, "blocked by finalizer") {
		advice = "remove the finalizers of other controllers, or let these controllers finish, and run the command again"
	}
	return fmt.Errorf("%w: after %s, %d of the %s are left, for example %s; %s", ErrIncomplete,
		waited.Round(time.Second), n, what, example, advice)
}
