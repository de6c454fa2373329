package decide

import (
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

type propagationCase struct {
	situation  string
	finalizer  string
	witnessed  types.UID // the value of the annotation on the parent
	witness    Witness
	witnessErr error
	wasDeleted bool
	// namespace is how long after its namespace the parent was deleted, or nil if the namespace stays.
	namespace    *time.Duration
	namespaceErr error
	want         Propagation
	err          error
}

func after(delay time.Duration) *time.Duration { return &delay }

var propagationCases = []propagationCase{
	{
		situation: "orphaned, and the garbage collector has not finished", finalizer: metav1.FinalizerOrphanDependents,
		witnessed: "parent", witness: WitnessIsOwned, want: Orphaned,
	},
	{
		situation: "in the foreground", finalizer: metav1.FinalizerDeleteDependents, witnessed: "parent",
		witness: WitnessIsOrphaned, want: Deleted,
	},
	{situation: "in the background", witnessed: "parent", witness: WitnessIsOwned, want: Deleted},
	{
		situation: "in the background, just before its namespace", witnessed: "parent", witness: WitnessIsOwned,
		namespace: after(time.Second), want: Deleted,
	},
	{situation: "orphaned", witnessed: "parent", witness: WitnessIsOrphaned, want: Orphaned},
	{
		situation: "orphaned after another deletion had begun", witnessed: "parent", witness: WitnessIsOrphaned,
		wasDeleted: true, want: Orphaned,
	},
	{situation: "this run has seen the witness before", wasDeleted: true, want: Deleted},
	{
		situation: "this run has seen the witness before, and the namespace follows", wasDeleted: true, witnessed: "parent",
		namespace: after(-time.Second), want: Deleted,
	},
	{situation: "with its namespace", witnessed: "parent", namespace: after(5 * time.Second), want: Deleted},
	{situation: "with its namespace, and without a witness", namespace: after(5 * time.Second), want: Deleted},
	{situation: "before its namespace", witnessed: "parent", namespace: after(time.Second), want: Unproved},
	{situation: "the witness is hidden", witnessed: "parent", witness: WitnessIsHidden, want: Hidden},
	{
		situation: "the witness is hidden, and the namespace shows it", witnessed: "parent", witness: WitnessIsHidden,
		namespace: after(5 * time.Second), want: Deleted,
	},
	{situation: "the witness is gone", witnessed: "parent", want: Deleted},
	{situation: "the annotation of an earlier parent", witnessed: "earlier", witness: WitnessIsOwned, want: Unproved},
	{situation: "no annotation", want: Unproved},
	{situation: "the witness cannot be read", witnessed: "parent", witnessErr: errUnreadable, err: errUnreadable},
	{
		situation: "the witness cannot be read, and this run has seen it", witnessed: "parent", witnessErr: errUnreadable,
		wasDeleted: true, err: errUnreadable,
	},
	{situation: "the namespace cannot be read", namespaceErr: errUnreadable, err: errUnreadable},
}

func (c propagationCase) evidence() Evidence {
	parent := testParent()
	parent.SetDeletionTimestamp(&metav1.Time{Time: start})
	if c.finalizer != "" {
		parent.SetFinalizers([]string{c.finalizer})
	}
	annotation(testNames.Witness(), string(c.witnessed))(parent.Unstructured)
	return Evidence{
		Parent: parent, WasDeleted: c.wasDeleted,
		Witness: func() (Witness, error) { return c.witness, c.witnessErr },
		NamespaceDeleted: func() (time.Time, error) {
			if c.namespace == nil {
				return time.Time{}, c.namespaceErr
			}
			return start.Add(-*c.namespace), nil
		},
	}
}

func TestPropagationOf(t *testing.T) {
	for _, test := range propagationCases {
		t.Run(test.situation, func(t *testing.T) {
			got, err := PropagationOf(test.evidence())
			if got != test.want || !errors.Is(err, test.err) {
				t.Errorf("got %d, %v, want %d, %v", got, err, test.want, test.err)
			}
		})
	}
	eachRowMatters(t, &propagationRules, func(row propagationRule) string { return row.when }, func() (all []string) {
		for _, test := range propagationCases {
			got, err := PropagationOf(test.evidence())
			all = append(all, fmt.Sprint(got, err))
		}
		return all
	})
}

// Evidence that costs a request is not asked for if another row decides.
func TestPropagationOf_AsksOnlyForWhatItNeeds(t *testing.T) {
	for _, test := range propagationCases {
		evidence, witnesses, namespaces := test.evidence(), 0, 0
		witness, namespace := evidence.Witness, evidence.NamespaceDeleted
		evidence.Witness = func() (Witness, error) { witnesses++; return witness() }
		evidence.NamespaceDeleted = func() (time.Time, error) { namespaces++; return namespace() }
		if _, err := PropagationOf(evidence); err != nil {
			continue
		}
		if wants := test.finalizer == "" && test.witnessed == "parent"; witnesses > 1 || (witnesses == 1) != wants {
			t.Errorf("%s: read the witness %d times", test.situation, witnesses)
		}
		if decided := test.finalizer != "" || test.wasDeleted || test.witnessed == "parent" &&
			(test.witness == WitnessIsOwned || test.witness == WitnessIsOrphaned); namespaces > 1 || decided && namespaces > 0 {
			t.Errorf("%s: read the namespace %d times", test.situation, namespaces)
		}
	}
}
