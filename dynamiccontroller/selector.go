package dynamiccontroller

import (
	"fmt"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/dynamic-controller/engine/internal/protect"
)

// selectsNothing is a label selector that no object matches. [labels.Nothing] has no text of its own, and the API server
// takes an empty selector for one that matches everything.
const selectsNothing = "!nothing,nothing"

// selectorText returns the text with which the API server is asked for the objects that the selector matches.
func selectorText(selector labels.Selector) (text string, err error) {
	if selector == nil {
		return "", nil
	}
	panicked := protect.Call(func() {
		requirements, selectable := selector.Requirements()
		text = selector.String()
		switch {
		case !selectable:
			text = selectsNothing
		case text == "" && !selector.Empty():
			if text = labels.NewSelector().Add(requirements...).String(); text == "" {
				err = fmt.Errorf("the selector, a %T, is not empty but has no text", selector)
			}
		}
	})
	if panicked != nil {
		return "", fmt.Errorf("the selector, a %T, panicked: %w", selector, panicked)
	}
	return text, err
}
