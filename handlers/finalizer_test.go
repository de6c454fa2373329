package handlers

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// A cleanup is called as long as a part in it may have a finalizer of its own there, and not for Kubernetes' own.
func TestCleanupIsCalledForTheFinalizersOfPartsInIt(t *testing.T) {
	now := metav1.Now()
	for name, c := range map[string]struct {
		finalizers []string
		want       bool
	}{
		"its own":         {[]string{"test.example.com/own"}, true},
		"a part's":        {[]string{"platform.example.com/children"}, true},
		"Kubernetes' own": {[]string{metav1.FinalizerDeleteDependents, metav1.FinalizerOrphanDependents}, false},
		"none":            {nil, false},
	} {
		widget := newWidget()
		widget.SetDeletionTimestamp(&now)
		widget.SetFinalizers(c.finalizers)
		called := false
		handle := Finalizer(newFakeServer(widget), "test.example.com/own",
			func(context.Context, dynamiccontroller.ObjectIdentifiers, *unstructured.Unstructured) error {
				called = true
				return nil
			}, nil)
		if err := handle(t.Context(), first, widget); err != nil || called != c.want {
			t.Errorf("%s: called %t, %v", name, called, err)
		}
	}
}
