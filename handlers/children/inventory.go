package children

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/handlers/internal/patch"
)

// Limits of an inventory. Anyone who can update a parent can write its annotations, which can have 256 KiB in total, so
// entries beyond the limits are not read. An entry takes about 60 bytes: both limits allow for about a thousand kinds
// of children.
const (
	maxInventoryBytes   = 64 << 10
	maxInventoryEntries = 1000
)

// errInventoryTooLarge is returned if a parent's desired children are of more kinds than an inventory can hold.
var errInventoryTooLarge = fmt.Errorf("too many kinds of children: an inventory has at most %d kinds and %d bytes",
	maxInventoryEntries, maxInventoryBytes)

// inventory lists the kinds of children that a parent can have, sorted by kind. As the value of an annotation, it is
// formatted as "ConfigMap=v1/configmaps,Widget.example.com=v1/widgets".
type inventory []inventoryEntry

// inventoryEntry is a kind, and the version and the resource that were last used to write its children. The version and
// the resource are both empty if the entry was written without them.
type inventoryEntry struct {
	kind              schema.GroupKind
	version, resource string
}

func newEntry(kind schema.GroupKind, gvr schema.GroupVersionResource) inventoryEntry {
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

// entryPattern matches the kind, group, version and resource of an entry. They become part of a URL, so they must not
// contain other characters.
var entryPattern = func() *regexp.Regexp {
	const name = `([A-Za-z0-9][-.A-Za-z0-9]*)`
	return regexp.MustCompile(`^([A-Za-z0-9][-A-Za-z0-9]*)(?:\.` + name + `)?(?:=` + name + `/` + name + `)?$`)
}()

// parseEntry parses an entry, and reports whether it is valid.
func parseEntry(text string) (entry inventoryEntry, valid bool) {
	parts := entryPattern.FindStringSubmatch(text)
	if parts == nil {
		return inventoryEntry{}, false
	}
	kind := schema.GroupKind{Group: parts[2], Kind: parts[1]}
	return inventoryEntry{kind: kind, version: parts[3], resource: parts[4]}, true
}

// parseInventory returns the entries whose kinds are accepted, sorted, and the others in their original order. It drops
// malformed entries, further entries of the same kind, and entries beyond the limits.
func parseInventory(text string, accept func(schema.GroupKind) bool) (accepted, others inventory) {
	if len(text) > maxInventoryBytes {
		text = text[:maxInventoryBytes]
		text = text[:max(strings.LastIndexByte(text, ','), 0)]
	}
	seen := map[schema.GroupKind]bool{}
	for part := range strings.SplitSeq(text, ",") {
		entry, valid := parseEntry(part)
		if !valid || seen[entry.kind] {
			continue
		}
		if seen[entry.kind] = true; len(seen) > maxInventoryEntries {
			break
		}
		if accept(entry.kind) {
			accepted = append(accepted, entry)
		} else {
			others = append(others, entry)
		}
	}
	accepted.sort()
	return accepted, others
}

func (i inventory) sort() {
	slices.SortFunc(i, func(a, b inventoryEntry) int { return strings.Compare(a.kind.String(), b.kind.String()) })
}

func (i inventory) String() string {
	entries := make([]string, len(i))
	for n, entry := range i {
		entries[n] = entry.String()
	}
	return strings.Join(entries, ",")
}

// annotation returns the text of the inventory, followed by as many of the other entries as fit. The entries of the
// inventory come first, so that other entries cannot displace them when the annotation is read.
func (i inventory) annotation(others inventory) (string, error) {
	text, entries := i.String(), len(i)
	if len(text) > maxInventoryBytes || entries > maxInventoryEntries {
		return "", errInventoryTooLarge
	}
	for _, other := range others {
		next := other.String()
		if text != "" {
			next = text + "," + next
		}
		if entries++; entries > maxInventoryEntries || len(next) > maxInventoryBytes {
			break
		}
		text = next
	}
	return text, nil
}

// with returns the inventory with the other entries added. An added entry replaces the entry of the same kind.
func (i inventory) with(others inventory) inventory {
	all := slices.Concat(i.without(others), others)
	all.sort()
	return all
}

// without returns the inventory without the kinds of the other entries.
func (i inventory) without(others inventory) inventory {
	return slices.DeleteFunc(slices.Clone(i), func(entry inventoryEntry) bool {
		return slices.ContainsFunc(others, func(other inventoryEntry) bool { return other.kind == entry.kind })
	})
}

// filter returns the entries whose kinds are accepted.
func (i inventory) filter(accept func(schema.GroupKind) bool) inventory {
	return slices.DeleteFunc(slices.Clone(i), func(entry inventoryEntry) bool { return !accept(entry.kind) })
}

// inventoryOf returns the entries of the parent's inventory whose kinds are accepted, and the others. If the caller's
// parent is older than the last write of the inventory, inventoryOf uses the entries that were written, and returns no
// others.
func (c *call) inventoryOf(
	parent *unstructured.Unstructured, accept func(schema.GroupKind) bool,
) (accepted, others inventory) {
	if c.cache.written.isAfter(parent) {
		return c.cache.inventory.filter(accept), nil
	}
	return parseInventory(parent.GetAnnotations()[c.inventoryKey()], accept)
}

// changeParent changes the inventory and, if finalize is set, adds the finalizer. It writes only if the finalizer or
// the entry of a known kind changes. Entries of other kinds never cause a write, but each write keeps them. The write
// is rejected if the parent has changed since it was read, because an inventory computed from an outdated parent would
// lose entries that were added in the meantime. The result gone is true if the parent is being deleted or gone.
func (c *call) changeParent(
	ctx context.Context, parent *unstructured.Unstructured, finalize bool, change func(inventory) inventory,
) (gone bool, err error) {
	parents := c.parents(c.id)
	err = patch.RetryOnConflict(ctx, parents, parent, func(current *unstructured.Unstructured) error {
		now, others := c.inventoryOf(current, c.isKnown)
		next, finalizers := change(now), current.GetFinalizers()
		finalize := finalize && !slices.Contains(finalizers, c.finalizer())
		if slices.Equal(now, next) && !finalize {
			return nil
		}
		if gone = current.GetDeletionTimestamp() != nil; gone {
			return nil
		}
		text, err := next.annotation(others)
		if err != nil {
			return err
		}
		changes := map[string]any{"annotations": map[string]any{c.inventoryKey(): text}}
		if text == "" {
			changes["annotations"] = map[string]any{c.inventoryKey(): nil}
		}
		if finalize {
			changes["finalizers"] = append(finalizers, c.finalizer())
		}
		written, err := patch.Metadata(ctx, parents, current, c.config.Name, changes)
		if err != nil {
			return err
		}
		updateMetadata(parent, written)
		c.cache.inventory, c.cache.written = next, versionOf(written)
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
