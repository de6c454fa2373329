package dynamiccontroller

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/protect"
)

// reconcile calls the handler for an object and processes the result.
func (r *registration) reconcile(made *call, id ObjectIdentifiers, queued time.Duration) {
	ctx := context.Context(made)
	if timeout := made.options.timeout; timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, ErrReconcileTimeout)
		defer cancel()
	}
	log := r.log.WithValues(keyObject, id.NamespacedKey)
	if log.V(1).Enabled() {
		log = log.WithValues(keyCause, made.cause.logText())
	}
	got := goexitResult
	// The outcome is settled in a deferred function, because the handler can call runtime.Goexit.
	defer func() { r.endCall(made, queued, r.settle(ctx, log, id, got), got.err) }()
	got = r.call(logr.NewContext(ctx, log), made.options.handler, id)
}

// settle records the outcome of a reconcile and determines whether the object is reconciled again. It is the only place
// where objects are retried, requeued and parked. It must be called before the queue's Done method.
func (r *registration) settle(ctx context.Context, log logr.Logger, id ObjectIdentifiers, got result) Outcome {
	key, outcome, failures := id.NamespacedKey, got.outcome, 0
	failed := outcome == OutcomeFailure || outcome == OutcomePanic
	if outcome == OutcomePanic {
		log.Error(got.err, "Handler panicked", keyStack, string(got.stack))
	}
	if (failed || outcome == OutcomeTerminal) && r.attempts.FilteredOut(key) && !r.feed.Store().Has(key) {
		outcome, failed = OutcomeGone, false
	} else if failed || outcome == OutcomeTerminal {
		failures = r.attempts.Failed(key, got.err.Error())
	}
	if limit := r.config.maxRetries(); failed && limit >= 0 && failures > limit {
		outcome = OutcomeParked
	}
	switch outcome {
	case OutcomeSuccess, OutcomeGone:
		r.attempts.Succeeded(key)
		r.group.Forget(key)
		if outcome == OutcomeGone {
			r.group.CancelDelay(key)
			log.V(1).Info("Object gone, will not retry", keyError, got.err.Error())
		}
	case OutcomeRequeue:
		r.attempts.Requeued(key, got.after <= 0)
		if got.after > 0 {
			r.group.Forget(key)
			r.addAfter(CauseRequeue, key, got.after)
		} else {
			r.group.Because(because(CauseRequeue)).AddRateLimited(key)
		}
		log.V(1).Info("Requeued", keyReason, got.err.Error())
	case OutcomeInterrupted:
		delay := min(interruptedDelay, r.config.MaxRetryDelay)
		if hasEnded(ctx) {
			delay = 0
		}
		r.addAfter(CauseInterrupted, key, delay)
		log.V(1).Info("Reconcile interrupted", keyError, got.err.Error())
	case OutcomeFailure, OutcomePanic:
		r.group.Because(because(CauseRetry)).AddRateLimited(key)
		if failures > 1 { // only the first of consecutive failures is logged at V(0)
			log = log.V(1)
		}
		log.Info("Reconcile failed, will retry", keyFailures, failures, keyError, got.err.Error())
	case OutcomeParked, OutcomeTerminal:
		r.group.Forget(key)
		r.group.CancelDelay(key)
		for _, dropped := range r.attempts.Park(key, !r.feed.Store().Has(key)) {
			r.log.V(1).Info("Parked object is not in the cache, dropped", keyObject, dropped)
		}
		log.Error(got.err, "Reconcile failed, object parked", keyFailures, failures)
		if notify := r.parked; notify != nil {
			callUserCode(log, "Parked function panicked", func() { notify(id) })
		}
	}
	return outcome
}

// result is the result of a handler call. It does not contain the error that the handler returned, because that error's
// methods can panic.
type result struct {
	outcome Outcome
	err     error         // nil on success; otherwise has the text of the handler's error
	after   time.Duration // the delay of a requeue
	stack   []byte        // the stack of a panic, or nil
}

// goexitResult is the result of a handler that called runtime.Goexit, for example through testing.T.FailNow.
var goexitResult = result{outcome: OutcomePanic, err: errors.New("the handler called runtime.Goexit")}

