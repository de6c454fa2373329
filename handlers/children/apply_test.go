package children

import (
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// A child is not written, and does not count as applied, if it cannot be read before.
func TestReconcile_ChildThatCannotBeReadFails(t *testing.T) {
	s := newReconciling(t, newWidget())
	s.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("test")
	})
	result, err := s.reconciler.Reconcile(t.Context(), first, s.parent, oneStage(newConfigMap("a", "x")))
	if got := result.Children[0]; got.Outcome != OutcomeFailed || err == nil {
		t.Errorf("got %s %s, error %v", got.Outcome, got.Reason, err)
	}
	isChild := func(write string) bool { return strings.Contains(write, "configmaps") }
	if writes := s.TakeWrites(); slices.ContainsFunc(writes, isChild) {
		t.Errorf("wrote %q", writes)
	}
}
