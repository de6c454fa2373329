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

func TestReadiness(t *testing.T) {
	resource := schema.GroupResource{Resource: "configmaps"}
	wrapped := func(err error) error { return errors.Join(fmt.Errorf("child: %w", err)) }
	for name, test := range map[string]struct {
		step    blueprint.Step
		err     error
		reason  string
		message string
		failing bool
	}{
		"all is there": {step: blueprint.Step{Ready: true}, reason: reasonReady},
		"something is waited for": {
			step: blueprint.Step{
				Unready: []blueprint.Reason{{ID: "web", Reason: "does not exist yet"}},
				Waiting: []blueprint.Reason{{ID: "route", Reason: "waiting for web"}},
			},
			reason: reasonWaiting, message: "web: does not exist yet; route: waiting for web",
		},
		"an expression fails": {
			step:   blueprint.Step{Problems: blueprint.Problems{{Path: "p", Reason: "r"}}},
			reason: reasonInvalid, message: "p: r", failing: true,
		},
		"an expression fails, and a child": {
			step:    blueprint.Step{Problems: blueprint.Problems{{Path: "p"}}},
			err:     errors.New("e"),
			reason:  reasonInvalid,
			failing: true,
		},
		"more is to come": {
			step:    blueprint.Step{Unready: make([]blueprint.Reason, 3)},
			err:     errContinue,
			reason:  reasonWaiting,
			message: "created in several reconciles",
		},
		"something is deleted": {
			err:     dynamiccontroller.RequeueAfter(1),
			reason:  reasonWaiting,
			message: "being deleted",
		},
		"a child is another's": {err: wrapped(children.ErrNotOwned), reason: reasonConflict, failing: true},
		"a child is refused": {
			err:     wrapped(apierrors.NewInvalid(schema.GroupKind{}, "a", nil)),
			reason:  reasonRejected,
			failing: true,
		},
		"a right is missing": {
			err:     wrapped(apierrors.NewForbidden(resource, "a", errors.New("no"))),
			reason:  reasonForbidden,
			failing: true,
		},
		"something else": {err: errors.New("e"), reason: reasonFailed, message: "e", failing: true},
		"something else that is very long": {
			err:     errors.New(strings.Repeat("ä", 20<<10)),
			reason:  reasonFailed,
			message: "...",
			failing: true,
		},
		"more is waited for than anybody reads": {
			step:    blueprint.Step{Waiting: make([]blueprint.Reason, 30)},
			reason:  reasonWaiting,
			message: "and 20 more",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := readiness(test.step, test.err)
			if got.Reason != test.reason || !strings.Contains(got.Message, test.message) ||
				isFailing(got.Reason) != test.failing {
				t.Errorf("got %+v", got)
			}
			if want := test.reason == reasonReady; (got.Status == metav1.ConditionTrue) != want {
				t.Errorf("it is %s", got.Status)
			}
			if len(got.Message) > 32768 {
				t.Errorf("the message has %d bytes", len(got.Message))
			}
		})
	}
}
