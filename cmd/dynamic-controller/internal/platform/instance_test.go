package platform

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

func TestOutcome_StatusThatCannotBeWritten(t *testing.T) {
	failure, statusFailure := errors.New("child"), errors.New("status")
	waits := dynamiccontroller.RequeueAfter(time.Second)
	for name, c := range map[string]struct {
		err, statusErr error
		want           []error // that it wraps
	}{
		"a failure alone":           {failure, nil, []error{failure}},
		"a wait alone":              {waits, nil, []error{waits}},
		"a status alone":            {nil, statusFailure, []error{statusFailure}},
		"a failure, and the status": {failure, statusFailure, []error{failure, statusFailure}},
		"a wait, and the status":    {waits, statusFailure, []error{statusFailure}},
	} {
		got := outcome(c.err, c.statusErr)
		for _, want := range c.want {
			if !errors.Is(got, want) {
				t.Errorf("%s: %v does not wrap %v", name, got, want)
			}
		}
		if isRequeue(got) != (c.statusErr == nil && isRequeue(c.err)) {
			t.Errorf("%s: %v counts as a failure: %t", name, got, !isRequeue(got))
		}
	}
}

func TestAFailureIsToldInOtherWordsNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &instances{}
		id := dynamiccontroller.ObjectIdentifiers{NamespacedKey: "shop/flowers"}
		self := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"generation": int64(1)}}}
		for _, step := range []struct {
			name                  string
			after                 time.Duration
			reason, message, want string
		}{
			{"a first failure", 0, reasonFailed, "a", "a"},
			{"the next words", 0, reasonFailed, "b", "b"},
			{"others at once", 0, reasonFailed, "c", "b"},
			{"others soon", 9 * time.Second, reasonFailed, "d", "b"},
			{"others later", time.Second, reasonFailed, "e", "e"},
			{"another reason at once", 0, reasonForbidden, "f", "f"},
			{"another again", 0, reasonForbidden, "g", "g"},
			{"and back", 0, reasonFailed, "h", "h"},
		} {
			time.Sleep(step.after)
			now := metav1.Condition{Type: ready, Status: metav1.ConditionFalse, Reason: step.reason, Message: step.message}
			k.slowDown(&now, id, self)
			if now.Message != step.want {
				t.Errorf("%s: %q is told, want %q", step.name, now.Message, step.want)
			}
			self = applied(self, wantedStatus{generation: 1, mergesConditions: true, conditions: []metav1.Condition{now}})
		}
		k.told.due(id.NamespacedKey, retellEvery, time.Now())
		self.SetGeneration(2)
		now := metav1.Condition{Type: ready, Status: metav1.ConditionFalse, Reason: reasonFailed, Message: "i"}
		if k.slowDown(&now, id, self); now.Message != "i" {
			t.Errorf("of another generation %q is told", now.Message)
		}
	})
}
