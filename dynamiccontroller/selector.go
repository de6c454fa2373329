package dynamiccontroller

import (
	"fmt"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/dynamic-controller/engine/internal/protect"
)

// selectsNothing is a label selector that no object matches. The text of [labels.Nothing] is empty, and the API server
// treats an empty selector as one that matches everything.
const selectsNothing = "!nothing,nothing"

// selectorText returns the selector in the API server's syntax.
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
				err = fmt.Errorf("selector of type %T is not empty but has no text", selector)
			}
		}
	})
	if panicked != nil {
		return "", fmt.Errorf("selector of type %T panicked: %w", selector, panicked)
	}
	return text, err
}
