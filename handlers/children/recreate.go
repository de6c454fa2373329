package children

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/internal/datakinds"
)

// OnImmutable determines what happens to a child that cannot be changed into its desired state.
type OnImmutable string

// Values of OnImmutable. The empty value means OnImmutableFail.
const (
	OnImmutableFail     OnImmutable = "Fail"
	OnImmutableRecreate OnImmutable = "Recreate"
)

// CanRecreate reports whether children of a kind can have [OnImmutableRecreate]. It returns false for kinds whose
// objects hold data: Namespaces, PersistentVolumes and their claims, CustomResourceDefinitions and volume snapshots.
func CanRecreate(kind schema.GroupKind) bool { return !datakinds.Contains(kind) }

// check returns an error if a child must not have the value.
func (o OnImmutable) check(desired Child) error {
	kind := desired.Object.GroupVersionKind().GroupKind()
	switch {
	case o == "", o == OnImmutableFail:
		return nil
	case o != OnImmutableRecreate:
		return fmt.Errorf("OnImmutable %q: must be %s or %s", o, OnImmutableFail, OnImmutableRecreate)
	case desired.Retain:
		return fmt.Errorf("OnImmutable must not be %s, because the child is retained", o)
	case !CanRecreate(kind):
		return fmt.Errorf("OnImmutable must not be %s, because deleting a %s deletes data", o, kind.Kind)
	}
	return nil
}
