package children

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// overwriteData changes a config map as another client does.
func (s reconciling) overwriteData(t *testing.T, name string) {
	t.Helper()
	_, err := s.Resource(configMaps).Namespace("default").Patch(t.Context(), name, types.MergePatchType,
		[]byte(`{"data":{"key":"drift"}}`), metav1.PatchOptions{FieldManager: "other"})
	if err != nil {
		t.Fatal(err)
	}
}

// If several children drift, the parent is reconciled again when the first of them can be corrected.
func TestReconcile_RequeuesForTheFirstDriftingChild(t *testing.T) {
	a, b := newConfigMap("a", "x"), newConfigMap("b", "x")
	for name, desired := range map[string]Desired{"in order": oneStage(a, b), "reversed": oneStage(b, a)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { requeuesForTheFirstDriftingChild(t, desired) })
		})
	}
}

// The child a begins to drift four seconds before b.
func requeuesForTheFirstDriftingChild(t *testing.T, desired Desired) {
	s := newReconciling(t, newWidget())
	reconcile := func() (Result, time.Duration) {
		result, err := s.reconciler.Reconcile(t.Context(), first, s.parent, desired)
		failUnlessRequeued(t, err)
		delay, _ := dynamiccontroller.RequeueDelay(err)
		return result, delay
	}
	reconcile()
	for _, child := range []string{"a", "b"} {
		time.Sleep(4 * time.Second)
		for range 5 {
			s.overwriteData(t, child)
			reconcile()
		}
	}
	s.overwriteData(t, "a")
	s.overwriteData(t, "b")
	s.TakeWrites()
	result, delay := reconcile()
	for _, child := range result.Children {
		if child.Outcome != OutcomeDrifting || child.Reason != ReasonChangedByOthers || child.Manager != "other" {
			t.Errorf("%s: got %s %s by %s", child.NamespacedKey, child.Outcome, child.Reason, child.Manager)
		}
	}
	if delay.Round(time.Millisecond) != 6*time.Second {
		t.Errorf("requeued after %s, want 6s", delay)
	}
	time.Sleep(delay + time.Millisecond)
	reconcile()
	if writes := s.TakeWrites(); !slices.Equal(writes, []string{"apply configmaps a"}) {
		t.Errorf("wrote %q", writes)
	}
}

func TestChild_BlocksLaterStages(t *testing.T) {
	for name, test := range map[string]struct {
		outcome Outcome
		reason  string
		exists  bool
		want    bool
	}{
		"a created child":                         {OutcomeCreated, "", true, false},
		"an applied child":                        {OutcomeApplied, "", true, false},
		"an unchanged child":                      {OutcomeUnchanged, ReasonStoredDifferently, true, false},
		"a child that is changed again and again": {OutcomeDrifting, ReasonChangedByOthers, true, false},
		"a child that is deleted again and again": {OutcomeDrifting, ReasonDeletedByOthers, false, true},
		"a refused child that exists":             {OutcomeRefused, ReasonInvalid, true, false},
		"a refused child that does not exist":     {OutcomeRefused, ReasonInvalid, false, true},
		"a child that does not fit":               {OutcomeRefused, ReasonInventoryFull, false, false},
		"a child that is being deleted":           {OutcomeWaiting, ReasonBeingDeleted, true, true},
		"an object of another owner":              {OutcomeConflict, ReasonNotOwned, false, true},
		"a failed request for an existing child":  {OutcomeFailed, ReasonRequestFailed, true, true},
		"a failed request for a child to create":  {OutcomeFailed, ReasonRequestFailed, false, true},
	} {
		d := child{result: ChildResult{Outcome: test.outcome, Reason: test.reason}}
		if test.exists {
			d.result.Object = newConfigMap("a", "x")
		}
		if got := d.blocks(); got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}
