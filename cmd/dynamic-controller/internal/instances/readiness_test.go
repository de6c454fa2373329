package instances

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children"
)

// withChild returns the result for a child that has the given problem.
func withChild(outcome children.Outcome, err error) children.Result {
	return children.Result{Children: []children.ChildResult{{
		ObjectIdentifiers: dynamiccontroller.ObjectIdentifiers{NamespacedKey: "shop/web"},
		Kind:              schema.GroupKind{Kind: "Service"}, Annotations: map[string]string{resourceAnnotation: "service"},
		Outcome: outcome, Message: err.Error(), Err: err,
	}}}
}

func TestReadiness(t *testing.T) {
	drift := errors.New("field spec.replicas is changed again and again")
	resource := schema.GroupResource{Resource: "configmaps"}
	wrapped := func(err error) error { return errors.Join(fmt.Errorf("child: %w", err)) }
	for name, test := range map[string]struct {
		step    blueprint.Step
		result  children.Result
		err     error
		reason  string
		message string
		failing bool
	}{
		"all children are ready": {step: blueprint.Step{Ready: true}, reason: reasonReady},
		"a waiting resource": {
			step: blueprint.Step{
				Unready: []blueprint.Reason{{ID: "web", Reason: "does not exist yet"}},
				Waiting: []blueprint.Reason{{ID: "route", Reason: "waiting for web"}},
			},
			reason: reasonWaiting, message: "web: does not exist yet; route: waiting for web",
		},
		"a failed expression": {
			step:   blueprint.Step{Problems: blueprint.Problems{{Path: "p", Reason: "r"}}},
			reason: reasonInvalid, message: "p: r", failing: true,
		},
		"a failed expression and a failed child": {
			step:    blueprint.Step{Problems: blueprint.Problems{{Path: "p"}}},
			err:     errors.New("e"),
			reason:  reasonInvalid,
			failing: true,
		},
		"costly expressions": {
			step:    blueprint.Step{Unready: make([]blueprint.Reason, 3)},
			err:     errContinue,
			reason:  reasonWaiting,
			message: "are created in several reconciles",
		},
		"a pending deletion": {
			err:     dynamiccontroller.RequeueAfter(1),
			reason:  reasonWaiting,
			message: "being deleted",
		},
		"an object that could be adopted": {
			result: withChild(children.OutcomeConflict, children.ErrAdoptionNotEnabled),
			err:    shortened(errors.Join(wrapped(children.ErrAdoptionNotEnabled), errors.New("e"))),
			reason: reasonConflict,
			message: "service: Service shop/web: the object exists and does not belong to this parent: " +
				"this controller did not create it, and adoption is not enabled; set adopt: true on the resource, " +
				"or delete the object\ne",
			failing: true,
		},
		"a child of a later version": {
			result: withChild(children.OutcomeConflict, children.ErrNewerFormat), err: wrapped(children.ErrNewerFormat),
			reason: reasonConflict, message: "; upgrade the platform", failing: true,
		},
		"a child with an edited mark": {
			result: withChild(children.OutcomeConflict, children.ErrInvalidMark), err: wrapped(children.ErrInvalidMark),
			reason: reasonConflict, message: "; restore the annotations of the object", failing: true,
		},
		"a retained child": {
			result: withChild(children.OutcomeConflict, children.ErrRetained), err: wrapped(children.ErrRetained),
			reason: reasonConflict, message: "; the object can be used again with adopt: true", failing: true,
		},
		"a child of another owner": {
			result: withChild(children.OutcomeConflict, children.ErrNotOwned), err: wrapped(children.ErrNotOwned),
			reason: reasonConflict, message: "Service shop/web: the object exists", failing: true,
		},
		"a child that drifts": {
			result: withChild(children.OutcomeDrifting, drift),
			err:    errors.Join(wrapped(drift), dynamiccontroller.RequeueAfter(1)),
			reason: reasonDrifting, message: "service: Service shop/web: " + drift.Error(), failing: true,
		},
		"a child that drifts, and another failure": {
			result: withChild(children.OutcomeDrifting, drift), err: errors.Join(wrapped(drift), errors.New("e")),
			reason: reasonFailed, message: drift.Error() + "\ne", failing: true,
		},
		"a child that waits for a deletion": {
			result: children.Result{Pending: []children.PendingChild{pendingChild("a-page", "page", true)}},
			err:    dynamiccontroller.RequeueAfter(1),
			reason: reasonWaiting, message: "page: waiting for ConfigMap shop/a-page",
		},
		"a rejected child": {
			err:     wrapped(apierrors.NewInvalid(schema.GroupKind{}, "a", nil)),
			reason:  reasonRejected,
			failing: true,
		},
		"a missing permission": {
			err:     wrapped(apierrors.NewForbidden(resource, "a", errors.New("no"))),
			reason:  reasonForbidden,
			failing: true,
		},
		"another error": {err: errors.New("e"), reason: reasonFailed, message: "e", failing: true},
		"a long error": {
			err:     errors.New(strings.Repeat("ä", 20<<10)),
			reason:  reasonFailed,
			message: "...",
			failing: true,
		},
		"many waiting resources": {
			step:    blueprint.Step{Waiting: make([]blueprint.Reason, 30)},
			reason:  reasonWaiting,
			message: "and 20 more",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := readiness(nil, test.step, test.result, test.err)
			if got.Reason != test.reason || !strings.Contains(got.Message, test.message) ||
				isFailing(got.Reason) != test.failing {
				t.Errorf("got %+v", got)
			}
			if want := test.reason == reasonReady; (got.Status == metav1.ConditionTrue) != want {
				t.Errorf("got %s", got.Status)
			}
			if len(got.Message) > 32768 {
				t.Errorf("the message has %d bytes", len(got.Message))
			}
		})
	}
}
