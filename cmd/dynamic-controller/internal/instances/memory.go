package instances

import (
	"cmp"
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

// reportBusyAfter is how long an instance waits for memory before its status shows this.
const reportBusyAfter = 10 * time.Second

// withinBudget limits the memory of the handler. If the memory is not available, the handler's context is cancelled, so
// that the reconcile ends without a result.
func (r *Reconcilers) withinBudget(handler dynamiccontroller.Handler) dynamiccontroller.Handler {
	return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		err, lack := r.reserving(ctx, id, handler)
		if tooLarge, is := errors.AsType[*memory.TooLargeError](lack); is {
			err, lack = r.reserving(ctx, id, r.refusing(tooLarge, true))
		}
		again := dynamiccontroller.RequeueAfter(busyInterval + rand.N(busyInterval))
		if tooLarge, is := errors.AsType[*memory.TooLargeError](lack); is {
			if !r.newest.memory.Unreserved(func() { err = r.refusing(tooLarge, false)(ctx, id) }) {
				return again
			}
			lack = nil
		}
		busy, isBusy := errors.AsType[*memory.BusyError](lack)
		if !isBusy {
			r.needs.forget(id)
			return err
		}
		if isLong := r.needs.add(id, busy.Needed); isLong {
			var reportErr error
			if r.newest.memory.Unreserved(func() { reportErr = r.reportBusy(ctx, id) }) && reportErr == nil {
				r.needs.setReported(id)
			}
			return cmp.Or(reportErr, again)
		}
		return again
	}
}

// reserving calls the handler with a reservation. If the handler needed more memory than was available, lack is a
// *memory.BusyError or a *memory.TooLargeError.
func (r *Reconcilers) reserving(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, handler dynamiccontroller.Handler,
) (err, lack error) {
	owner := memory.Owner{Type: id.GVR.String(), Namespace: id.Namespace()}
	limited, reservation := r.newest.memory.Reserve(ctx, owner)
	defer reservation.Release() // also after a panic
	needed := r.needs.of(id)
	// With half as much again, few attempts are needed.
	if err = reservation.Claim(needed, needed+needed/2); err == nil {
		err = handler(limited, id)
	}
	if ctx.Err() != nil {
		return err, nil
	}
	return err, context.Cause(limited)
}

// needs holds how much memory instances need at least, for those that are waiting for memory. It is safe for concurrent
// use.
type needs struct{ sync.Map }

type need struct {
	bytes    int64
	since    time.Time
	reported bool // whether the status has been written
}

func (n *needs) of(id dynamiccontroller.ObjectIdentifiers) int64 {
	waiting, _ := n.Load(id)
	known, _ := waiting.(need)
	return known.bytes
}

// add stores the size of a reservation that was not available. It reports whether the instance's status must show that
// it is waiting.
func (n *needs) add(id dynamiccontroller.ObjectIdentifiers, bytes int64) (isLong bool) {
	waiting, _ := n.Load(id)
	known, isKnown := waiting.(need)
	if !isKnown {
		known.since = time.Now()
	}
	known.bytes = max(known.bytes, bytes)
	n.Store(id, known)
	return !known.reported && time.Since(known.since) >= reportBusyAfter
}

// setReported records that the status shows that the instance is waiting.
func (n *needs) setReported(id dynamiccontroller.ObjectIdentifiers) {
	waiting, _ := n.Load(id)
	known, _ := waiting.(need)
	known.reported = true
	n.Store(id, known)
}

func (n *needs) forget(id dynamiccontroller.ObjectIdentifiers) { n.Delete(id) }

// selectedFor reads an instance without its content, and returns the Reconciler for it. The Reconciler is nil if the
// instance does not exist or must wait.
func (r *Reconcilers) selectedFor(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers,
) (*unstructured.Unstructured, *Reconciler, error) {
	self, err := handlers.Live(r.newest.client).Get(ctx, id.GVR, id.Namespace(), id.Name())
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil, r.gone(ctx, id)
	case err != nil:
		return nil, nil, err
	}
	r.newest.observeDeletion(ctx, id, self)
	return self, r.reconcilerFor(id, self), nil
}

// reportBusy reports an instance that has waited long for memory.
func (r *Reconcilers) reportBusy(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	self, selected, err := r.selectedFor(ctx, id)
	if err != nil || selected == nil || selected.pausedBy(self) != "" {
		return err
	}
	// The status still describes the last reconcile, except for this condition.
	_, err = selected.pauses.Set(ctx, id, self, metav1.Condition{
		Type: conditionReady, Status: metav1.ConditionUnknown, Reason: reasonWaitingForMemory,
		Message: "waiting for memory that other instances use at the moment",
	})
	if errors.Is(err, handlers.ErrNoStatus) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// refusing returns a handler that reports an instance that needs too much memory. It reads the instance without its
// content. If the instance is being deleted and cleanUp is set, the handler deletes the children without evaluating any
// expressions.
func (r *Reconcilers) refusing(cause *memory.TooLargeError, cleanUp bool) dynamiccontroller.Handler {
	return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		defer r.newest.requestCount() // the reconcile may have ended before it requested a count
		self, selected, err := r.selectedFor(ctx, id)
		switch {
		case err != nil || selected == nil:
			return err
		case selected.pausedBy(self) != "":
			return selected.reportPause(ctx, id, self, selected.pausedBy(self))
		case self.GetDeletionTimestamp() != nil && cleanUp:
			pending, err := selected.cleanUp(ctx, id, self, false)
			return selected.reportDeletion(ctx, id, self, pending, err)
		}
		advice := "make the instance and the objects that it refers to smaller, simplify the expressions of the Blueprint"
		var again error
		if self.GetDeletionTimestamp() != nil {
			advice, again = "reduce the number of its children", dynamiccontroller.RequeueAfter(cleanupInterval)
		}
		return selected.report(ctx, id, self, metav1.Condition{
			Type: conditionReady, Status: metav1.ConditionFalse, Reason: reasonMemory,
			Message: "the instance needs too much memory: " + cause.Error() + "; " + advice +
				", or raise the memory limit of the platform",
		}, nil, again)
	}
}

// reserve reserves the memory for an object, or for a copy of it.
func reserve(ctx context.Context, object *unstructured.Unstructured) error {
	reservation := memory.FromContext(ctx)
	if reservation == nil || object == nil {
		return nil
	}
	return reservation.Grow(memory.Of(object.Object))
}
