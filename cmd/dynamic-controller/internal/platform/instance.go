package platform

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
)

// retellEvery is how often at most the message of a failure is written that stays, in other words.
const retellEvery = 10 * time.Second

// instances reconciles those of a Blueprint.
type instances struct {
	*program
	engine Engine
	reader whole // of children
	status statusWriter
	told   pace // of failures, in other words
}

// reconcile makes of an instance what its Blueprint says, as far as that can be made now, and says how far that is. What
// it waits for calls it again.
func (k *instances) reconcile(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured) error {
	defer k.count()
	switch {
	case self.GetDeletionTimestamp() != nil:
		return k.cleanUp(ctx, id, self)
	case k.compiled == nil:
		return nil
	}
	step, err := k.bringAbout(ctx, id, self)
	if ctx.Err() != nil {
		return cmp.Or(err, context.Cause(ctx)) // which says nothing of the instance
	}
	if apierrors.IsNotFound(err) && !k.isThere(id) {
		return nil
	}
	conditions := readiness(step, err)
	k.slowDown(&conditions[0], id, self)
	statusErr := k.status.set(ctx, id, self, wantedStatus{
		generation: self.GetGeneration(), mergesConditions: k.mergesConditions,
		conditions: conditions,
	})
	if apierrors.IsNotFound(statusErr) {
		return nil // it is gone, or its type is
	}
	return outcome(err, statusErr)
}

// outcome returns the result of a reconcile. An error from writing the status is a failure, even if the instance only
// waits for something.
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

// cleanUp deletes the children of a deleted instance that Kubernetes does not delete, and those of excluded resources,
// because finalizers can delay the deletion indefinitely.
func (k *instances) cleanUp(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured) error {
	var desired handlers.Desired
	if k.compiled != nil {
		there := k.present(ctx, self)
		step, err := k.compiled.Instance(self).Step(ctx, there.byID)
		if err != nil {
			return err
		}
		desired.Absent = there.absent(ctx, step.Excluded)
	}
	_, err := k.children.Reconcile(ctx, id, self, desired)
	return err
}

// slowDown keeps the message of a failure that stays, unless it is time for another. A text may be another each time (it has a
// time in it, or a number), and each that is written is an event, which brings the instance back before its retry is due.
func (k *instances) slowDown(now *metav1.Condition, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured) {
	if now.Reason != reasonFailed {
		k.told.forget(id.NamespacedKey)
		return
	}
	status, _ := self.Object["status"].(map[string]any)
	known, _ := conditionsOf(status, []metav1.Condition{*now})
	if len(known) == 0 || known[0].Reason != now.Reason || known[0].ObservedGeneration != self.GetGeneration() || known[0].Message == now.Message {
		return
	}
	if k.told.due(id.NamespacedKey, retellEvery, time.Now()) > 0 {
		now.Message = known[0].Message
	}
}

func (k *instances) gone(_ context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	k.told.forget(id.NamespacedKey)
	k.children.Forget(id)
	k.count()
	return nil
}

// count has the Blueprint's instances counted, once for all to which something happens until that is done.
func (k *instances) count() {
	if !k.uncounted.Swap(true) {
		k.engine.Enqueue(blueprintID(k.blueprint))
	}
}

func (k *instances) isThere(id dynamiccontroller.ObjectIdentifiers) bool {
	lister, err := k.engine.Lister(id.GVR)
	if err != nil {
		return false
	}
	_, err = lister.Get(id.NamespacedKey)
	return err == nil
}

// bringAbout applies what can be applied, and what that makes possible, and returns the last step. Of an instance whose
// children are as they should be that is the first, and nothing is written. It ends with errGoesOn when it has applied
// something and its steps have cost as much as one may: a long chain of resources, each of which makes the next possible,
// costs more than that in all, and others wait for the worker. Children of excluded resources are deleted before anything
// is applied, whatever is wrong with the other resources.
func (k *instances) bringAbout(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured) (blueprint.Step, error) {
	allowance := allowanceOf(self)
	share, exceeded := k.share(allowance), k.exceeds(allowance)
	// Keeping children changes what it is given, and an instance reads what it was made of.
	instance, parent := k.compiled.Instance(self.DeepCopy()), self
	there := k.present(ctx, self)
	var applied []blueprint.Rendered
	var cost uint64
	partial, began := true, false
	for {
		step, err := instance.Step(ctx, there.byID)
		if err != nil {
			return step, err
		}
		if exceeded != nil {
			_, err := k.children.Reconcile(ctx, id, parent, handlers.Desired{Partial: true, Absent: there.absent(ctx, step.Excluded)})
			return blueprint.Step{Problems: exceeded}, err
		}
		cost += step.Cost
		if there.look(ctx, step.Rendered) {
			continue
		}
		isPartial := len(step.Waiting)+len(step.Problems) > 0
		var absent []*unstructured.Unstructured
		if !began { // what is excluded follows from the instance, and stays the same
			absent = there.absent(ctx, step.Excluded)
		}
		if len(absent) == 0 && isPartial == partial && sameObjects(applied, step.Rendered) {
			return step, nil
		}
		stage := make([]*unstructured.Unstructured, 0, len(step.Rendered))
		for _, r := range step.Rendered {
			stage = append(stage, k.marked(r, id, share))
		}
		children, err := k.children.Reconcile(ctx, id, parent, handlers.Desired{
			Stages: [][]*unstructured.Unstructured{stage}, Partial: isPartial, Absent: absent, Kinds: k.compiled.Kinds(),
		})
		began = true
		changed := there.saw(children)
		if err != nil || !changed {
			return step, err
		}
		if cost > blueprint.MaxInstanceCost {
			return step, errGoesOn
		}
		applied, partial = step.Rendered, isPartial
	}
}

// errGoesOn asks for another call to go on from what has been applied. It is no failure.
var errGoesOn = fmt.Errorf("the instance is made in several turns: %w", dynamiccontroller.RequeueAfter(soon))
