package handlers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// inventory is the kinds of which a parent has children, or may have, each with the version and the resource that it was
// last written as: "ConfigMap=v1/configmaps,Widget.example.com=v1/widgets". It is sorted by kind.
type inventory []inventoryEntry

// inventoryEntry has no resource if it was written without.
type inventoryEntry struct {
	kind              schema.GroupKind
	version, resource string
}

func entryOf(kind schema.GroupKind, gvr schema.GroupVersionResource) inventoryEntry {
	return inventoryEntry{kind: kind, version: gvr.Version, resource: gvr.Resource}
}

func (e inventoryEntry) gvr() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: e.kind.Group, Version: e.version, Resource: e.resource}
}

func (e inventoryEntry) String() string {
	if e.resource == "" {
		return e.kind.String()
	}
	return e.kind.String() + "=" + e.version + "/" + e.resource
}

func parseInventory(s string) inventory {
	var entries inventory
	for _, text := range strings.Split(s, ",") {
		if text == "" {
			continue
		}
		kind, served, _ := strings.Cut(text, "=")
		entry := inventoryEntry{kind: schema.ParseGroupKind(kind)}
		if version, resource, ok := strings.Cut(served, "/"); ok {
			entry.version, entry.resource = version, resource
		}
		entries = append(entries, entry)
	}
	return entries
}

func (i inventory) String() string {
	entries := make([]string, len(i))
	for n, entry := range i {
		entries[n] = entry.String()
	}
	return strings.Join(entries, ",")
}

// with is the inventory with other entries, in the place of those of the same kinds.
func (i inventory) with(others inventory) inventory {
	all := slices.Concat(i.without(others), others)
	slices.SortFunc(all, func(a, b inventoryEntry) int { return strings.Compare(a.kind.String(), b.kind.String()) })
	return all
}

func (i inventory) without(others inventory) inventory {
	return slices.DeleteFunc(slices.Clone(i), func(entry inventoryEntry) bool {
		return slices.ContainsFunc(others, func(other inventoryEntry) bool { return other.kind == entry.kind })
	})
}

func (c *Children) inventoryKey() string { return c.config.Name + "/inventory" }

// inventoryManager applies the inventory and nothing else, for what a manager does not apply again is removed.
func (c *Children) inventoryManager() string { return c.config.Name + "/inventory" }

// inventoryOf is what the parent says, or what was last written to it if the caller's parent is older.
func (c *Children) inventoryOf(id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured) inventory {
	if written, ok := c.memory.inventoryAfter(id, parent); ok {
		return written
	}
	return parseInventory(parent.GetAnnotations()[c.inventoryKey()])
}

// record adds kinds to the inventory, and tells whether the parent turned out to be deleted.
func (c *Children) record(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured, kinds inventory) (deleted bool, err error) {
	return c.changeInventory(ctx, id, parent, func(now inventory) inventory { return now.with(kinds) })
}

// strike removes kinds of which there are no children any more.
func (c *Children) strike(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured, kinds inventory) error {
	_, err := c.changeInventory(ctx, id, parent, func(now inventory) inventory { return now.without(kinds) })
	return err
}

// changeInventory writes only what changed, and only to the parent that it looked at: an inventory computed from a stale
// one would lose what has been added since.
func (c *Children) changeInventory(ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured, change func(inventory) inventory) (deleted bool, err error) {
	parents := c.parents(id)
	err = onConflict(ctx, parents, parent, func(current *unstructured.Unstructured) error {
		now := c.inventoryOf(id, current)
		next := change(now)
		if slices.Equal(now, next) {
			return nil
		}
		if deleted = current.GetDeletionTimestamp() != nil; deleted {
			return nil
		}
		metadata := map[string]any{"resourceVersion": current.GetResourceVersion()}
		if len(next) > 0 {
			metadata["annotations"] = map[string]any{c.inventoryKey(): next.String()}
		}
		written, err := parents.Apply(ctx, id.Name(), applyTo(current, metadata), metav1.ApplyOptions{FieldManager: c.inventoryManager(), Force: true})
		if err != nil {
			return err
		}
		adoptMetadata(parent, written)
		c.memory.rememberInventory(id, written, next)
		return nil
	})
	if isGoneOrReplaced(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("record the kinds of children: %w", err)
	}
	return deleted, nil
}
