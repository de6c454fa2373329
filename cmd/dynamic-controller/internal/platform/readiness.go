package platform

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

// ready is the condition of instances.
const ready = "Ready"

// Reasons of instances that are not ready. Those of failing fail: somebody has to do something.
const (
	reasonReady     = "Ready"
	reasonWaiting   = "Waiting"
	reasonBroken    = "Invalid"        // an expression fails, or makes what cannot be
	reasonConflict  = "Conflict"       // a child is somebody else's
	reasonForbidden = "Forbidden"      // the API server does not let the platform
	reasonRejected  = "Rejected"       // the API server finds a child wrong
	reasonFailed    = "ChildrenFailed" // anything else
)

func isFailing(reason string) bool {
	switch reason {
	case reasonBroken, reasonConflict, reasonForbidden, reasonRejected, reasonFailed:
		return true
	}
	return false
}

// readiness says how far an instance is, in words that somebody can act on.
func readiness(step blueprint.Step, err error) []metav1.Condition {
	c := metav1.Condition{Type: ready, Status: metav1.ConditionFalse}
	switch {
	case len(step.Problems) > 0:
		c.Reason, c.Message = reasonBroken, step.Problems.Error()
	case errors.Is(err, errGoesOn):
		c.Reason, c.Message = reasonWaiting, "made in several turns, for the expressions cost much: more is to come"
	case isRequeue(err):
		c.Reason, c.Message = reasonWaiting, "waiting for what is being deleted"
	case err != nil:
		c.Reason, c.Message = reasonOf(err), err.Error()
	case !step.Ready:
		c.Reason, c.Message = reasonWaiting, told(append(step.Unready, step.Waiting...))
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonReady, fmt.Sprintf("all %d resources are there and ready", len(step.Rendered))
	}
	c.Message = cut(c.Message)
	return []metav1.Condition{c}
}

func reasonOf(err error) string {
	switch {
	case errors.Is(err, handlers.ErrNotOurs), apierrors.IsConflict(err):
		return reasonConflict
	case apierrors.IsForbidden(err):
		return reasonForbidden
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return reasonRejected
	default:
		return reasonFailed
	}
}

// isRequeue tells whether the error asks for another call and is no failure.
func isRequeue(err error) bool {
	_, ok := dynamiccontroller.RequeueDelay(err)
	return ok
}

// told are the first few reasons.
func told(reasons []blueprint.Reason) string {
	const most = 10
	var lines []string
	for _, r := range reasons[:min(len(reasons), most)] {
		lines = append(lines, r.String())
	}
	if more := len(reasons) - most; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "; ")
}

// cut keeps a message within what a condition may have.
func cut(message string) string {
	const longest = 8 << 10
	if len(message) <= longest {
		return message
	}
	message = message[:longest]
	for !utf8.ValidString(message) {
		message = message[:len(message)-1]
	}
	return message + "..."
}
