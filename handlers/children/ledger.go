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

// ledger keeps what the parent records about its children: their kinds and namespaces, the finalizer, and the
// annotation of the witness.
type ledger struct {
	*observer
	desired      *desiredSet
	planner      *planner // takes the place of writes, or nil
	witnessErr   error    // why the parent has no witness, although it needs one
	parentExists bool     // set once the API server has returned the parent and it is not being deleted
	parsed       parsedInventory
	recorded     inventory.Inventory // the entries of known kinds in the parent's inventory
}

// inventoryRoom returns the number of bytes that the inventory of a parent can have.
func (l *ledger) inventoryRoom(parent metav1.Object) int {
	room := validation.TotalAnnotationSizeLimitB - len(l.names.Inventory()) - len(l.names.Witness()) - len(parent.GetUID())
	for key, value := range parent.GetAnnotations() {
		if key != l.names.Inventory() && key != l.names.Witness() {
			room -= len(key) + len(value)
		}
	}
	return min(room, inventory.MaxBytes)
}

// inventoryOf splits the parent's inventory into the entries whose kinds are accepted and all others. If the given
// parent is older than the last write to the inventory, it returns the accepted entries of that write, and nil for the
// others.
func (l *ledger) inventoryOf(
	parent *unstructured.Unstructured, accept func(schema.GroupKind) bool,
) (accepted, others inventory.Inventory) {
	if l.entry.written.IsAfter(parent, time.Now()) {
		return l.entry.inventory.Filter(accept), nil
	}
	if text := parent.GetAnnotations()[l.names.Inventory()]; text != l.parsed.text {
		l.parsed = parsedInventory{text: text, entries: inventory.Parse(text)}
	}
	return l.parsed.entries.Split(accept)
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
func (l *ledger) changeParent(
	ctx context.Context, parent *unstructured.Unstructured, finalize bool,
	change func(inventory.Inventory) inventory.Inventory,
) (gone bool, err error) {
	parents := l.parents(l.id)
	err = patch.RetryOnConflict(ctx, parents, parent, func(current *unstructured.Unstructured) error {
		if err := l.checkInventory(current); err != nil {
			return err
		}
		now, others := l.inventoryOf(current, l.isListed)
		room := l.inventoryRoom(current)
		next, finalizers := now.Grow(change(now), room), current.GetFinalizers()
		witness := finalize && l.desired.needsWitness && l.witnessErr == nil && !l.rules.IsWitnessed(current)
		finalize := finalize && !slices.Contains(finalizers, l.names.Finalizer())
		changed := !now.Equals(next)
		if !changed && !finalize && !witness {
			l.recorded = next
			return nil
		}
		if gone = current.GetDeletionTimestamp() != nil; gone {
			return nil
		}
		annotations := map[string]any{}
		if changed {
			annotations[l.names.Inventory()] = next.Annotation(others, room)
		}
		if witness {
			annotations[l.names.Witness()] = string(current.GetUID())
		}
		changes := map[string]any{"annotations": annotations}
		if finalize {
			changes["finalizers"] = append(finalizers, l.names.Finalizer())
		}
		written, err := l.writeParent(ctx, current, changes)
		if err != nil {
			return err
		}
		updateMetadata(parent, written)
		l.parentExists = written.GetDeletionTimestamp() == nil
		l.recorded, l.entry.inventory, l.entry.written = next, next, decide.VersionOf(written, time.Now())
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
func (l *ledger) writeParent(
	ctx context.Context, current *unstructured.Unstructured, metadata map[string]any,
) (*unstructured.Unstructured, error) {
	if l.planner != nil {
		return l.planner.changeParent(l.id, current, metadata), nil
	}
	return patch.Metadata(ctx, l.parents(l.id), current, l.config.Name, metadata)
}

// checkRecorded returns an error if the parent's inventory has no room for the kind or the namespace of a child. Such a
// child must not be created or adopted, because it could not be found later.
func (l *ledger) checkRecorded(child *child) error {
	n := l.recorded.Index(child.kind)
	if child.Retain || n >= 0 && l.recorded[n].Covers(l.parent, child.id.Namespace()) {
		return nil
	}
	return ErrInventoryFull
}

// checkParent reads the parent from the API server before a call creates its first child. The caller's parent can be
// outdated, for example because the cache lags behind the previous leader. If the parent is gone, nothing would delete
// the child. If a kind has been removed from the parent's inventory, the kind must be recorded again.
func (l *ledger) checkParent(ctx context.Context) error {
	if l.parentExists {
		return nil
	}
	now, err := l.readParent(ctx)
	if err != nil {
		return err
	}
	if gone, err := l.prepareParent(ctx, now); err != nil {
		return err
	} else if gone {
		return decide.ErrParentGone
	}
	updateMetadata(l.parent, now)
	l.parentExists = true
	return nil
}

// prepareParent adds the finalizer and the desired kinds to the parent before its children are written. It reports
// whether the parent is being deleted or no longer exists.
func (l *ledger) prepareParent(ctx context.Context, parent *unstructured.Unstructured) (gone bool, err error) {
	return l.changeParent(ctx, parent, l.desired.needsCleanUp, func(now inventory.Inventory) inventory.Inventory {
		return now.With(l.desired.inventory())
	})
}
