package selectors

import (
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// The selector must not be formatted as an empty string, which matches everything.
func TestNoFields_MatchesNoObject(t *testing.T) {
	selector, err := fields.ParseSelector(NoFields)
	if err != nil {
		t.Fatal(err)
	}
	if selector.String() != NoFields {
		t.Errorf("the text of the selector is %q, want %q", selector, NoFields)
	}
	for _, name := range []string{"", "nothing", "a"} {
		if selector.Matches(fields.Set{"metadata.name": name}) {
			t.Errorf("the selector matches an object named %q", name)
		}
	}
}

func TestNoLabels_MatchesNoObject(t *testing.T) {
	selector, err := labels.Parse(NoLabels)
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range []labels.Set{{}, {"nothing": ""}, {"nothing": "a"}, {"a": "nothing"}} {
		if selector.Matches(set) {
			t.Errorf("the selector matches the labels %v", set)
		}
	}
}
