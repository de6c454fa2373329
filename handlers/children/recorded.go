package children

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/handlers/children/internal/inventory"
)

// RecordedKind is an entry of a parent's inventory.
type RecordedKind struct {
	schema.GroupKind
	// GVR is the type with which children of the kind were last written.
	GVR schema.GroupVersionResource
	// Namespaces lists the namespaces other than the parent's that can contain children of the kind.
	Namespaces []string
}

// RecordedKinds returns the inventory of a parent, sorted by kind. The name is the [Config].Name of its [Reconciler].
// Programs that display children can use it. Anyone who can update the parent can change the inventory.
func RecordedKinds(parent metav1.Object, name string) (kinds []RecordedKind) {
	all := inventory.Parse(parent.GetAnnotations()[name+"/inventory"])
	all.Sort()
	for _, entry := range all {
		kinds = append(kinds, RecordedKind{GroupKind: entry.Kind, GVR: entry.GVR(), Namespaces: entry.Namespaces})
	}
	return kinds
}
