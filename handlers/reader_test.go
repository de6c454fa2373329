package handlers

import (
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

// labels.Nothing has an empty text, which the API server takes for a selector that matches everything.
func TestLive_ListWithASelectorOfNothingReturnsNothing(t *testing.T) {
	server := newFakeServer(newWidget())
	for name, c := range map[string]struct {
		selector labels.Selector
		want     int
	}{
		"everything": {labels.Everything(), 1},
		"nothing":    {labels.Nothing(), 0},
	} {
		got, err := Live(server).List(t.Context(), widgets, "", c.selector)
		if err != nil || len(got) != c.want {
			t.Errorf("%s: got %d objects, %v, want %d", name, len(got), err, c.want)
		}
	}
}
