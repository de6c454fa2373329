package children

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// If the API server responds with 500 and no reason, dry runs show whether the content of the child is the cause. What
// they show is valid for a minute.
func TestReconcile_DryRunsShowWhyAChildCannotBeApplied(t *testing.T) {
	unexplained := apierrors.NewGenericServerResponse(http.StatusInternalServerError, "patch",
		configMaps.GroupResource(), "a", "cannot be merged", 0, false)
	unexplained.ErrStatus.Reason = ""
	unavailable := apierrors.NewServiceUnavailable("test")
	for name, test := range map[string]struct {
		whole, metadata error // of a dry run with the whole child, and of one with its metadata
		outcome         Outcome
		reason          string
		dryRuns, again  int // of the first call, and of one within a minute
	}{
		"only the metadata can be applied":   {unexplained, nil, OutcomeRefused, ReasonInvalid, 2, 0},
		"the metadata is forbidden":          {unexplained, errDenied, OutcomeRefused, ReasonInvalid, 2, 0},
		"the metadata has the same effect":   {unexplained, unexplained, OutcomeFailed, ReasonRequestFailed, 2, 0},
		"the metadata cannot be judged":      {unexplained, unavailable, OutcomeFailed, ReasonRequestFailed, 2, 2},
		"there is no response":               {unexplained, errors.New("test"), OutcomeFailed, ReasonRequestFailed, 2, 2},
		"a dry run succeeds":                 {nil, nil, OutcomeFailed, ReasonRequestFailed, 1, 1},
		"a dry run fails for another reason": {unavailable, nil, OutcomeFailed, ReasonRequestFailed, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, dryRuns := newReconciling(t, newWidget()), 0
				s.PrependReactor("patch", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
					sent := action.(clienttesting.PatchActionImpl)
					isWhole := strings.Contains(string(sent.Patch), `"data"`)
					switch isDryRun := len(sent.PatchOptions.DryRun) > 0; {
					case !isDryRun:
						return true, nil, unexplained
					case isWhole:
						dryRuns++
						return true, newConfigMap("a", "x"), test.whole
					default:
						dryRuns++
						return true, newConfigMap("a", "x"), test.metadata
					}
				})
				for _, step := range []struct {
					when    string
					after   time.Duration
					dryRuns int
				}{
					{"first", 0, test.dryRuns}, {"again", time.Minute, test.again},
					{"later", time.Second, test.dryRuns},
				} {
					time.Sleep(step.after)
					dryRuns = 0
					result, _ := s.reconciler.Reconcile(t.Context(), first, s.parent, oneStage(newConfigMap("a", "x")))
					if got := result.Children[0]; got.Outcome != test.outcome || got.Reason != test.reason {
						t.Errorf("%s: got %s %s: %v", step.when, got.Outcome, got.Reason, got.Err)
					}
					if dryRuns != step.dryRuns {
						t.Errorf("%s: sent %d dry runs, want %d", step.when, dryRuns, step.dryRuns)
					}
				}
			})
		})
	}
}
