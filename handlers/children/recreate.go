package children

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/handlers/children/internal/desire"
	"github.com/dynamic-controller/engine/internal/datakinds"
)

// OnImmutable determines what happens to a child that cannot be changed into its desired state.
type OnImmutable string

// Values of OnImmutable. The empty value means OnImmutableFail.
const (
	OnImmutableFail     OnImmutable = desire.Fail
	OnImmutableRecreate OnImmutable = desire.Recreate
)

// CanRecreate reports whether children of a kind can have [OnImmutableRecreate]. It returns false for kinds whose
// objects hold data: Namespaces, PersistentVolumes and their claims, CustomResourceDefinitions and volume snapshots.
func CanRecreate(kind schema.GroupKind) bool { return !datakinds.Contains(kind) }
