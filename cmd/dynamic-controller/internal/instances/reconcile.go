package instances

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

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/memory"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/children"
)

const (
	// messageInterval is the minimum time between two messages about a persistent failure or deletion. progressInterval is
	// the minimum time between two messages about the progress of a waiting instance.
	messageInterval  = 10 * time.Second
	progressInterval = 2 * time.Second
	// continueAfter is the delay before the next reconcile of an instance whose expressions are too costly for a single
	// reconcile.
	continueAfter = 50 * time.Millisecond
)

// reconcile applies as many children of an instance as possible and writes the status. Events for the children trigger
// it again.
func (r *Reconciler) reconcile(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured,
) error {
	defer r.requestCount()
	r.referrers.triggers.started(id.NamespacedKey)
	switch by := r.pausedBy(self); {
	case by != "":
		return r.reportPause(ctx, id, self, by)
	case self.GetDeletionTimestamp() != nil:
		pending, err := r.cleanUp(ctx, id, self, true)
		return r.reportDeletion(ctx, id, self, pending, err)
	case r.Compiled == nil:
		return nil
	}
	var step blueprint.Step
	var result children.Result
	access, err := r.accessFor(ctx, self)
	if err == nil {
		step, result, err = r.applyChildren(ctx, id, self, access)
		r.recordChildren(ctx, self, access)
		err = shortened(err)
		access.hideUnreadable(ctx, result.Pending)
		err = access.lookups.settle(err)
	}
	if ctx.Err() != nil {
		return cmp.Or(err, context.Cause(ctx)) // interrupted, so the result is incomplete
	}
	if apierrors.IsNotFound(err) && !r.isCached(id) {
		return nil
	}
	err = retryRejected(self, err)
	err = r.report(ctx, id, self, readiness(r.Compiled, step, result, err), step.Report, err)
	if err == nil && access.lookups != nil && access.lookups.unwatched {
		err = dynamiccontroller.RequeueAfter(unwatchedInterval)
	}
	return err
}

// report writes the status of an instance after a reconcile that returned err. rest contains the conditions and fields
// that the Blueprint defines, or is nil if they have not been computed.
func (r *Reconciler) report(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured, ready metav1.Condition,
	rest *blueprint.Report, err error,
) error {
	if wait := r.throttleMessage(&ready, id, self); wait > 0 && err == nil {
		err = dynamiccontroller.RequeueAfter(wait)
	}
	conditions := []metav1.Condition{ready}
	if before := ConditionOf(self, ConditionPaused); before != nil && before.Status == metav1.ConditionTrue {
		conditions = append(conditions, NotPaused())
	}
	if regressed := r.regressed(self, ready); regressed != nil {
		conditions = append(conditions, *regressed)
	}
	conditions = append(conditions, r.authorsConditions(self, rest)...)
	fields, statusErr := r.authorsFields(ctx, id, self, rest)
	if statusErr == nil {
		fields["observedGeneration"] = self.GetGeneration()
		if r.ReportsRevision && r.Name != "" {
			fields["revision"] = r.Name
		}
		_, statusErr = r.status.SetStatus(ctx, id, self, conditions, fields)
		if statusErr == nil && r.gate != nil {
			r.gate.Moved(id.NamespacedKey, r.Name)
		}
	}
	switch {
	case apierrors.IsInvalid(statusErr) && rest != nil && len(rest.Fields) > 0:
		return r.report(ctx, id, self, invalidStatus(statusErr), &blueprint.Report{Conditions: rest.Conditions}, err)
	case errors.Is(statusErr, handlers.ErrNoStatus), statusErr != nil && !r.hasStatus():
		return err
	case apierrors.IsNotFound(statusErr):
		return nil // the instance or its type has been deleted
	}
	return outcome(err, statusErr)
}

// outcome combines the result of a reconcile with a failure to write the status or to read existing objects. If the
// reconcile only requested a requeue, outcome returns just the failure.
func outcome(err, failure error) error {
	switch {
	case failure == nil:
		return err
	case err == nil || isRequeue(err):
		return failure
	default:
		return errors.Join(err, failure)
	}
}

// cleanUp handles an instance that is being deleted. It deletes the children that Kubernetes does not delete. It also
// deletes the children of excluded resources, because finalizers can delay the deletion of the instance indefinitely.
// If evaluate is false, it does not evaluate which resources are excluded. Unless something fails, it returns
// the children that must be deleted and still exist.
func (r *Reconciler) cleanUp(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured, evaluate bool,
) (pending []children.PendingChild, err error) {
	access, err := r.accessFor(ctx, self)
	if err != nil && rejectionIn(err) == nil {
		return nil, err
	}
	desired := children.Desired{As: access.as, LeftBehind: func(ctx context.Context, left []children.LeftBehind) error {
		return r.reportLeftBehind(ctx, id, self, left)
	}}
	if r.Compiled != nil && evaluate {
		observed := r.observe(ctx, self, access.reader)
		step, err := r.Compiled.Instance(self).Step(ctx, observed.byKey)
		if err != nil {
			return nil, err
		}
		desired.Absent = observed.absent(ctx, step.Excluded)
	}
	result, err := r.children.Reconcile(ctx, id, self, desired)
	r.recordChildren(ctx, self, access)
	access.hideUnreadable(ctx, result.Pending)
	if result.Failure == nil {
		pending = result.Pending
	}
	return pending, r.reportCleanup(ctx, id, self, access.client, shortened(err))
}

