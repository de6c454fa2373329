package desire

import (
	"fmt"

	"github.com/dynamic-controller/engine/internal/datakinds"
)

// Values of Spec.OnImmutable.
const (
	Fail     = "Fail"
	Recreate = "Recreate"
)

// checkOnImmutable returns an error if a child must not have its value of OnImmutable.
func checkOnImmutable(spec Spec) error {
	kind := spec.Object.GroupVersionKind().GroupKind()
	switch value := spec.OnImmutable; {
	case value == "", value == Fail:
		return nil
	case value != Recreate:
		return fmt.Errorf("OnImmutable %q: must be %s or %s", value, Fail, Recreate)
	case spec.Retain:
		return fmt.Errorf("OnImmutable must not be %s, because the child is retained", value)
	case datakinds.Contains(kind):
		return fmt.Errorf("OnImmutable must not be %s, because deleting a %s deletes data", value, kind.Kind)
	}
	return nil
}
