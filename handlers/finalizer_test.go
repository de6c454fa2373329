package handlers

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestFinalizer_CallsCleanupWhileControllersHaveFinalizers(t *testing.T) {
	now := metav1.Now()
	ofGarbageCollector := []string{metav1.FinalizerDeleteDependents, metav1.FinalizerOrphanDependents}
	for name, c := range map[string]struct {
		finalizers []string
		want       bool
	}{
		"its own finalizer":                    {[]string{"test.example.com/own"}, true},
		"a finalizer of another part":          {[]string{"platform.example.com/children"}, true},
		"finalizers of the garbage collector":  {ofGarbageCollector, false},
		"no finalizers, as after the deletion": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			widget := newWidget()
			widget.SetDeletionTimestamp(&now)
			widget.SetFinalizers(c.finalizers)
			called := false
			handle := Finalizer(FinalizerConfig{
				Client: newFakeServer(widget), Name: "test.example.com/own",
				Reconcile: func(context.Context, identifiers, *unstructured.Unstructured) error { return nil },
				Cleanup: func(context.Context, identifiers, *unstructured.Unstructured) error {
					called = true
					return nil
				},
			})
			if err := handle(t.Context(), first, widget); err != nil || called != c.want {
				t.Errorf("called: %t, error: %v", called, err)
			}
		})
	}
}
