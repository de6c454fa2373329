package children

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/handlers/children/internal/decide"
	"github.com/dynamic-controller/engine/handlers/children/internal/inventory"
	"github.com/dynamic-controller/engine/handlers/internal/patch"
)

// ErrInventoryFull is returned for a child whose kind or namespace does not fit into the parent's inventory, which can
// have 192 KiB and 1,000 kinds. All annotations of the parent can have 256 KiB in total. The child is not created, and
// is not pruned. All other children are applied and pruned.
var ErrInventoryFull = errors.New("the annotation of the parent that lists the kinds and namespaces of its children " +
	"is full; divide the children among several parents")

// inventoryRoom returns the number of bytes that the inventory of a parent can have.
func (c *call) inventoryRoom(parent metav1.Object) int {
	room := validation.TotalAnnotationSizeLimitB - len(c.names.Inventory()) - len(c.names.Witness()) - len(parent.GetUID())
	for key, value := range parent.GetAnnotations() {
		if key != c.names.Inventory() && key != c.names.Witness() {
			room -= len(key) + len(value)
		}
	}
	return min(room, inventory.MaxBytes)
}

// inventoryOf splits the parent's inventory into the entries whose kinds are accepted and all others. If the given
// parent is older than the last write to the inventory, it returns the accepted entries of that write, and nil for the
// others.
func (c *call) inventoryOf(
	parent *unstructured.Unstructured, accept func(schema.GroupKind) bool,
) (accepted, others inventory.Inventory) {
	if c.cache.written.IsAfter(parent, time.Now()) {
		return c.cache.inventory.Filter(accept), nil
	}
	if text := parent.GetAnnotations()[c.names.Inventory()]; text != c.parsed.text {
		c.parsed = parsedInventory{text: text, entries: inventory.Parse(text)}
	}
	return c.parsed.entries.Split(accept)
}

// parsedInventory is the last inventory that a call has parsed.
type parsedInventory struct {
	text    string
	entries inventory.Inventory
}

// changeParent changes the inventory as far as it fits and, if finalize is set, adds the finalizer, and the annotation
// which shows that the parent has a witness. It writes only if one of them or the entry of a known kind changes.
// Entries of other kinds never cause a write, but each write keeps them. The write is rejected if the parent has
// changed since it was read. Without this check, an inventory computed from an outdated parent would lose entries that
// were added in the meantime. The result gone is true if the parent is being deleted or no longer exists.
func (c *call) changeParent(
	ctx context.Context, parent *unstructured.Unstructured, finalize bool, change func(inventory.Inventory) inventory.Inventory,
) (gone bool, err error) {
	parents := c.parents(c.id)
	err = patch.RetryOnConflict(ctx, parents, parent, func(current *unstructured.Unstructured) error {
		if err := c.checkInventory(current); err != nil {
			return err
		}
		now, others := c.inventoryOf(current, c.isListed)
		room := c.inventoryRoom(current)
		next, finalizers := now.Grow(change(now), room), current.GetFinalizers()
		witness := finalize && c.desired.needsWitness && c.witnessErr == nil && !c.rules.IsWitnessed(current)
		finalize := finalize && !slices.Contains(finalizers, c.names.Finalizer())
		changed := !now.Equals(next)
		if !changed && !finalize && !witness {
			c.recorded = next
			return nil
		}
		if gone = current.GetDeletionTimestamp() != nil; gone {
			return nil
		}
		annotations := map[string]any{}
		if changed {
			annotations[c.names.Inventory()] = next.Annotation(others, room)
		}
		if witness {
			annotations[c.names.Witness()] = string(current.GetUID())
		}
		changes := map[string]any{"annotations": annotations}
		if finalize {
			changes["finalizers"] = append(finalizers, c.names.Finalizer())
		}
		written, err := c.writeParent(ctx, current, changes)
		if err != nil {
			return err
		}
		updateMetadata(parent, written)
		c.parentExists = written.GetDeletionTimestamp() == nil
		c.recorded, c.cache.inventory, c.cache.written = next, next, decide.VersionOf(written, time.Now())
		return nil
	})
	if patch.IsGone(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("record the kinds of children: %w", err)
	}
	return gone, nil
}

// writeParent changes the metadata of the parent.
func (c *call) writeParent(
	ctx context.Context, current *unstructured.Unstructured, metadata map[string]any,
) (*unstructured.Unstructured, error) {
	if c.planner != nil {
		return c.planner.changeParent(c.id, current, c.names, metadata), nil
	}
	return patch.Metadata(ctx, c.parents(c.id), current, c.config.Name, metadata)
}

// checkRecorded returns an error if the parent's inventory has no room for the kind or the namespace of a child. Such a
// child must not be created or adopted, because it could not be found later.
func (c *call) checkRecorded(child *child) error {
	n := c.recorded.Index(child.kind)
	if child.Retain || n >= 0 && c.recorded[n].Covers(c.parent, child.id.Namespace()) {
		return nil
	}
	return ErrInventoryFull
}
