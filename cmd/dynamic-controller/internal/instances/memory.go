package instances

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/memory"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

// busyInterval is the minimum delay before the next reconcile of an instance for which there was no memory. The maximum
// is twice as long.
const busyInterval = 500 * time.Millisecond

// withinBudget limits the memory of the handler. If the memory is not available, the handler's context is cancelled, so
// that the reconcile ends without a result.
func (r *Reconcilers) withinBudget(handler dynamiccontroller.Handler) dynamiccontroller.Handler {
	return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		limited, reservation := r.newest.memory.Reserve(ctx, id.GVR.String())
		defer reservation.Release() // also after a panic
		err := reservation.Claim(r.needs.of(id))
		if err == nil {
			err = handler(limited, id)
		}
		cause := context.Cause(limited)
		reservation.Release()
		var busy *memory.BusyError
		var tooLarge *memory.TooLargeError
		switch {
		case ctx.Err() != nil:
		case errors.As(cause, &busy):
			r.needs.set(id, busy.Needed)
			return dynamiccontroller.RequeueAfter(busyInterval + rand.N(busyInterval))
		case errors.As(cause, &tooLarge):
			err = r.refuse(ctx, id, tooLarge)
		}
		r.needs.set(id, 0)
		return err
	}
}

// needs holds how much memory instances need at least, for those that are waiting for memory. It is safe for concurrent
// use.
type needs struct{ sync.Map }

func (n *needs) of(id dynamiccontroller.ObjectIdentifiers) int64 {
	bytes, _ := n.Load(id)
	needed, _ := bytes.(int64)
	return needed
}

// set stores the size of the reservation that was not available. The next attempt claims half as much again, so that
// few attempts are needed.
func (n *needs) set(id dynamiccontroller.ObjectIdentifiers, bytes int64) {
	if bytes == 0 {
		n.Delete(id)
	} else if bytes > n.of(id) {
		n.Store(id, bytes+bytes/2)
	}
}

// refuse reports an instance that needs too much memory. It reads the instance without its content. If the instance is
// being deleted, refuse deletes the children without evaluating any expressions.
func (r *Reconcilers) refuse(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, cause *memory.TooLargeError,
) error {
	defer r.newest.requestCount() // the reconcile may have ended before it requested a count
	self, err := handlers.Live(r.newest.client).Get(ctx, id.GVR, id.Namespace(), id.Name())
	if apierrors.IsNotFound(err) {
		return r.gone(ctx, id)
	}
	if err != nil {
		return err
	}
	selected := r.reconcilerFor(id, self)
	switch {
	case selected == nil:
		return nil
	case selected.pausedBy(self) != "":
		return selected.reportPause(ctx, id, self, selected.pausedBy(self))
	case self.GetDeletionTimestamp() != nil:
		return selected.reportDeletion(ctx, id, self, selected.cleanUp(ctx, id, self, false))
	}
	return selected.report(ctx, id, self, metav1.Condition{
		Type: conditionReady, Status: metav1.ConditionFalse, Reason: reasonMemory,
		Message: "the instance needs too much memory: " + cause.Error() + "; make the instance and the objects that it " +
			"refers to smaller, simplify the expressions of the Blueprint, or raise the memory limit of the platform",
	}, nil, nil)
}

// reserve reserves the memory for an object, or for a copy of it.
func reserve(ctx context.Context, object *unstructured.Unstructured) error {
	reservation := memory.FromContext(ctx)
	if reservation == nil || object == nil {
		return nil
	}
	return reservation.Grow(memory.Of(object.Object))
}
