package dynamiccontroller

import (
	"context"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/typewatch"
)

func TestAccepts_IsUnsetWithoutAPredicate(t *testing.T) {
	if (&watchOptions{}).source().Accepts != nil {
		t.Error("changes are passed to a function, although there is no predicate")
	}
	o := &watchOptions{predicate: func(context.Context, Object, Object) bool { return true }}
	if o.source().Accepts == nil {
		t.Error("changes are not passed to the predicate")
	}
}

// A field that is missing in a conversion would make different watches equal.
func TestWatchKey_ConvertsToTheKeyOfAFeedAndBack(t *testing.T) {
	want := WatchKey{
		GVR: schema.GroupVersionResource{Version: "v1", Resource: "widgets"}, Namespaces: "a,b",
		LabelSelector: "c", FieldSelector: "d", BucketLabel: "e", Owned: true, EveryOwner: true,
	}
	for i := range reflect.TypeFor[WatchKey]().NumField() {
		if reflect.ValueOf(want).Field(i).IsZero() {
			t.Errorf("the test does not set %s", reflect.TypeFor[WatchKey]().Field(i).Name)
		}
	}
	if got := watchKeyOf(want.asFeed()); got != want {
		t.Errorf("got %+v, want %+v", got, want)
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
