package platform

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
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

func TestStatusThatCannotBeAppliedIsPatched(t *testing.T) {
	object := func() *unstructured.Unstructured {
		o := &unstructured.Unstructured{}
		o.SetAPIVersion("example.com/v1")
		o.SetKind("Widget")
		o.SetNamespace("shop")
		o.SetName("a")
		o.SetUID("u")
		o.SetResourceVersion("7")
		o.Object["status"] = map[string]any{"old": "x", "conditions": []any{map[string]any{"type": "Theirs", "status": "True"}, map[string]any{"type": ready, "status": "True"}}}
		return o
	}
	widgets := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	id := dynamiccontroller.ObjectIdentifiers{NamespacedKey: "shop/a", GVR: schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}}
	untyped := &apierrors.StatusError{ErrStatus: metav1.Status{Code: 500, Message: "failed to create typed live object (a): .spec.a: expected string"}}
	for name, c := range map[string]struct {
		err     error
		patched bool
	}{
		"an object that does not fit its schema": {untyped, true},
		"an invalid object":                      {apierrors.NewInvalid(widgets.GroupKind(), "a", nil), true},
		"no rights":                              {apierrors.NewForbidden(schema.GroupResource{}, "a", nil), false},
		"a server that is too busy":              {apierrors.NewTooManyRequests("later", 1), false},
		"no answer":                              {errors.New("connection refused"), false},
	} {
		for _, merges := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, merges %t", name, merges), func(t *testing.T) {
				server := newFakeServer([]schema.GroupVersionKind{widgets}, object())
				var patch []byte
				server.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
					p := action.(clienttesting.PatchAction)
					if p.GetPatchType() == types.ApplyPatchType {
						return true, nil, c.err
					}
					if p.GetSubresource() == "status" {
						patch = p.GetPatch()
					}
					return true, object(), nil
				})
				want := wanting(1, metav1.ConditionFalse)
				want.mergesConditions = merges
				want.fields["old"] = nil
				err := statusWriter{client: server}.set(t.Context(), id, object(), want)
				if !c.patched {
					if !errors.Is(err, c.err) || patch != nil {
						t.Errorf("got the error %v and the patch %s", err, patch)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				var got struct {
					Metadata struct{ UID, ResourceVersion string }
					Status   map[string]any
				}
				if err := json.Unmarshal(patch, &got); err != nil {
					t.Fatal(err)
				}
				if got.Metadata.UID != "u" || got.Metadata.ResourceVersion != "7" {
					t.Errorf("it may change another object, or another version: %s", patch)
				}
				known, others := conditionsOf(got.Status, want.conditions)
				if len(known) != 1 || known[0].Status != metav1.ConditionFalse || len(others) != 1 {
					t.Errorf("the conditions are %v", got.Status["conditions"])
				}
				if old, has := got.Status["old"]; old != nil || !has || got.Status["instances"] == nil {
					t.Errorf("the status is %v", got.Status)
				}
			})
		}
	}
}
