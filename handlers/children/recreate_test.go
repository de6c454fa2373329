package children

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// A child that the API server refuses to change is deleted and created again, if a dry run shows that it can be
// created. Otherwise, it stays.
func TestReconcile_RecreatesOnlyChildrenThatCanBeCreated(t *testing.T) {
	invalid := apierrors.NewInvalid(widgetKind.GroupKind, "a", nil)
	for name, test := range map[string]struct {
		probe   error // of the dry run of the creation; nil if only the name is taken
		value   string
		outcome Outcome
	}{
		"it can be created":               {nil, "two", OutcomeCreated},
		"it is invalid":                   {invalid, "one", OutcomeRefused},
		"it is unknown whether it can be": {apierrors.NewServiceUnavailable("test"), "one", OutcomeFailed},
	} {
		t.Run(name, func(t *testing.T) {
			s := newReconciling(t, newWidget())
			reconcile := func(value string) ChildResult {
				child := Child{Object: newConfigMap("a", value), OnImmutable: OnImmutableRecreate}
				result, _ := s.reconciler.Reconcile(t.Context(), first, s.parent, Desired{Stages: [][]Child{{child}}})
				return result.Children[0]
			}
			reconcile("one")
			exists := true
			s.PrependReactor("delete", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
				exists = false
				return false, nil, nil
			})
			s.PrependReactor("patch", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
				return exists, nil, invalid
			})
			s.PrependReactor("create", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
				isProbe := len(action.(clienttesting.CreateActionImpl).CreateOptions.DryRun) > 0
				return isProbe && test.probe != nil, nil, test.probe
			})
			if got := reconcile("two"); got.Outcome != test.outcome {
				t.Errorf("got %s %s: %v, want %s", got.Outcome, got.Reason, got.Err, test.outcome)
			}
			value, _, _ := unstructured.NestedString(getConfigMap(t, s.Server, "default", "a").Object, "data", "key")
			if value != test.value {
				t.Errorf("the value is %q, want %q", value, test.value)
			}
		})
	}
}
