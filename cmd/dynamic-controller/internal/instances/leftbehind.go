package instances

import (
	"context"
	"errors"
	"slices"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children"
)

// reportLeftBehind writes to the status which children can still exist after an instance has been deleted. It is called
// before the platform's finalizer is removed. The message contains only the kinds, because the identity of the instance
// may not be allowed to read the children.
func (r *Reconciler) reportLeftBehind(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, self *unstructured.Unstructured,
	left []children.LeftBehind,
) error {
	var kinds []string
	problem := "the API server does not support listing or deleting them"
	for _, l := range left {
		switch {
		case errors.Is(l.Err, children.ErrMaybeOrphaned):
			problem = children.ErrMaybeOrphaned.Error()
		case errors.Is(l.Err, children.ErrCrossNamespaceNotListed):
			problem = "no stored revision of the Blueprint creates them outside the namespace of the instance"
		}
		if kind := l.Kind.String(); !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	message := Truncate("the deletion continues without children of these kinds, which can still exist, because " +
		problem + ": " + joinFirst(kinds, ", "))
	if !r.hasStatus() {
		logr.FromContextOrDiscard(ctx).Info("Children left behind", "message", message)
		return nil
	}
	return r.report(ctx, id, self, metav1.Condition{
		Type: conditionReady, Status: metav1.ConditionFalse, Reason: reasonLeftBehind, Message: message,
	}, nil, nil)
}

// leftBehind returns the Ready condition if reportLeftBehind has written it, and nil otherwise.
func leftBehind(self *unstructured.Unstructured) *metav1.Condition {
	if ready := ConditionOf(self, conditionReady); ready != nil && ready.Reason == reasonLeftBehind {
		return ready
	}
	return nil
}
