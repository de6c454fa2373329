package dynamiccontroller

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/protect"
)

// Outcome is the result of a handler call. It is also used as a metric label.
type Outcome string

// The outcomes of a reconcile.
const (
	OutcomeSuccess     Outcome = "success"
	OutcomeRequeue     Outcome = "requeue"     // the handler returned RequeueAfter
	OutcomeGone        Outcome = "gone"        // the object or its type is gone, or its namespace is terminating
	OutcomeInterrupted Outcome = "interrupted" // the run ended, serving stopped, or the error is Interrupted
	OutcomeFailure     Outcome = "failure"     // will be retried
	OutcomePanic       Outcome = "panic"       // will be retried
	OutcomeParked      Outcome = "parked"      // too many failures in a row
	OutcomeTerminal    Outcome = "terminal"    // parked because the handler returned Terminal
)

// reconcile calls the handler for an object and settles the outcome.
func (c *DynamicController) reconcile(reg *registration, id ObjectIdentifiers) {
	defer c.queue.Done(id)
	options := reg.options.Load()
	ctx, ok := reg.beginCall(id.NamespacedKey)
	if !ok {
		return
	}
	if options.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, options.timeout, ErrReconcileTimeout)
		defer cancel()
	}
	log := reg.log.WithValues(keyObject, id.NamespacedKey)
	got := goexitResult
	// This is deferred because a handler can end its goroutine.
	defer func() { reg.endCall(id.NamespacedKey, reg.settle(ctx, log, id, got)) }()
	got = call(logr.NewContext(ctx, log), reg, options.handler, id)
}

// settle records the outcome of a reconcile and decides whether the object is reconciled again. It is the only place
// where objects are retried, requeued and parked. It must be called before Done is called for the item. Each
// registration has its own opening of the group in the queue, so that a late outcome does not affect a later
// registration of the type.
func (r *registration) settle(ctx context.Context, log logr.Logger, id ObjectIdentifiers, got result) Outcome {
	config, key := &r.controller.config, id.NamespacedKey
	outcome, failures := got.outcome, 0
	switch outcome {
	case OutcomeFailure, OutcomePanic:
		failures = r.recordFailure(key, got.err)
		if config.QueueMaxRetries >= 0 && failures > config.QueueMaxRetries {
			outcome = OutcomeParked
		}
	case OutcomeTerminal:
		failures = r.recordFailure(key, got.err)
	case OutcomeSuccess, OutcomeGone:
		r.recordSuccess(key)
		r.group.Forget(id)
	}

	switch outcome {
	case OutcomeGone:
		if got.byType {
			log.V(1).Info("Treating NotFound as the deletion of the object, because its type is not served",
				keyError, got.err.Error())
		}
	case OutcomeRequeue:
		r.requeue(id, got.after)
	case OutcomeInterrupted:
		if hasEnded(ctx) {
			r.addOrMarkPending(key)
		} else {
			r.group.AddAfter(id, min(interruptedDelay, config.MaxRetryDelay))
			r.markPendingIfShutDown(key)
		}
		log.V(1).Info("Reconcile interrupted", keyError, got.err.Error())
	case OutcomeFailure, OutcomePanic:
		r.group.AddRateLimited(id)
		logFailure(log, failures, got)
	case OutcomeParked, OutcomeTerminal:
		r.group.Forget(id)
		r.park(key)
		log.Error(got.err, "Reconcile failed, object parked", keyFailures, failures)
	}
	return outcome
}

// requeue adds the object to the queue again after the delay. If there is no delay, it uses the same backoff as for a
// failure.
func (r *registration) requeue(id ObjectIdentifiers, after time.Duration) {
	if after > 0 {
		r.recordSuccess(id.NamespacedKey)
		r.group.Forget(id)
		r.group.AddAfter(id, after)
	} else {
		r.recordRequeue(id.NamespacedKey)
		r.group.AddRateLimited(id)
	}
	r.markPendingIfShutDown(id.NamespacedKey)
}

// markPendingIfShutDown must be called after a key has been added with a delay, because a queue that has been shut down
// drops such a key.
func (r *registration) markPendingIfShutDown(key string) {
	if r.controller.queue.ShuttingDown() {
		r.addOrMarkPending(key)
	}
}

// interruptedDelay is the delay before an interrupted reconcile is repeated in the same run. Usually the run ends
// before the delay does.
const interruptedDelay = time.Second

// logFailure logs the first failure of an object at V(0), and each consecutive failure after it at V(1). Panics are
// always logged as errors.
func logFailure(log logr.Logger, failures int, got result) {
	switch {
	case got.outcome == OutcomePanic:
		log.Error(got.err, "Handler panicked, will retry", keyFailures, failures, keyStack, string(got.stack))
	case failures == 1:
		log.Info("Reconcile failed, will retry", keyError, got.err.Error())
	default:
		log.V(1).Info("Reconcile failed again, will retry", keyFailures, failures, keyError, got.err.Error())
	}
}

