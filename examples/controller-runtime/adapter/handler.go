package adapter

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Handler returns a handler that calls the reconciler. Like a controller-runtime controller, the engine also calls it
// for deleted objects. Results and errors have the same meaning as in controller-runtime:
//
//   - An error is retried with backoff, and the Result is ignored. After Config.QueueMaxRetries retries, the object is
//     parked until its next event or resync.
//   - A reconcile.TerminalError is not retried. The object is parked.
//   - A positive Result.RequeueAfter requeues the object after the delay.
//   - Result.Requeue requeues the object with backoff.
//   - A panic counts as a failure. The engine logs its stack.
//
// Result.Priority is ignored. The engine gives events precedence over initial lists and resyncs.
//
// The logger in the context is the engine's logger, with the type and the object. Like controller-runtime, Handler adds
// the values "namespace", "name" and "reconcileID".
func Handler(r reconcile.Reconciler) dynamiccontroller.Handler {
	return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		logger := log.FromContext(ctx, "namespace", id.Namespace(), "name", id.Name(), "reconcileID", uuid.NewUUID())
		request := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: id.Namespace(), Name: id.Name()}}
		result, err := r.Reconcile(log.IntoContext(ctx, logger), request)
		switch {
		case errors.Is(err, reconcile.TerminalError(nil)):
			return dynamiccontroller.Terminal(err)
		case err != nil:
			return err
		case result.RequeueAfter > 0:
			return dynamiccontroller.RequeueAfter(result.RequeueAfter)
		case result.Requeue: //nolint:staticcheck // Requeue is deprecated, but existing reconcilers use it
			return dynamiccontroller.RequeueAfter(0)
		default:
			return nil
		}
	}
}