// call calls the handler and classifies the error that it returns.
func (r *registration) call(ctx context.Context, handler Handler, id ObjectIdentifiers) (got result) {
	var err error
	var text string
	mistake := protect.Call(func() { err = handler(ctx, id) })
	if mistake == nil && err == nil {
		return result{outcome: OutcomeSuccess}
	}
	if mistake == nil {
		text, mistake = protect.Error("handler", err, func() { got = r.classify(ctx, id, err) })
	}
	if mistake != nil {
		return result{outcome: OutcomePanic, err: mistake, stack: mistake.Stack}
	}
	got.err = errors.New(text)
	return got
}

// classify returns the result for a handler's error. It does not set the err field of the result. It can panic, because
// it calls the error's methods.
func (r *registration) classify(ctx context.Context, id ObjectIdentifiers, err error) result {
	var terminal *terminalError
	var interrupted Interrupted
	var requeue *requeueError
	switch {
	case errors.As(err, &interrupted) && interrupted.Interrupted():
		return result{outcome: OutcomeInterrupted}
	case errors.As(err, &terminal):
		return result{outcome: OutcomeTerminal}
	case errors.As(err, &requeue):
		return result{outcome: OutcomeRequeue, after: requeue.after}
	case r.isGone(id, err):
		return result{outcome: OutcomeGone}
	case hasEnded(ctx):
		return result{outcome: OutcomeInterrupted}
	default:
		return result{outcome: OutcomeFailure}
	}
}

// hasEnded reports whether a handler's context was cancelled with ErrRunEnded or ErrServingStopped.
func hasEnded(ctx context.Context) bool {
	cause := context.Cause(ctx)
	return errors.Is(cause, ErrRunEnded) || errors.Is(cause, ErrServingStopped)
}

// isGone reports whether the only cause of the error is that the object or its type is gone, or that the object's
// namespace is terminating.
func (r *registration) isGone(id ObjectIdentifiers, err error) bool {
	status := soleStatus(err)
	if status == nil {
		return false
	}
	details := status.Status().Details
	if details == nil {
		details = &metav1.StatusDetails{}
	}
	if apierrors.IsNotFound(status) {
		return r.isOwnNotFound(id, details)
	}
	// Only the message contains the name of the namespace; see
	// k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle.
	message := "namespace " + id.Namespace() + " is being terminated"
	return id.Namespace() != "" && slices.ContainsFunc(details.Causes, func(cause metav1.StatusCause) bool {
		return cause.Type == corev1.NamespaceTerminatingCause && cause.Message == message
	})
}

// isOwnNotFound reports whether a NotFound with these details refers to the object itself rather than to a child.
func (r *registration) isOwnNotFound(id ObjectIdentifiers, details *metav1.StatusDetails) bool {
	matches := func(detail, own string) bool { return detail == "" || detail == own }
	if !matches(details.Group, id.GVR.Group) || !matches(details.Kind, id.GVR.Resource) ||
		!matches(details.Name, id.Name()) {
		return false
	}
	// The details never include the namespace. If the object is in the cache, either the NotFound refers to an object with
	// the same name in another namespace, or a pending delete event will end the retries.
	primary := r.feed.Primary()
	if primary.View().Store().Has(id.NamespacedKey) {
		return false
	}
	if details.Group == id.GVR.Group && details.Kind == id.GVR.Resource && details.Name == id.Name() {
		return true
	}
	// If a type is not served, the API server returns no details. The missing type may also be the type of a child.
	return primary.State().Phase == typewatch.NotFound
}

// soleStatus returns the API status error that err is or wraps, or nil. It does not look into errors that wrap several
// errors.
func soleStatus(err error) *apierrors.StatusError {
	for err != nil {
		switch e := err.(type) { //nolint:errorlint // each error in the chain is examined
		case *apierrors.StatusError:
			return e
		case interface{ Unwrap() []error }:
			errs := e.Unwrap()
			if len(errs) != 1 {
				return nil
			}
			err = errs[0]
		default:
			err = errors.Unwrap(err)
		}
	}
	return nil
}
