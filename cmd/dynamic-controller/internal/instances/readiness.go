package instances

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

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

// conditionReady is the type of the condition that reports whether an instance is ready.
const conditionReady = "Ready"

// Reasons for the Ready condition.
const (
	reasonReady     = "Ready"
	reasonWaiting   = "Waiting"
	reasonInvalid   = "Invalid"        // an expression fails, or its result is invalid
	reasonConflict  = "Conflict"       // a child belongs to another owner
	reasonForbidden = "Forbidden"      // the identity or the platform lacks a permission
	reasonRejected  = "Rejected"       // the API server rejected a child
	reasonFailed    = "ChildrenFailed" // any other error
	reasonMemory    = "MemoryExceeded" // a reconcile needs more memory than it can have
	reasonDrifting  = "Drifting"       // another client changes a child again and again
	reasonDeleting  = "Deleting"
	// reasonWaitingForMemory is reported if an instance has waited for memory for a long time.
	reasonWaitingForMemory = "WaitingForMemory"
	reasonPaused           = "Paused" // the instance has been paused since its creation

	// reasonCleanupForbidden is reported while an instance is being deleted and still has children that its identity
	// cannot delete, or that are in a namespace not listed in --namespaces.
	reasonCleanupForbidden = "CleanupForbidden"
	// reasonLeftBehind is reported for an instance that is being deleted if children of kinds that the API server cannot
	// list or delete can still exist.
	reasonLeftBehind = "ChildrenLeftBehind"
)

// isFailing reports whether a Ready condition with this reason describes a problem that a user must fix.
func isFailing(reason string) bool {
	switch reason {
	case reasonInvalid, reasonConflict, reasonForbidden, reasonRejected, reasonFailed, reasonMemory, reasonDrifting,
		reasonCleanupForbidden, reasonLeftBehind, identity.ReasonIdentityRequired, identity.ReasonServiceAccountNotAllowed,
		identity.ReasonServiceAccountNotFound, identity.ReasonConsentMissing, identity.ReasonPermissionMissing:
		return true
	}
	return false
}

// readiness returns the Ready condition of an instance after a reconcile that returned err.
func readiness(
	compiled *blueprint.Compiled, step blueprint.Step, result children.Result, err error,
) metav1.Condition {
	c := metav1.Condition{Type: conditionReady, Status: metav1.ConditionFalse}
	rejection := rejectionIn(err)
	switch {
	case rejection != nil:
		c.Reason, c.Message = rejection.Reason, rejection.Message
	case len(step.Problems) > 0:
		c.Reason, c.Message = reasonInvalid, step.Problems.Error()
	case errors.Is(err, errContinue):
		c.Reason = reasonWaiting
		c.Message = "the resources are created in several reconciles, because their expressions are costly"
	case isRequeue(err) && isDrifting(result):
		c.Reason, c.Message = reasonDrifting, explain(compiled, result, err)
	case isRequeue(err) && len(result.Pending) > 0:
		c.Reason, c.Message = reasonWaiting, pendingMessage(result.Pending)
	case isRequeue(err):
		c.Reason, c.Message = reasonWaiting, "waiting for objects that are being deleted"
	case err != nil:
		c.Reason, c.Message = reasonOf(result, err), explain(compiled, result, err)
	case step.Report != nil && len(step.Report.Problems) > 0:
		c.Reason, c.Message = reasonInvalid, step.Report.Problems.Error()
	case !step.Ready:
		c.Reason, c.Message = reasonWaiting, joinFirst(append(step.Unready, step.Waiting...), "; ")
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonReady, readyMessage(step)
		if differ := remarks(compiled, result); len(differ) > 0 {
			c.Message += "\n" + joinFirst(differ, "\n")
		}
	}
	c.Message = Truncate(c.Message)
	return c
}

// readyMessage counts the resources and names the excluded ones.
func readyMessage(step blueprint.Step) string {
	ready, excluded := len(step.Rendered)+len(step.Collections)+len(step.Referenced), len(step.Excluded)
	for _, items := range step.Collections {
		ready -= items
	}
	objects := ""
	if len(step.Collections) > 0 {
		if objects = fmt.Sprintf(", with %d objects", len(step.Rendered)); len(step.Rendered) == 1 {
			objects = ", with 1 object"
		}
	}
	switch {
	case excluded == 0 && ready == 1:
		return "the resource is ready" + objects
	case excluded == 0:
		return fmt.Sprintf("all %d resources are ready%s", ready, objects)
	}
	verb := "are"
	if ready == 1 {
		verb = "is"
	}
	return fmt.Sprintf("%d of %d resources %s ready%s%s", ready, ready+excluded, verb, objects,
		excludedMessage(step.Excluded))
}

