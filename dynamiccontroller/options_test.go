package dynamiccontroller

import (
	"context"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

// The API server must not treat the selector for no objects as one for all.
func TestNoFields_MatchesNoObject(t *testing.T) {
	selector, err := fields.ParseSelector(noFields)
	if err != nil {
		t.Fatal(err)
	}
	if selector.String() != noFields {
		t.Errorf("the text of the selector is %q, want %q", selector, noFields)
	}
	for _, name := range []string{"", "nothing", "a"} {
		if selector.Matches(fields.Set{"metadata.name": name}) {
			t.Errorf("it matches %q", name)
		}
	}
}

func TestAccepts_BuildsNoObjectWithoutAPredicate(t *testing.T) {
	var stored any = &unstructured.Unstructured{Object: map[string]any{}}
	count := func(predicate Predicate) float64 {
		o := &watchOptions{predicate: predicate}
		return testing.AllocsPerRun(100, func() {
			if !o.accepts(context.Background(), logr.Discard(), typewatch.View{}, stored, stored) {
				t.Error("the change was rejected")
			}
		})
	}
	if n := count(nil); n != 0 {
		t.Errorf("%v allocations without a predicate", n)
	}
	if n := count(func(context.Context, Object, Object) bool { return true }); n > 4 {
		t.Errorf("%v allocations with a predicate", n)
	}
}

// The values are part of the API: they are written into logs, conditions and metrics.
func TestTypeStateOf_MapsEachPhase(t *testing.T) {
	for phase, want := range map[typewatch.Phase]TypeState{
		typewatch.Stopped: "Stopped", typewatch.Syncing: "Syncing", typewatch.Synced: "Synced",
		typewatch.NotFound: "NotFound", typewatch.Forbidden: "Forbidden", typewatch.Failing: "Failing",
	} {
		if got := typeStateOf(phase); got != want {
			t.Errorf("%s is %s, want %s", phase, got, want)
		}
	}
}
