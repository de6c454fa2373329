package children

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The formats of what Reconcile stores. VERSIONING.md lists them, and the files in testdata/formats are examples. A
// value without a number has format 1. A change of a format needs a new number, which is written one version after it
// can be read. A value without room for a number, such as a hash, needs a new key instead.
const (
	markFormat      = 1 // of the annotation <name>/parent of marked children
	inventoryFormat = 1 // of the annotation <name>/inventory of parents
)

// ErrNewerFormat is returned if a later version of the controller has written the inventory of a parent, or the mark of
// a child, in a format that this version cannot read. Reconcile does not change such an object and does not delete it.
// If the inventory cannot be read, or if the parent is being deleted, it changes and deletes nothing at all. Once the
// controller has been upgraded, it continues.
var ErrNewerFormat = errors.New("a later version of the controller wrote it, and this version cannot read its format")

// checkFormat returns an error if a format is newer than the newest known one.
func checkFormat(key string, format, newest int) error {
	if format > newest {
		return fmt.Errorf("annotation %s: %w: it has format %d, the newest known one is %d",
			key, ErrNewerFormat, format, newest)
	}
	return nil
}

// numbered matches an inventory with the number of its format, such as "v2:". No inventory in format 1 begins like
// this.
var numbered = regexp.MustCompile(`^v([0-9]{1,4}):`)

// checkInventory returns an error if the format of a parent's inventory is unknown.
func (r *Reconciler) checkInventory(parent metav1.Object) error {
	format := 1
	if parts := numbered.FindStringSubmatch(parent.GetAnnotations()[r.inventoryKey()]); parts != nil {
		format, _ = strconv.Atoi(parts[1])
	}
	return checkFormat(r.inventoryKey(), format, inventoryFormat)
}