// result is the result of one call to a handler. It does not hold the handler's error, so that code that logs or stores
// a result cannot call methods of that error.
type result struct {
	outcome Outcome
	err     error         // nil for a success; has the text of an error that the handler returned
	after   time.Duration // the delay of a requeue
	byType  bool          // OutcomeGone was derived from the state of the type; the error does not name the object
	stack   []byte        // the stack of a panic, if any
}

// goexitResult is the result of a handler that called runtime.Goexit, as FailNow does in a test.
var goexitResult = result{outcome: OutcomePanic, err: errors.New("the handler ended its goroutine")}

// call calls the handler and classifies the error that it returns.
func call(ctx context.Context, reg *registration, handler Handler, id ObjectIdentifiers) (r result) {
	var err error
	if panicked := protect.Call(func() { err = handler(ctx, id) }); panicked != nil {
		return panicResult(panicked)
	}
	if err == nil {
		return result{outcome: OutcomeSuccess}
	}
	text, mistake := protect.Error("handler", err, func() { r = classify(ctx, reg, id, err) })
	if mistake != nil {
		return panicResult(mistake)
	}
	r.err = errors.New(text)
	return r
}

func panicResult(mistake *protect.Mistake) result {
	return result{outcome: OutcomePanic, err: mistake, stack: mistake.Stack}
}

// classify returns the result for an error that a handler returned. It does not set the field err of the result. It
// calls methods of the handler's error, which can panic.
func classify(ctx context.Context, reg *registration, id ObjectIdentifiers, err error) result {
	var terminal *terminalError
	var interrupted Interrupted
	after, requeue := RequeueDelay(err)
	gone, byType := isGone(reg, id, err)
	switch {
	case errors.As(err, &interrupted) && interrupted.Interrupted():
		return result{outcome: OutcomeInterrupted}
	case errors.As(err, &terminal):
		return result{outcome: OutcomeTerminal}
	case requeue:
		return result{outcome: OutcomeRequeue, after: after}
	case gone:
		return result{outcome: OutcomeGone, byType: byType}
	case hasEnded(ctx):
		return result{outcome: OutcomeInterrupted}
	default:
		return result{outcome: OutcomeFailure}
	}
}

// hasEnded reports whether a handler's context was cancelled because Run ended or serving stopped, as opposed to a
// timeout of the handler.
func hasEnded(ctx context.Context) bool {
	cause := context.Cause(ctx)
	return errors.Is(cause, ErrRunEnded) || errors.Is(cause, ErrServingStopped)
}

// isGone reports whether the only cause of the error is that the object or its type is gone, or that the object's
// namespace is terminating. Nothing is left to do in these cases. It returns false if the error joins several errors,
// because such an error has other causes as well. The result byType reports whether this follows only from the state of
// the type, because the error does not name the object.
func isGone(reg *registration, id ObjectIdentifiers, err error) (gone, byType bool) {
	status := soleStatus(err)
	if status == nil {
		return false, false
	}
	details := status.Status().Details
	if details == nil {
		details = &metav1.StatusDetails{}
	}
	if apierrors.IsNotFound(status) {
		return isOwnNotFound(reg, id, details)
	}
	for _, cause := range details.Causes {
		// The message is the only place where admission names the namespace
		// (k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle).
		if cause.Type == corev1.NamespaceTerminatingCause && id.Namespace() != "" &&
			cause.Message == "namespace "+id.Namespace()+" is being terminated" {
			return true, false
		}
	}
	return false, false
}

// isOwnNotFound reports whether a NotFound with these details is about the object itself, as opposed to a child of the
// object. The result byType reports whether this follows only from the state of the type.
func isOwnNotFound(reg *registration, id ObjectIdentifiers, details *metav1.StatusDetails) (own, byType bool) {
	matches := func(detail, own string) bool { return detail == "" || detail == own }
	if !matches(details.Group, id.GVR.Group) || !matches(details.Kind, id.GVR.Resource) ||
		!matches(details.Name, id.Name()) {
		return false, false
	}
	// The details never include the namespace. If the object is in the cache, the NotFound is about an object of the
	// same name in another namespace, or the cache lags. In the latter case the pending delete event ends the retries.
	primary := reg.subscriptions.primary
	if primary.View().Has(id.NamespacedKey) {
		return false, false
	}
	if details.Group == id.GVR.Group && details.Kind == id.GVR.Resource && details.Name == id.Name() {
		return true, false
	}
	// For a type that is not served, the API server returns no details. Some clients add details of the request, but a
	// dynamic client does not. The response is the same if the type of a child is not served.
	notFound := primary.State().Phase == typewatch.NotFound
	return notFound, notFound
}

// soleStatus returns the API status error in a chain of wrapped errors. It returns nil if there is none, or if the
// chain branches before it.
func soleStatus(err error) *apierrors.StatusError {
	for err != nil {
		if status, ok := err.(*apierrors.StatusError); ok { //nolint:errorlint // each error of the chain is examined
			return status
		}
		switch wrapper := err.(type) { //nolint:errorlint // each error of the chain is examined
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
