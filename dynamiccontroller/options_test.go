package dynamiccontroller

import (
	"context"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

func TestAccepts_AllocatesNothingWithoutAPredicate(t *testing.T) {
	stored, err := objects.Encode(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Widget", "metadata": map[string]any{"name": "a"},
	}}, objects.Full, "1")
	if err != nil {
		t.Fatal(err)
	}
	count := func(predicate Predicate) float64 {
		o := &watchOptions{predicate: predicate}
		return testing.AllocsPerRun(100, func() {
			if !o.accepts(context.Background(), logr.Discard(), typewatch.View{}, objects.Change{Old: stored, New: stored}) {
				t.Error("accepts returned false, want true")
			}
		})
	}
	if n := count(nil); n != 0 {
		t.Errorf("accepts makes %v allocations without a predicate, want none", n)
	}
	if n := count(func(context.Context, Object, Object) bool { return true }); n > 4 {
		t.Errorf("accepts makes %v allocations with a predicate, want at most 4", n)
	}
}

// The values of TypeState are part of the API, because they appear in logs, conditions and metrics.
func TestTypeState_HasAValueForEachPhase(t *testing.T) {
	for phase, want := range map[typewatch.Phase]TypeState{
		typewatch.Stopped: "Stopped", typewatch.Syncing: "Syncing", typewatch.Synced: "Synced",
		typewatch.NotFound: "NotFound", typewatch.Forbidden: "Forbidden", typewatch.Failing: "Failing",
	} {
		if got := TypeState(phase); got != want {
			t.Errorf("the state for phase %s is %s, want %s", phase, got, want)
		}
	}
}
