package dynamiccontroller

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/fairqueue"
)

// work takes items from the queue and reconciles them until the run is over. Handlers' contexts are made of base, which
// ends with the run's but tells another cause.
func (c *DynamicController) work(base context.Context, isOver func() bool) {
	// A worker whose handler outlived its run must not take an item of the next run.
	for !isOver() {
		id, reg, shutdown := c.storage.Next()
		if shutdown {
			return
		}
		if isOver() {
			// Whatever run comes next, and it may have begun: the item is its.
			c.handOn(reg, id)
			c.queue.Done(id)
			return
		}
		c.reconcile(base, reg, id)
	}
}

// handOn leaves to the run that goes on, or else to the next one, a call that was owed and not made.
func (c *DynamicController) handOn(reg *registration, id ObjectIdentifiers) {
	if !reg.group.Add(fairqueue.Live, id) && !c.watchOf(reg).Has(id.NamespacedKey) {
		reg.miss(id.NamespacedKey)
	}
}

// reconcile calls the handler and settles what comes of it.
func (c *DynamicController) reconcile(base context.Context, reg *registration, id ObjectIdentifiers) {
	defer c.queue.Done(id)
	served := reg.served.Load()
	ctx, ok := reg.begin(base, id.NamespacedKey, served.timeout)
	if !ok {
		return
	}
	log := reg.log.WithValues(keyObject, id.NamespacedKey)
	err := errGoexit
	// Deferred, for a handler may end its goroutine.
	defer func() { reg.end(id.NamespacedKey, c.settle(ctx, log, reg, id, err)) }()
	err = protect(logr.NewContext(ctx, log), served.handler, id)
}

// errGoexit is what is left of a handler that called runtime.Goexit, as a test's FailNow does.
var errGoexit error = &panicError{value: "the handler ended its goroutine"}

// protect turns a panic into an error.
func protect(ctx context.Context, handler Handler, id ObjectIdentifiers) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &panicError{value: value, stack: debug.Stack()}
		}
	}()
	return handler(ctx, id)
}

// settle is the one place where an item is forgotten, retried, put off or parked. It runs before the item is Done, so
// that what it asks of the queue counts for the registration that the item was handed out for.
func (c *DynamicController) settle(ctx context.Context, log logr.Logger, reg *registration, id ObjectIdentifiers, err error) Outcome {
	outcome, failures := c.outcomeOf(ctx, reg, id, err), 0
	switch outcome {
	case OutcomeFailure, OutcomePanic:
		failures = reg.failed(id.NamespacedKey)
		if most := c.config.QueueMaxRetries; most >= 0 && failures > most {
			outcome = OutcomeParked
		}
	case OutcomeTerminal:
		failures = reg.failed(id.NamespacedKey)
	case OutcomeInterrupted:
		// As many failures in a row as before.
	default:
		reg.recovered(id.NamespacedKey)
	}

	switch outcome {
	case OutcomeSuccess, OutcomeGone:
		c.queue.Forget(id)
	case OutcomeRequeue:
		after, _ := RequeueDelay(err)
		switch {
		case c.queue.ShuttingDown():
			c.handOn(reg, id)
		case after > 0:
			c.queue.Forget(id)
			c.queue.AddAfter(id, after)
		default:
			c.queue.AddRateLimited(id)
		}
	case OutcomeInterrupted:
		if hasEnded(ctx) || c.queue.ShuttingDown() {
			c.handOn(reg, id)
		} else {
			c.queue.AddAfter(id, min(interruptedDelay, c.config.MaxRetryDelay))
		}
		log.V(1).Info("reconcile interrupted", keyError, err.Error())
	case OutcomeFailure, OutcomePanic:
		c.queue.AddRateLimited(id)
		logFailure(log, failures, err)
	case OutcomeParked, OutcomeTerminal:
		c.queue.Forget(id)
		reg.park(id.NamespacedKey, failures, err)
		log.Error(err, "reconcile failed, the object is parked", keyFailures, failures)
	}
	return outcome
}

// interruptedDelay is the wait before a handler that says it was interrupted is called again in the same run. Mostly
// the run ends before.
const interruptedDelay = time.Second

// outcomeOf says what the handler's error means, but for how often it happened.
func (c *DynamicController) outcomeOf(ctx context.Context, reg *registration, id ObjectIdentifiers, err error) Outcome {
	var terminal *terminalError
	var requeue *requeueError
	var panicked *panicError
	var interrupted interface {
		error
		Interrupted() bool
	}
	switch {
	case err == nil:
		return OutcomeSuccess
	case errors.As(err, &interrupted) && interrupted.Interrupted():
		return OutcomeInterrupted
	case errors.As(err, &terminal):
		return OutcomeTerminal
	case errors.As(err, &requeue):
		return OutcomeRequeue
	case c.isGone(reg, id, err):
		return OutcomeGone
	case errors.As(err, &panicked):
		return OutcomePanic
	case hasEnded(ctx):
		return OutcomeInterrupted
	default:
		return OutcomeFailure
	}
}

// hasEnded tells whether a handler's context ended for another reason than its own slowness.
func hasEnded(ctx context.Context) bool {
	cause := context.Cause(ctx)
	return errors.Is(cause, ErrRunEnded) || errors.Is(cause, ErrServingStopped)
}

// logFailure tells an operator of the first failure in a row, and a developer of the others. A panic is always told.
func logFailure(log logr.Logger, failures int, err error) {
	var panicked *panicError
	switch {
	case errors.As(err, &panicked):
		log.Error(err, "handler panicked, will retry", keyFailures, failures, keyStack, string(panicked.stack))
	case failures == 1:
		log.Info("reconcile failed, will retry", keyError, err.Error())
	default:
		log.V(1).Info("reconcile failed again, will retry", keyFailures, failures, keyError, err.Error())
	}
}

// isGone tells whether the error says that the object itself is gone, or its namespace is about to be, and nothing
// else: only then is there no more to do. An error that joins several says more than that.
func (c *DynamicController) isGone(reg *registration, id ObjectIdentifiers, err error) bool {
	status := soleStatus(err)
	if status == nil {
		return false
	}
	details := status.Status().Details
	if details == nil {
		return false
	}
	// The details name no namespace: the cache tells an object of the same name elsewhere from the object itself. While
	// the cache lags, the event that is still to come ends the retry.
	if apierrors.IsNotFound(status) && details.Group == id.GVR.Group && details.Kind == id.GVR.Resource && details.Name == id.Name() {
		return !c.watchOf(reg).Has(id.NamespacedKey)
	}
	for _, cause := range details.Causes {
		// The message is the only place where admission names the namespace
		// (k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle).
		if cause.Type == corev1.NamespaceTerminatingCause && id.Namespace() != "" &&
			cause.Message == "namespace "+id.Namespace()+" is being terminated" {
			return true
		}
	}
	return false
}

// soleStatus finds the API status at the end of a chain of wrapped errors that never forks.
func soleStatus(err error) *apierrors.StatusError {
	for err != nil {
		if status, ok := err.(*apierrors.StatusError); ok { //nolint:errorlint // each link is looked at here
			return status
		}
		switch wrapper := err.(type) { //nolint:errorlint // each link is looked at here
		case interface{ Unwrap() error }:
			err = wrapper.Unwrap()
		case interface{ Unwrap() []error }:
			errs := wrapper.Unwrap()
			if len(errs) != 1 {
				return nil
			}
			err = errs[0]
		default:
			return nil
		}
	}
	return nil
}