// excludedMessage names the resources whose includeWhen is false, and separately those that refer to them.
func excludedMessage(all []blueprint.Excluded) (message string) {
	var own []blueprint.Excluded
	var through []string
	for _, e := range all {
		if len(e.Through) == 0 {
			own = append(own, e)
		} else {
			through = append(through, fmt.Sprintf("%s refers to %s", e.ID, e.Through[0]))
		}
	}
	message = "; excluded by includeWhen: " + joinFirst(own, ", ")
	if len(through) > 0 {
		message += "; excluded because they refer to excluded resources: " + joinFirst(through, ", ")
	}
	return message
}

// isIdentifier matches the ids of resources.
var isIdentifier = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// pendingMessage names the first few children that are waiting to be deleted, and the finalizers that block their
// deletion.
func pendingMessage(pending []children.PendingChild) string {
	const most, maxID = 3, 63
	var lines []string
	for _, child := range pending[:min(len(pending), most)] {
		if !child.Deleting {
			break // later children wait for the earlier ones
		}
		line := fmt.Sprintf("waiting for %s %s to be deleted", child.Kind.Kind, child.NamespacedKey)
		if child.NamespacedKey == "" { // the identity cannot read it
			line = fmt.Sprintf("waiting for a child of kind %s to be deleted", child.Kind.Kind)
		}
		// Anyone who can update the child can set this annotation.
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

// BlockedBy returns the part of a message that names the finalizers of an object that is being deleted. It returns ""
// if there are none.
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

// ConditionOf returns the condition of the given type from an object's status, or nil if the condition is missing or
// invalid.
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

// NewConditions returns a Conditions that writes statuses with the given field manager. changed can be nil. See
// [handlers.ConditionsConfig].
func NewConditions(
	client dynamic.Interface, manager string,
	changed func(ctx context.Context, before, after *unstructured.Unstructured),
) *handlers.Conditions {
	conditions, err := handlers.NewConditions(handlers.ConditionsConfig{
		Client: client, FieldManager: manager, Changed: changed,
	})
	if err != nil {
		panic(err) // cannot happen: the client is set
	}
	return conditions
}

// reasonOf returns the reason for the most important problem of a reconcile that failed.
func reasonOf(result children.Result, err error) string {
	has := func(f func(children.ChildResult) bool) bool { return slices.ContainsFunc(result.Children, f) }
	switch {
	case has(func(c children.ChildResult) bool { return c.Outcome == children.OutcomeConflict }):
		return reasonConflict
	case apierrors.IsForbidden(err), has(func(c children.ChildResult) bool { return apierrors.IsForbidden(c.Err) }):
		return reasonForbidden
	case has(isRejectedChild):
		return reasonRejected
	case isRejected(errors.Join(othersIn(result, err)...)):
		return reasonRejected
	default:
		return reasonFailed
	}
}

// isRejectedChild reports whether the API server rejected the content of a child.
func isRejectedChild(child children.ChildResult) bool {
	return child.Outcome == children.OutcomeRefused && (isRejected(child.Err) ||
		child.Reason == children.ReasonInvalid || child.Reason == children.ReasonTooLarge)
}

// isRejected reports whether the API server rejected the content of an object.
func isRejected(err error) bool { return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) }

// isDrifting reports whether a child is changed by other clients again and again.
func isDrifting(result children.Result) bool {
	return slices.ContainsFunc(result.Children, func(child children.ChildResult) bool {
		return child.Outcome == children.OutcomeDrifting
	})
}

// isRequeue reports whether the error is a requeue request instead of a failure.
func isRequeue(err error) bool {
	_, ok := dynamiccontroller.RequeueDelay(err)
	return ok
}

// joinFirst joins the first few items and counts the others.
func joinFirst[T any](items []T, separator string) string {
	const most = 10
	var parts []string
	for _, item := range items[:min(len(items), most)] {
		parts = append(parts, fmt.Sprint(item))
	}
	if more := len(items) - most; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, separator)
}

// Truncate shortens a message to the maximum length of a condition message.
func Truncate(message string) string { return blueprint.Cut(message, 8<<10) }
