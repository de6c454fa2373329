package events

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestIsNewProblem(t *testing.T) {
	failing := func(generation int64, reason, message string) *metav1.Condition {
		return &metav1.Condition{
			Type: "Ready", Status: metav1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: generation,
		}
	}
	const (
		otherNumbers = "cannot create pages-2 (request 08cc, after 12s)"
		otherWord    = "cannot delete pages-1 (request 7f3a, after 1.5s)"
	)
	before := failing(1, "Forbidden", "cannot create pages-1 (request 7f3a, after 1.5s)")
	for name, c := range map[string]struct {
		before, after *metav1.Condition
		want          bool
	}{
		"the first condition":                     {nil, before, true},
		"the same condition":                      {before, before, false},
		"other numbers":                           {before, failing(1, "Forbidden", otherNumbers), false},
		"another word":                            {before, failing(1, "Forbidden", otherWord), true},
		"another reason":                          {before, failing(1, "Rejected", before.Message), true},
		"the same message for another generation": {before, failing(2, "Forbidden", before.Message), false},
		"another number for another generation":   {before, failing(2, "Forbidden", "cannot create pages-2"), true},
		"another status": {&metav1.Condition{Type: "Ready", Status: metav1.ConditionUnknown, Reason: "Forbidden",
			Message: before.Message, ObservedGeneration: 1}, before, true},
	} {
		if got := IsNewProblem(c.before, c.after); got != c.want {
			t.Errorf("%s: got %t, want %t", name, got, c.want)
		}
	}
}
