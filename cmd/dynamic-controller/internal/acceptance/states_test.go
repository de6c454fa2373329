package acceptance

import (
	"maps"
	"testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

func TestRegistry_CountsBlueprintsByState(t *testing.T) {
	r := newRegistry()
	want := map[State]int{StateServed: 0, StateWaiting: 0, StateUnknown: 0, StateRejected: 0, StateDeleting: 0}
	if got := r.states(); !maps.Equal(got, want) {
		t.Errorf("without Blueprints: got %v, want %v", got, want)
	}
	running := &servedRevision{Revision: instances.Revision{Compiled: &blueprint.Compiled{}}}
	rejected := validation{rejection: &rejection{reason: reasonConsent}}
	for name, d := range map[string]decision{
		"served":               {running: running},
		"new":                  {},
		"only cleans up":       {running: &servedRevision{}},
		"undecided":            {undecided: &rejection{reason: reasonUndecided}},
		"undecided and served": {undecided: &rejection{reason: reasonUndecided}, running: running},
		"undecided, deleting":  {deleting: true, undecided: &rejection{reason: reasonUndecided}, running: running},
		"rejected":             {validation: rejected},
		"rejected and served":  {validation: rejected, running: running},
		"deleting":             {deleting: true, validation: rejected, running: running},
	} {
		r.set(name, d)
	}
	want = map[State]int{StateServed: 1, StateWaiting: 2, StateUnknown: 2, StateRejected: 2, StateDeleting: 2}
	if got := r.states(); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
