package instances

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/identity"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/children"
)

// conditionReady is the condition type that reports whether an instance is ready.
const conditionReady = "Ready"

// Reasons of the Ready condition.
const (
	reasonReady     = "Ready"
	reasonWaiting   = "Waiting"
	reasonInvalid   = "Invalid"        // an expression fails, or its result is invalid
	reasonConflict  = "Conflict"       // a child belongs to another owner
	reasonForbidden = "Forbidden"      // a permission is missing
	reasonRejected  = "Rejected"       // the API server rejected a child
	reasonFailed    = "ChildrenFailed" // any other error
	reasonDeleting  = "Deleting"

	// reasonCleanupForbidden is the reason if an instance is being deleted, and its identity cannot delete some of its
	// children, or they are in a namespace that is not in --namespaces.
	reasonCleanupForbidden = "CleanupForbidden"
)

// isFailing reports whether the reason requires someone to fix a problem.
func isFailing(reason string) bool {
	switch reason {
	case reasonInvalid, reasonConflict, reasonForbidden, reasonRejected, reasonFailed, reasonCleanupForbidden,
		identity.ReasonIdentityRequired, identity.ReasonServiceAccountNotAllowed, identity.ReasonServiceAccountNotFound,
		identity.ReasonConsentMissing, identity.ReasonPermissionMissing:
		return true
	}
	return false
}

// readiness returns the Ready condition of an instance.
func readiness(step blueprint.Step, err error) metav1.Condition {
	c := metav1.Condition{Type: conditionReady, Status: metav1.ConditionFalse}
	var pending *children.PendingDeletionError
	rejection := rejectionIn(err)
	switch {
	case rejection != nil:
		c.Reason, c.Message = rejection.Reason, rejection.Message
	case len(step.Problems) > 0:
		c.Reason, c.Message = reasonInvalid, step.Problems.Error()
	case errors.Is(err, errContinue):
		c.Reason = reasonWaiting
		c.Message = "created in several reconciles because the expressions are costly; more resources follow"
	case errors.As(err, &pending):
		c.Reason, c.Message = reasonWaiting, pendingMessage(pending.Children)
	case isRequeue(err):
		c.Reason, c.Message = reasonWaiting, "waiting for objects that are being deleted"
	case err != nil:
		c.Reason, c.Message = reasonOf(err), explain(err).Error()
	case !step.Ready:
		c.Reason, c.Message = reasonWaiting, joinReasons(append(step.Unready, step.Waiting...))
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonReady, readyMessage(step)
	}
	c.Message = Truncate(c.Message)
	return c
}

// readyMessage counts the resources, and names those that are excluded.
func readyMessage(step blueprint.Step) string {
	const most = 10
	ready, excluded := len(step.Rendered), len(step.Excluded)
	if excluded == 0 {
		return fmt.Sprintf("all %d resources are ready", ready)
	}
	var ids []string
	for _, e := range step.Excluded[:min(excluded, most)] {
		ids = append(ids, e.ID)
	}
	names, verb := strings.Join(ids, ", "), "are"
	if excluded == 1 {
		verb = "is"
	} else if excluded > most {
		names += fmt.Sprintf(" and %d more", excluded-most)
	}
	return fmt.Sprintf("%d of %d resources are ready; %s %s excluded by includeWhen", ready, ready+excluded, names, verb)
}

// isIdentifier matches the ids of resources.
var isIdentifier = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// pendingMessage names the first few children whose deletion is pending, and the finalizers that block it.
func pendingMessage(pending []children.PendingChild) string {
	const most, maxID = 3, 63
	var lines []string
	for _, child := range pending[:min(len(pending), most)] {
		if !child.Deleting {
			break // those before it must be gone first
		}
		line := fmt.Sprintf("waiting for %s %s to be deleted", child.Kind.Kind, child.NamespacedKey)
		if child.NamespacedKey == "" { // the identity cannot read it
			line = fmt.Sprintf("waiting for a child of kind %s to be deleted", child.Kind.Kind)
		}
		// Anyone who can update the child can set the annotation.
		if id := child.Annotations[resourceAnnotation]; isIdentifier.MatchString(id) && len(id) <= maxID {
			line = id + ": " + line
		}
		lines = append(lines, line+BlockedBy(child.Finalizers))
	}
	if more := len(pending) - len(lines); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return Truncate(strings.Join(lines, "; "))
}

// BlockedBy returns the part of a message that names the finalizers of an object that is being deleted, or "".
func BlockedBy(finalizers []string) string {
	switch len(finalizers) {
	case 0:
		return ""
	case 1:
		return "; blocked by finalizer " + finalizers[0]
	default:
		return "; blocked by finalizers " + strings.Join(finalizers, ", ")
	}
}

// ConditionOf returns the condition of the given type from an object's status, or nil if it is missing or invalid.
func ConditionOf(object *unstructured.Unstructured, conditionType string) *metav1.Condition {
	list, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, item := range list {
		var condition metav1.Condition
		fields, _ := item.(map[string]any)
		if fields["type"] == conditionType &&
			runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &condition) == nil {
			return &condition
		}
	}
	return nil
}

// NewConditions returns a writer of statuses.
func NewConditions(client dynamic.Interface, manager string) *handlers.Conditions {
	conditions, err := handlers.NewConditions(handlers.ConditionsConfig{Client: client, FieldManager: manager})
	if err != nil {
		panic(err) // the client is nil
	}
	return conditions
}

func reasonOf(err error) string {
	switch {
	case errors.Is(err, children.ErrNotOwned), apierrors.IsConflict(err):
		return reasonConflict
	case apierrors.IsForbidden(err):
		return reasonForbidden
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return reasonRejected
	default:
		return reasonFailed
	}
}

// isRequeue reports whether the error is a requeue request, as opposed to a failure.
func isRequeue(err error) bool {
	_, ok := dynamiccontroller.RequeueDelay(err)
	return ok
}

// joinReasons joins the first few reasons and counts the others.
func joinReasons(reasons []blueprint.Reason) string {
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

// Truncate shortens a message so that it fits into a condition.
func Truncate(message string) string {
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
