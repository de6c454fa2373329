package dynamiccontroller

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
	"github.com/dynamic-controller/engine/internal/protect"
)

// result is the result of one call of a handler. It does not hold the handler's error, so that code that logs or stores
// a result cannot call methods of that error.
type result struct {
	outcome Outcome
	err     error         // nil for a success; has the text of the handler's error
	after   time.Duration // of a requeue
	byType  bool          // OutcomeGone follows from the state of the type; the error does not name the object
	stack   []byte        // of a panic, if any
}

// goexited is the result of a handler that called runtime.Goexit, as a test's FailNow does.
var goexited = result{outcome: OutcomePanic, err: errors.New("the handler ended its goroutine")}

// call calls the handler and classifies the error that it returns.
func (c *DynamicController) call(ctx context.Context, reg *registration, handler Handler, id ObjectIdentifiers) (r result) {
	var err error
	if panicked := protect.Call(func() { err = handler(ctx, id) }); panicked != nil {
		return mistaken(panicked)
	}
	if err == nil {
		return result{outcome: OutcomeSuccess}
	}
	text, mistake := protect.Error("handler", err, func() { r = c.classify(ctx, reg, id, err) })
	if mistake != nil {
		return mistaken(mistake)
	}
	r.err = errors.New(text)
	return r
}

func mistaken(mistake *protect.Mistake) result {
	return result{outcome: OutcomePanic, err: mistake, stack: mistake.Stack}
}

// classify returns the result for a handler's error, without the error. It calls methods of the error.
func (c *DynamicController) classify(ctx context.Context, reg *registration, id ObjectIdentifiers, err error) result {
	var terminal *terminalError
	var interrupted interface {
		error
		Interrupted() bool
	}
	after, requeue := RequeueDelay(err)
	gone, byType := c.isGone(reg, id, err)
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

// isGone reports whether the error means only that the object or its type is gone, or that its namespace is
// terminating. Then nothing is left to do. An error that joins several errors has other causes as well. ByType reports whether
// this follows only from the state of the type, because the error does not name the object.
func (c *DynamicController) isGone(reg *registration, id ObjectIdentifiers, err error) (gone, byType bool) {
	status := soleStatus(err)
	if status == nil {
		return false, false
	}
	details := status.Status().Details
	if details == nil {
		details = &metav1.StatusDetails{}
	}
	if apierrors.IsNotFound(status) {
		return c.isOwnNotFound(reg, id, details)
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

// isOwnNotFound reports whether a NotFound with the details is about the object, as opposed to a child of the object. ByType
// reports whether this follows only from the state of the type.
func (c *DynamicController) isOwnNotFound(reg *registration, id ObjectIdentifiers, details *metav1.StatusDetails) (own, byType bool) {
	matches := func(detail, own string) bool { return detail == "" || detail == own }
	if !matches(details.Group, id.GVR.Group) || !matches(details.Kind, id.GVR.Resource) || !matches(details.Name, id.Name()) {
		return false, false
	}
	// The details never include the namespace. If the object is in the cache, the NotFound is about an object of the
	// same name in another namespace, or the cache lags. In the latter case the pending delete event ends the retries.
	watch := c.watchOf(reg)
	if watch.Has(id.NamespacedKey) {
		return false, false
	}
	if details.Group == id.GVR.Group && details.Kind == id.GVR.Resource && details.Name == id.Name() {
		return true, false
	}
	// For a type that is not served, the API server returns no details. Some clients add details of the request, but a
	// dynamic client does not. The response for an unknown type of child is the same.
	notFound := watch.State().Phase == typewatch.NotFound
	return notFound, notFound
}

// soleStatus returns the API status error at the end of a chain of wrapped errors, or nil if the chain branches.
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
