package instances

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/children"
)

const (
	// messageInterval is the minimum time between two messages about a persistent failure or deletion.
	messageInterval = 10 * time.Second
	// continueAfter is the delay before the next reconcile of an instance whose expressions are too costly for one
	// reconcile.
	continueAfter = 50 * time.Millisecond
)

// reconcile applies as many children of an instance as possible and writes the status. It is called again on events of
// the children.
func (r *Reconciler) reconcile(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured,
) error {
	defer r.requestCount()
	switch by := r.pausedBy(self); {
	case by != "":
		return r.reportPause(ctx, id, self, by)
	case self.GetDeletionTimestamp() != nil:
		return r.reportDeletion(ctx, id, self, r.cleanUp(ctx, id, self))
	case r.Compiled == nil:
		return nil
	}
	var step blueprint.Step
	access, err := r.accessFor(ctx, self)
	if err == nil {
		step, err = r.applyChildren(ctx, id, self, access)
		access.hideUnreadable(ctx, pendingIn(err))
	}
	if ctx.Err() != nil {
		return cmp.Or(err, context.Cause(ctx)) // the result says nothing about the instance
	}
	if apierrors.IsNotFound(err) && !r.isCached(id) {
		return nil
	}
	err = retryRejected(self, err)
	return r.report(ctx, id, self, readiness(step, err), err)
}

// report writes the status of an instance after a reconcile that returned err.
func (r *Reconciler) report(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured, ready metav1.Condition,
	err error,
) error {
	if r.throttleMessage(&ready, id, self) && err == nil {
		err = dynamiccontroller.RequeueAfter(messageInterval)
	}
	conditions := []metav1.Condition{ready}
	if before := ConditionOf(self, ConditionPaused); before != nil && before.Status == metav1.ConditionTrue {
		conditions = append(conditions, NotPaused())
	}
	if regressed := r.regressed(self, ready); regressed != nil {
		conditions = append(conditions, *regressed)
	}
	fields := map[string]any{"observedGeneration": self.GetGeneration()}
	if r.ReportsRevision && r.Name != "" {
		fields["revision"] = r.Name
	}
	_, statusErr := r.status.SetStatus(ctx, id, self, conditions, fields)
	switch {
	case errors.Is(statusErr, handlers.ErrNoStatus), statusErr != nil && !r.hasStatus():
		return err
	case apierrors.IsNotFound(statusErr):
		return nil // the instance or its type has been deleted
	}
	return outcome(err, statusErr)
}

// outcome returns the result of a reconcile. An error from writing the status is a failure, even if the instance is
// only waiting for something.
func outcome(err, statusErr error) error {
	switch {
	case statusErr == nil:
		return err
	case err == nil || isRequeue(err):
		return statusErr
	default:
		return errors.Join(err, statusErr)
	}
}

// cleanUp is called for an instance that is being deleted. It deletes the children that Kubernetes does not delete. It
// also deletes the children of excluded resources, because finalizers can delay the deletion of the instance
// indefinitely.
func (r *Reconciler) cleanUp(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured,
) error {
	access, err := r.accessFor(ctx, self)
	if err != nil && rejectionIn(err) == nil {
		return err
	}
	desired := children.Desired{As: access.as}
	if r.Compiled != nil {
		observed := r.observe(ctx, self, access.reader)
		step, err := r.Compiled.Instance(self).Step(ctx, observed.byID)
		if err != nil {
			return err
		}
		desired.Absent = observed.absent(ctx, step.Excluded)
	}
	_, err = r.children.Reconcile(ctx, id, self, desired)
	access.hideUnreadable(ctx, pendingIn(err))
	return r.reportCleanup(ctx, id, self, access.client, err)
}

// throttleMessage keeps the previous message of a persistent failure or deletion unless messageInterval has passed. It
// reports whether it kept the message. A message can contain a time or a number that changes with every attempt. Every
// status write causes an event, which would reconcile the instance before its backoff ends.
func (r *Reconciler) throttleMessage(
	ready *metav1.Condition, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured,
) (throttled bool) {
	switch ready.Reason {
	case reasonFailed, reasonForbidden, reasonRejected, reasonDeleting, reasonCleanupForbidden:
	default:
		r.failures.Forget(id.NamespacedKey)
		return false
	}
	before := ConditionOf(self, ready.Type)
	if before == nil || before.Reason != ready.Reason || before.ObservedGeneration != self.GetGeneration() ||
		before.Message == ready.Message {
		return false
	}
	if r.failures.Wait(id.NamespacedKey, messageInterval) == 0 {
		return false
	}
	ready.Message = before.Message
	return true
}

// gone is called for instances that do not exist.
func (r *Reconciler) gone(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	r.failures.Forget(id.NamespacedKey)
	r.children.Forget(id)
	r.requestCount()
	return nil
}

func (r *Reconciler) isCached(id dynamiccontroller.ObjectIdentifiers) bool {
	lister, err := r.engine.Lister(id.GVR)
	if err != nil {
		return false
	}
	_, err = lister.Get(id.NamespacedKey)
	return err == nil
}

// applyChildren repeats steps until a step changes nothing, and returns that step. If the children are up to date, it
// returns the first step and writes nothing. If the total cost of the expressions is too high, it returns errContinue,
// so that other instances are reconciled in between. Children of excluded resources are deleted before anything is
// applied, even if other resources have problems.
func (r *Reconciler) applyChildren(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured, access access,
) (blueprint.Step, error) {
	budget := expansionBudget(self)
	share, exceeded := r.share(budget), r.exceeds(budget)
	// The children.Reconciler modifies its parent, but the expressions must see the instance as it was read.
	instance, parent := r.Compiled.Instance(self.DeepCopy()), self
	observed := r.observe(ctx, self, access.reader)
	var applied []blueprint.Rendered
	var cost uint64
	partial, began := true, false
	for {
		step, err := instance.Step(ctx, observed.byID)
		if err != nil {
			return step, err
		}
		if exceeded != nil {
			_, err := r.children.Reconcile(ctx, id, parent,
				children.Desired{Partial: true, Absent: observed.absent(ctx, step.Excluded), As: access.as})
			return blueprint.Step{Problems: exceeded}, err
		}
		cost += step.Cost
		if observed.find(ctx, step.Rendered) {
			continue
		}
		isPartial := len(step.Waiting)+len(step.Problems) > 0
		var absent []*unstructured.Unstructured
		if !began { // the excluded resources depend only on the instance
			absent = observed.absent(ctx, step.Excluded)
		}
		if len(absent) == 0 && isPartial == partial && sameObjects(applied, step.Rendered) {
			return step, nil
		}
		existing, err := r.children.Reconcile(ctx, id, parent, children.Desired{
			Stages: r.stages(self, step, share), Partial: isPartial, Absent: absent, Kinds: r.Compiled.Kinds(),
			As: access.as,
		})
		began = true
		changed := observed.update(existing)
		if err != nil || !changed {
			return step, err
		}
		if cost > blueprint.MaxInstanceCost {
			return step, errContinue
		}
		applied, partial = step.Rendered, isPartial
	}
}

// errContinue requests another reconcile, which continues with the remaining children. It does not count as a failure.
var errContinue = fmt.Errorf("the instance is created in several reconciles: %w",
	dynamiccontroller.RequeueAfter(continueAfter))
