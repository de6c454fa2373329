package instances

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/children"
)

// reportAfter is the time after which the status shows why an instance that is being deleted still exists. Most
// deletions take less time and therefore need no additional write.
const reportAfter = 2 * time.Second

// maxListedFinalizers limits the finalizers of a child in the message of an instance that is being deleted.
const maxListedFinalizers = 10

// hasStatus reports whether the type is known to have a status that can be written.
func (r *Reconciler) hasStatus() bool { return r.Compiled != nil || r.Spec.Type.CRD == "" }

// reportDeletion writes to the status why an instance still exists after a cleanup. pending and err are the result of
// the cleanup.
func (r *Reconciler) reportDeletion(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured,
	pending []children.PendingChild, err error,
) error {
	blocked := r.blockedChildren(self)
	if len(blocked) > 0 {
		access, _ := r.accessFor(ctx, self) // if the identity is rejected, the access hides all children
		access.hideUnreadable(ctx, blocked)
	}
	ready := deletion(self, blocked, pending, err)
	if ready.Message == "" || ctx.Err() != nil || err == nil && !r.hasStatus() {
		return err
	}
	if wait := reportAfter - time.Since(self.GetDeletionTimestamp().Time); wait > 0 {
		return cmp.Or(err, dynamiccontroller.RequeueAfter(wait))
	}
	return r.report(ctx, id, self, ready, nil, err)
}

// deletion returns the Ready condition of an instance that is being deleted. Its message is empty if nothing is
// pending. blocked lists the children that Kubernetes cannot delete yet, and pending those that the platform deletes.
func deletion(
	self *unstructured.Unstructured, blocked, pending []children.PendingChild, err error,
) metav1.Condition {
	c := metav1.Condition{Type: conditionReady, Status: metav1.ConditionFalse, Reason: reasonDeleting}
	switch {
	case len(pending) > 0 && isRequeue(err) && rejectionIn(err) == nil:
		c.Message = pendingMessage(pending)
		return c
	case rejectionIn(err) != nil:
		c.Reason, c.Message = rejectionIn(err).Reason, rejectionIn(err).Message
		return c
	case isRequeue(err):
		return c // already written by reportCleanup
	case err != nil:
		c.Reason, c.Message = reasonOf(children.Result{}, err), Truncate(err.Error())
		return c
	}
	if left := leftBehind(self); left != nil {
		return *left // other finalizers can keep the instance
	}
	finalizers := slices.DeleteFunc(self.GetFinalizers(), func(f string) bool { return f == ChildrenFinalizer })
	inForeground := slices.Contains(finalizers, metav1.FinalizerDeleteDependents)
	switch {
	case inForeground && len(blocked) > 0:
		c.Message = pendingMessage(blocked)
	case inForeground && len(finalizers) == 1:
		c.Message = "waiting for Kubernetes to delete the children"
	case len(finalizers) > 0:
		c.Message = Truncate("waiting for the instance to be released" + BlockedBy(finalizers))
	}
	return c
}

// blockedChildren returns the cached children that are being deleted but still have finalizers.
func (r *Reconciler) blockedChildren(self *unstructured.Unstructured) (blocked []children.PendingChild) {
	for _, kind := range r.Children {
		owned, _ := r.ownedBy(kind.GVR, self.GetUID())
		for i, child := range owned {
			owned[i] = nil // holds its decoded metadata
			if !canBeOwned(child, self) || child.GetDeletionTimestamp() == nil || len(child.GetFinalizers()) == 0 {
				continue
			}
			blocked = append(blocked, children.PendingChild{
				ObjectIdentifiers: dynamiccontroller.ObjectIdentifiers{
					GVR: kind.GVR, NamespacedKey: cache.NewObjectName(child.GetNamespace(), child.GetName()).String(),
				},
				Kind: kind.GVK.GroupKind(), Deleting: true,
				Finalizers:  slices.Clone(child.GetFinalizers()[:min(maxListedFinalizers, len(child.GetFinalizers()))]),
				Annotations: map[string]string{resourceAnnotation: child.GetAnnotations()[resourceAnnotation]},
			})
		}
	}
	slices.SortFunc(blocked, func(a, b children.PendingChild) int {
		return cmp.Or(strings.Compare(a.Kind.Kind, b.Kind.Kind), strings.Compare(a.NamespacedKey, b.NamespacedKey))
	})
	return blocked
}

// SetPaused pauses or resumes all instances and reports whether the state has changed.
func (r *Reconciler) SetPaused(paused bool) (changed bool) {
	if r.paused.Swap(paused) == paused {
		return false
	}
	lister, err := r.engine.Lister(r.GVR)
	if err != nil {
		return true // the type is no longer served
	}
	all, _ := lister.Objects("", nil) // the others are reconciled when the cache has synced
	for _, instance := range all {
		key := cache.NewObjectName(instance.GetNamespace(), instance.GetName()).String()
		r.engine.Enqueue(dynamiccontroller.ObjectIdentifiers{GVR: r.GVR, NamespacedKey: key})
	}
	return true
}

// IsPaused reports whether an object has the annotation that pauses it.
func IsPaused(object metav1.Object) bool { return object.GetAnnotations()[PausedAnnotation] == "true" }

// pausedBy returns "Blueprint" if the Blueprint is paused, "Instance" if only the instance is paused, and "" otherwise.
func (r *Reconciler) pausedBy(self *unstructured.Unstructured) string {
	switch {
	case r.paused.Load():
		return "Blueprint"
	case IsPaused(self):
		return "Instance"
	}
	return ""
}

// reportPause writes the Paused condition. The other conditions still describe the last reconcile. If the instance has
// never been reconciled, the Ready condition is Unknown.
func (r *Reconciler) reportPause(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured, by string,
) error {
	if !r.hasStatus() {
		return nil
	}
	what := "no changes are made"
	if self.GetDeletionTimestamp() != nil && slices.Contains(self.GetFinalizers(), ChildrenFinalizer) {
		what = "the instance is not deleted"
	}
	message := fmt.Sprintf("%s while the %s has the annotation %s", what, strings.ToLower(by), PausedAnnotation)
	conditions := []metav1.Condition{
		{Type: ConditionPaused, Status: metav1.ConditionTrue, Reason: by + "Paused", Message: message},
	}
	if ready := ConditionOf(self, conditionReady); ready == nil || ready.Reason == reasonPaused {
		conditions = append(conditions, metav1.Condition{
			Type: conditionReady, Status: metav1.ConditionUnknown, Reason: reasonPaused, Message: message,
		})
	}
	_, err := r.pauses.Set(ctx, id, self, conditions...)
	if errors.Is(err, handlers.ErrNoStatus) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// NotPaused returns the Paused condition of an object that is no longer paused.
func NotPaused() metav1.Condition {
	return metav1.Condition{Type: ConditionPaused, Status: metav1.ConditionFalse, Reason: "NotPaused"}
}

// observeDeletion makes gone keep the children of an instance if someone removes its finalizer: the platform has seen
// that the instance is being deleted, so the finalizer was not in vain.
func (r *Reconciler) observeDeletion(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured,
) {
	if self.GetDeletionTimestamp() != nil && slices.Contains(self.GetFinalizers(), ChildrenFinalizer) {
		r.children.Release(ctx, id, self.GetUID())
	}
}
