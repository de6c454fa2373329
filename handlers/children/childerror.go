package children

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// ChildError is returned for a desired child that could not be applied.
type ChildError struct {
	// ObjectIdentifiers identifies the child. The GVR is empty if the kind is unknown.
	dynamiccontroller.ObjectIdentifiers
	Kind   schema.GroupKind
	Parent dynamiccontroller.ObjectIdentifiers
	// Annotations contains the annotations of the desired child.
	Annotations map[string]string
	Err         error
}

func (c *call) childError(child *child, err error) *ChildError {
	return &ChildError{child.id, child.kind, c.id, child.Object.GetAnnotations(), err}
}

// Error names the child and its parent.
func (e *ChildError) Error() string {
	if e.GVR.Empty() {
		return fmt.Sprintf("child %s %s of %s: %v", e.Kind, e.NamespacedKey, e.Parent, e.Err)
	}
	return fmt.Sprintf("child %s of %s: %v", e.ObjectIdentifiers, e.Parent, e.Err)
}

func (e *ChildError) Unwrap() error { return e.Err }
