package instances

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

func TestOutcome_StatusThatCannotBeWritten(t *testing.T) {
	failure, statusFailure := errors.New("child"), errors.New("status")
	waits := dynamiccontroller.RequeueAfter(time.Second)
	for name, c := range map[string]struct {
		err, statusErr error
		want           []error // the errors that the result must wrap
	}{
		"only a failure":               {failure, nil, []error{failure}},
		"only a wait":                  {waits, nil, []error{waits}},
		"only a status error":          {nil, statusFailure, []error{statusFailure}},
		"a failure and a status error": {failure, statusFailure, []error{failure, statusFailure}},
		"a wait and a status error":    {waits, statusFailure, []error{statusFailure}},
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

func TestThrottleMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &Reconciler{}
		id := dynamiccontroller.ObjectIdentifiers{NamespacedKey: "shop/flowers"}
		self := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"generation": int64(1)}}}
		for _, step := range []struct {
			name                  string
			after                 time.Duration
			reason, message, want string
		}{
			{"first failure", 0, reasonFailed, "a", "a"},
			{"first change to the message", 0, reasonFailed, "b", "b"},
			{"immediate change", 0, reasonFailed, "c", "b"},
			{"change before the interval ends", 9 * time.Second, reasonFailed, "d", "b"},
			{"change after the interval", time.Second, reasonFailed, "e", "e"},
			{"another reason", 0, reasonForbidden, "f", "f"},
			{"immediate change with another reason", 0, reasonForbidden, "g", "f"},
			{"the first reason again", 0, reasonFailed, "h", "h"},
			{"waiting", 0, reasonWaiting, "i", "i"},
			{"immediate change while waiting", 0, reasonWaiting, "j", "i"},
			{"change before the shorter interval ends", progressInterval - 1, reasonWaiting, "k", "i"},
			{"change after the shorter interval", 1, reasonWaiting, "l", "l"},
			{"ready", 0, reasonReady, "m", "m"},
			{"waiting again", 0, reasonWaiting, "n", "n"},
		} {
			time.Sleep(step.after)
			now := metav1.Condition{Type: conditionReady, Status: metav1.ConditionFalse, Reason: step.reason,
				Message: step.message}
			k.throttleMessage(&now, id, self)
			if now.Message != step.want {
				t.Errorf("%s: got %q, want %q", step.name, now.Message, step.want)
			}
			now.ObservedGeneration = 1
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&now)
			if err != nil {
				t.Fatal(err)
			}
			self.Object["status"] = map[string]any{"conditions": []any{content}}
		}
		k.messages.Wait(id.NamespacedKey, messageInterval)
		self.SetGeneration(2)
		now := metav1.Condition{Type: conditionReady, Status: metav1.ConditionFalse, Reason: reasonFailed, Message: "i"}
		if k.throttleMessage(&now, id, self); now.Message != "i" {
			t.Errorf("another generation: got %q", now.Message)
		}
	})
}
