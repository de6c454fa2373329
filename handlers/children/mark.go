package children

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
)

// MarkedUID returns the UID of the parent in the mark of an object, if the mark names a parent with the same kind,
// namespace and name as the given one, in a format that this version can read. Otherwise, and for a retained child, it
// returns "". Compare it with the UIDs of existing parents to find children that have outlived their parent. The name
// is the [Config].Name of the parent's [Reconciler]. Anyone who can create an object can forge a mark.
func MarkedUID(object, parent metav1.Object, kind schema.GroupKind, name string) types.UID {
	return decide.Names(name).MarkedUID(object, parent, kind)
}