// throttleMessage limits how often the message of a condition changes. It keeps the previous message of a persistent
// failure or deletion until messageInterval has passed, and that of a waiting instance until progressInterval has
// passed. It returns the remaining time, or 0 if the new message is used.
//
// A message can contain a time or a number that changes with every attempt. Every status write causes an event, which
// would reconcile the instance before its backoff ends. While an instance with many children becomes ready, the message
// changes with each child.
func (r *Reconciler) throttleMessage(
	ready *metav1.Condition, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured,
) (wait time.Duration) {
	key, interval := id.NamespacedKey, messageInterval
	switch ready.Reason {
	case reasonFailed, reasonForbidden, reasonRejected, reasonMemory, reasonDrifting, reasonDeleting,
		reasonCleanupForbidden:
	case reasonWaiting:
		interval = progressInterval
	default:
		r.messages.Forget(key)
		return 0
	}
	before := ConditionOf(self, ready.Type)
	isNew := before == nil || before.Reason != ready.Reason || before.ObservedGeneration != self.GetGeneration()
	switch {
	case isNew && ready.Reason == reasonWaiting: // the first message is usually replaced soon
		r.messages.Forget(key)
		r.messages.Wait(key, interval)
		return 0
	case isNew, before.Message == ready.Message:
		return 0
	}
	if wait = r.messages.Wait(key, interval); wait > 0 {
		ready.Message = before.Message
	}
	return wait
}

// gone handles an instance that no longer exists. A deletion can remove an instance shortly after the finalizer was
// added. The children that the platform has written for it are then deleted.
func (r *Reconciler) gone(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	r.messages.Forget(id.NamespacedKey)
	r.referrers.forget(id.NamespacedKey)
	r.statuses.forget(id.NamespacedKey)
	r.reviews.Forget(id.NamespacedKey)
	r.requestCount()
	return r.children.Forget(ctx, id)
}

func (r *Reconciler) isCached(id dynamiccontroller.ObjectIdentifiers) bool {
	lister, err := r.engine.Lister(id.GVR)
	if err != nil {
		return false
	}
	_, err = lister.Get(id.NamespacedKey)
	return err == nil
}

// applyChildren repeats steps until one changes nothing, and returns that step. If the children are up to date, it
// returns the first step and writes nothing. If the expressions cost too much in total, it returns errContinue so that
// other instances are reconciled in between. The children of a resource are deleted in the first step that excludes the
// resource, before anything is applied, and even if other resources have problems. The result is that of the last step
// that has applied children.
func (r *Reconciler) applyChildren(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured, access access,
) (blueprint.Step, children.Result, error) {
	observed := r.observe(ctx, self, access.reader)
	step, result, err := r.applySteps(ctx, id, self, access, observed)
	step, err = observed.settle(r.Compiled, step, err)
	access.lookups.unwatched = access.lookups.unwatched || observed.unsynced
	return step, result, err
}

func (r *Reconciler) applySteps(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured, access access,
	observed *observed,
) (step blueprint.Step, result children.Result, err error) {
	budget := expansionBudget(self)
	if err := reserve(ctx, self); err != nil {
		return step, result, err
	}
	// The children.Reconciler modifies its parent, but expressions must read the original instance.
	instance, parent := r.Compiled.Instance(self.DeepCopy()), self
	instance = instance.WithLookup(access.lookups.lookUp).WithInstances(r.isServed)
	var applied []blueprint.Rendered
	var excluded []blueprint.Excluded // the excluded resources of the previous step
	var cost uint64
	partial := true
	var previous int64 // the memory of the previous step
	for {
		if step, err = instance.Step(ctx, observed.byKey); err != nil {
			return step, result, err
		}
		memory.FromContext(ctx).Shrink(previous)
		previous = step.Memory
		if exceeded := r.exceeds(budget, step.Collections); exceeded != nil {
			result, err = r.children.Reconcile(ctx, id, parent,
				children.Desired{Partial: true, Absent: observed.absent(ctx, step.Excluded), As: access.as})
			return blueprint.Step{Problems: exceeded}, result, err
		}
		cost += step.Cost
		if observed.find(ctx, slices.Concat(step.Rendered, step.Named)) {
			continue
		}
		isPartial := len(step.Waiting)+len(step.Problems) > 0
		absent := observed.absent(ctx, newlyExcluded(excluded, step.Excluded))
		excluded = step.Excluded
		if len(absent) == 0 && isPartial == partial && sameObjects(applied, step.Rendered) {
			return step, result, nil
		}
		stages, failed := r.stages(self, step, budget)
		if failed != nil {
			return step, result, failed
		}
		result, err = r.children.Reconcile(ctx, id, parent, children.Desired{
			Stages: stages, Partial: isPartial, Absent: absent, Kinds: r.Compiled.Kinds(),
			As: access.as,
		})
		access.client.applied(result)
		changed := observed.update(result.Existing())
		if err != nil || !changed {
			return step, result, err
		}
		if cost > blueprint.MaxInstanceCost {
			return step, result, errContinue
		}
		applied, partial = step.Rendered, isPartial
	}
}

// errContinue requests another reconcile for the remaining children. It does not count as a failure.
var errContinue = fmt.Errorf("the instance is created in several reconciles: %w",
	dynamiccontroller.RequeueAfter(continueAfter))
