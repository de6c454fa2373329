package acceptance

import (
	"maps"
	"testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

func TestRegistry_CountsBlueprintsByState(t *testing.T) {
	r := newRegistry()
	want := map[State]int{StateServed: 0, StateWaiting: 0, StateRejected: 0, StateDeleting: 0}
	if got := r.states(); !maps.Equal(got, want) {
		t.Errorf("without Blueprints: got %v, want %v", got, want)
	}
	running := &servedRevision{Revision: instances.Revision{Compiled: &blueprint.Compiled{}}}
	rejected := validation{rejection: &rejection{reason: reasonConsent}}
	for name, d := range map[string]decision{
		"served":              {running: running},
		"new":                 {},
		"only cleans up":      {running: &servedRevision{}},
		"rejected":            {validation: rejected},
		"rejected and served": {validation: rejected, running: running},
		"deleting":            {deleting: true, validation: rejected, running: running},
	} {
		r.set(name, d)
	}
	want = map[State]int{StateServed: 1, StateWaiting: 2, StateRejected: 2, StateDeleting: 1}
	if got := r.states(); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
