package acceptance

import (
	"cmp"
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// blueprintReconciler applies the decisions of this replica to the cluster. It runs only on the leader.
type blueprintReconciler struct {
	logged      decisionLog
	definitions instances.Engine
	registry    *registry
	store       *historyStore
	crds        *crdApplier
	status      *statusReporter
	teardown    *teardown
	refusals    instances.Throttle // limits how often a refused CustomResourceDefinition is sent again
}

// reconcile does nothing until this replica has made a decision about the Blueprint's generation. The definition
// reconciler enqueues the Blueprint after each decision.
func (r *blueprintReconciler) reconcile(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, object *unstructured.Unstructured,
) error {
	d, known := r.registry.get(id.Name())
	if !known || d.uid != object.GetUID() || d.generation != object.GetGeneration() {
		return nil
	}
	b, err := blueprint.FromUnstructured(object)
	if err != nil {
		return dynamiccontroller.Terminal(err)
	}
	adopted, wait, err := r.adoptOrWait(ctx, b, &d)
	if err != nil {
		return err
	}
	r.logged.log(ctx, b.Name, d)
	conditions, err := r.status.conditionsFor(b, d)
	if err != nil {
		return err
	}
	adopted.report(d, &conditions)
	conditions.serving = keepWhileSyncing(object, conditions.serving)
	if wait > 0 && (conditions.updateAfter == 0 || wait < conditions.updateAfter) {
		conditions.updateAfter = wait
	}
	if err := r.store.restoreRollout(b, d); err != nil {
		return err
	}
	statusErr := r.status.write(ctx, id, object, conditions, d)
	return cmp.Or(adopted.err(), earliest(
		r.store.storeRollout(ctx, b, d), r.store.trim(ctx, b, d), statusErr, conditions.requeue()))
}

// gone is called after a Blueprint has been deleted. It discards the state that was kept for the Blueprint.
func (r *blueprintReconciler) gone(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	r.logged.forget(ctx, id.Name())
	r.status.counts.Forget(id.Name())
	r.refusals.Forget(id.Name())
	r.teardown.polls.Forget(id.Name())
	r.teardown.failures.Forget(id.Name())
	return nil
}

// earliest returns the first error that is not a requeue request. Otherwise, it returns the requeue request with
// the shortest delay, or nil.
func earliest(errs ...error) (first error) {
	for _, err := range errs {
		wait, again := dynamiccontroller.RequeueDelay(err)
		if err != nil && !again {
			return err
		}
		if before, has := dynamiccontroller.RequeueDelay(first); again && (!has || wait < before) {
			first = err
		}
	}
	return first
}

// objects returns n followed by the noun, which is in the plural unless n is 1.
func objects(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
