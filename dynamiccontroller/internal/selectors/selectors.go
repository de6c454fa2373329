// Package selectors formats selectors in the syntax that the API server expects in list and watch requests.
package selectors

import (
	"cmp"
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/dynamic-controller/engine/internal/protect"
)

// NoLabels and NoFields are selectors that match no object, because their terms contradict each other. They are needed
// because [labels.Nothing] and [fields.Nothing] are formatted as empty strings, and the API server treats an empty
// selector as one that matches everything. NoFields uses metadata.name, so that the API server's storage layer reads at
// most one object where it can.
const (
	NoLabels = "!nothing,nothing"
	NoFields = "metadata.name!=nothing,metadata.name=nothing"
)

// Labels formats a label selector. The result for a nil selector is empty. If one of the selector's methods panics,
// Labels returns an error.
func Labels(selector labels.Selector) (string, error) { return recovered(selector, labelText) }

// Fields formats a field selector, with its terms sorted. The result for a nil selector is empty. If one of the
// selector's methods panics, Fields returns an error.
func Fields(selector fields.Selector) (string, error) { return recovered(selector, fieldText) }

func recovered[S any](selector S, format func(S) (string, error)) (text string, err error) {
	if panicked := protect.Call(func() { text, err = format(selector) }); panicked != nil {
		err = fmt.Errorf("selector of type %T panicked: %w", selector, panicked)
	}
	return text, err
}

func labelText(selector labels.Selector) (string, error) {
	if selector == nil {
		return "", nil
	}
	requirements, selectable := selector.Requirements()
	text := cmp.Or(selector.String(), labels.NewSelector().Add(requirements...).String())
	switch {
	case !selectable:
		return NoLabels, nil
	case text == "" && !selector.Empty():
		return "", fmt.Errorf("selector of type %T is not empty, but its String method returns an empty string", selector)
	}
	return text, nil
}

func fieldText(selector fields.Selector) (string, error) {
	if selector == nil {
		return "", nil
	}
	parsed, err := fields.ParseSelector(selector.String())
	if err != nil {
		return "", err
	}
	// If fields.Nothing is combined with other selectors, it does not appear in the text. To detect it, the code below
	// tries to build an object that satisfies every term of the parsed selector. If the parsed selector matches this
	// object but the original does not, the original contains fields.Nothing.
	object := fields.Set{}
	for _, term := range parsed.Requirements() {
		if term.Operator == selection.NotEquals {
			object[term.Field] += term.Value + "?"
		}
	}
	for _, term := range parsed.Requirements() {
		if term.Operator != selection.NotEquals {
			object[term.Field] = term.Value
		}
	}
	if parsed.Matches(object) && !selector.Matches(object) {
		return NoFields, nil
	}
	return parsed.String(), nil
}
