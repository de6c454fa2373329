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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/children"
)

// reportAfter is the duration after which the status of an instance that is being deleted shows why it still exists.
// Most deletions take less time and need no additional write.
const reportAfter = 2 * time.Second

// hasStatus reports whether the type is known to have a status, so that the status of instances can be written.
func (r *Reconciler) hasStatus() bool { return r.Compiled != nil || r.Spec.Type.CRD == "" }

// reportDeletion writes to the status why an instance still exists after a cleanup that returned err.
func (r *Reconciler) reportDeletion(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured, err error,
) error {
	blocked := r.blockedChildren(self)
	if len(blocked) > 0 {
		access, _ := r.accessFor(ctx, self) // an access that cannot be used hides all children
		access.hideUnreadable(ctx, blocked)
	}
	ready := deletion(self, blocked, err)
	if ready.Message == "" || ctx.Err() != nil || !r.hasStatus() {
		return err
	}
	if wait := reportAfter - time.Since(self.GetDeletionTimestamp().Time); wait > 0 {
		return cmp.Or(err, dynamiccontroller.RequeueAfter(wait))
	}
	return r.report(ctx, id, self, ready, err)
}

// deletion returns the Ready condition of an instance that is being deleted. Its message is empty if nothing is
// pending. The blocked children are those that Kubernetes cannot delete yet.
func deletion(self *unstructured.Unstructured, blocked []children.PendingChild, err error) metav1.Condition {
	c := metav1.Condition{Type: conditionReady, Status: metav1.ConditionFalse, Reason: reasonDeleting}
	var pending *children.PendingDeletionError
	switch {
	case errors.As(err, &pending):
		c.Message = pendingMessage(pending.Children)
		return c
	case rejectionIn(err) != nil:
		c.Reason, c.Message = rejectionIn(err).Reason, rejectionIn(err).Message
		return c
	case isRequeue(err):
		return c // the cleanup has been reported
	case err != nil:
		c.Reason, c.Message = reasonOf(err), Truncate(err.Error())
		return c
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

// blockedChildren returns the cached children that Kubernetes is deleting and whose deletion is blocked by finalizers.
func (r *Reconciler) blockedChildren(self *unstructured.Unstructured) (blocked []children.PendingChild) {
	for _, kind := range r.Children {
		owned, _ := r.ownedBy(kind.GVR, self.GetUID())
		for _, object := range owned {
			child, err := meta.Accessor(object)
			if err != nil || !canBeOwned(object, self) ||
				child.GetDeletionTimestamp() == nil || len(child.GetFinalizers()) == 0 {
				continue
			}
			blocked = append(blocked, children.PendingChild{
				ObjectIdentifiers: dynamiccontroller.ObjectIdentifiers{
					GVR: kind.GVR, NamespacedKey: cache.NewObjectName(child.GetNamespace(), child.GetName()).String(),
				},
				Kind: kind.GVK.GroupKind(), Deleting: true, Finalizers: child.GetFinalizers(), Annotations: child.GetAnnotations(),
			})
		}
	}
	slices.SortFunc(blocked, func(a, b children.PendingChild) int {
		return cmp.Or(strings.Compare(a.Kind.Kind, b.Kind.Kind), strings.Compare(a.NamespacedKey, b.NamespacedKey))
	})
	return blocked
}

// SetPaused pauses or resumes all instances. It reports whether the state has changed.
func (r *Reconciler) SetPaused(paused bool) (changed bool) {
	if r.paused.Swap(paused) == paused {
		return false
	}
	lister, err := r.engine.Lister(r.GVR)
	if err != nil {
		return true // the type is not served any longer
	}
	for object, err := range lister.All("", nil) {
		instance, accessErr := meta.Accessor(object)
		if err == nil && accessErr == nil {
			key := cache.NewObjectName(instance.GetNamespace(), instance.GetName()).String()
			r.engine.Enqueue(dynamiccontroller.ObjectIdentifiers{GVR: r.GVR, NamespacedKey: key})
		}
	}
	return true
}

// IsPaused reports whether an object has the annotation that pauses it.
func IsPaused(object metav1.Object) bool { return object.GetAnnotations()[PausedAnnotation] == "true" }

// pausedBy returns "Blueprint" if the Blueprint is paused, "Instance" if only the instance is paused, and otherwise "".
func (r *Reconciler) pausedBy(self *unstructured.Unstructured) string {
	switch {
	case r.paused.Load():
		return "Blueprint"
	case IsPaused(self):
		return "Instance"
	}
	return ""
}

// reportPause writes only the Paused condition, because the other conditions still describe the last reconcile.
func (r *Reconciler) reportPause(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured, by string,
) error {
	if !r.hasStatus() {
		return nil
	}
	what := "nothing is changed"
	if self.GetDeletionTimestamp() != nil && slices.Contains(self.GetFinalizers(), ChildrenFinalizer) {
		what = "the instance is not deleted"
	}
	_, err := r.pauses.Set(ctx, id, self, metav1.Condition{
		Type: ConditionPaused, Status: metav1.ConditionTrue, Reason: by + "Paused",
		Message: fmt.Sprintf("%s while the %s has the annotation %s", what, strings.ToLower(by), PausedAnnotation),
	})
	if errors.Is(err, handlers.ErrNoStatus) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// NotPaused returns the Paused condition of an object that is no longer paused.
func NotPaused() metav1.Condition {
	return metav1.Condition{Type: ConditionPaused, Status: metav1.ConditionFalse, Reason: "NotPaused"}
}
