package children

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/children/internal/inventory"
)

// The formats of what Reconcile stores. VERSIONING.md lists them, and the files in testdata/formats are examples. A
// value without a number has format 1. A change of a format needs a new number, which is written one version after it
// can be read. A value without room for a number, such as a hash, needs a new key instead.
const inventoryFormat = 1 // of the annotation <name>/inventory of parents; see decide.MarkFormat for that of marks

// ErrNewerFormat is returned if a later version of the controller has written the inventory of a parent, or the mark of
// a child, in a format that this version cannot read. Reconcile does not change such an object and does not delete it.
// If the inventory cannot be read, or if the parent is being deleted, it changes and deletes nothing at all. Once the
// controller has been upgraded, it continues.
var ErrNewerFormat = decide.ErrNewerFormat

// checkInventory returns an error if the format of a parent's inventory is unknown.
func (s *settings) checkInventory(parent metav1.Object) error {
	format := inventory.FormatOf(parent.GetAnnotations()[s.names.Inventory()])
	return decide.CheckFormat(s.names.Inventory(), format, inventoryFormat)
}
