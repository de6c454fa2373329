package platform

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func wanting(generation int64, status metav1.ConditionStatus) wantedStatus {
	return wantedStatus{
		generation: generation, mergesConditions: true,
		conditions: []metav1.Condition{{Type: ready, Status: status, Reason: "R", Message: "M"}},
		fields:     map[string]any{"instances": map[string]any{"total": int64(2)}},
	}
}

// applied is the object as it is when a status was applied.
func applied(object *unstructured.Unstructured, want wantedStatus) *unstructured.Unstructured {
	now := object.DeepCopy()
	if next := want.next(object); next != nil {
		now.Object["status"] = next.Object["status"]
	}
	return now
}

func TestAStatusIsWrittenIfItSaysSomethingElse(t *testing.T) {
	object := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"generation": int64(1), "resourceVersion": "7", "uid": "u"}}}
	first := wanting(1, metav1.ConditionTrue)
	next := first.next(object)
	if next == nil || next.GetResourceVersion() != "7" || next.GetUID() != "u" {
		t.Fatalf("got %v", next)
	}
	now := applied(object, first)
	if again := first.next(now); again != nil {
		t.Errorf("it is written again: %v", again)
	}
	other := wanting(1, metav1.ConditionTrue)
	other.fields = map[string]any{"instances": map[string]any{"total": int64(3)}}
	message := wanting(1, metav1.ConditionTrue)
	message.conditions[0].Message = "another"
	for name, want := range map[string]wantedStatus{
		"another generation": wanting(2, metav1.ConditionTrue), "another status": wanting(1, metav1.ConditionFalse),
		"another field": other, "another message": message,
	} {
		if want.next(now) == nil {
			t.Errorf("%s is not written", name)
		}
	}
}

func TestATransitionIsOfTheStatusAlone(t *testing.T) {
	then := metav1.NewTime(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))
	object := applied(&unstructured.Unstructured{Object: map[string]any{}}, wantedStatus{
		generation: 1, mergesConditions: true,
		conditions: []metav1.Condition{{Type: ready, Status: metav1.ConditionTrue, Reason: "R", LastTransitionTime: then}},
	})
	for status, want := range map[metav1.ConditionStatus]bool{metav1.ConditionTrue: true, metav1.ConditionFalse: false} {
		now := applied(object, wanting(2, status))
		known, _ := conditionsOf(now.Object["status"].(map[string]any), []metav1.Condition{{Type: ready}})
		if len(known) != 1 || known[0].LastTransitionTime.Equal(&then) != want {
			t.Errorf("with status %s it is %v", status, known)
		}
	}
}

func TestConditionsOfOthersStay(t *testing.T) {
	theirs := map[string]any{"type": "Theirs", "status": "True"}
	object := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": []any{theirs}}}}
	want := wanting(1, metav1.ConditionTrue)
	if list := want.next(object).Object["status"].(map[string]any)["conditions"].([]any); len(list) != 1 {
		t.Errorf("where the list merges, %v is applied", list)
	}
	want.mergesConditions = false
	if list := want.next(object).Object["status"].(map[string]any)["conditions"].([]any); len(list) != 2 {
		t.Errorf("where the list is one value, %v is applied", list)
	}
}
